"""What a cache is told: checked when it is made, and named by all that decides what is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.storage.base import StoreSettings
from penstock.wire.settings import CachedStream, FilesRequest


def test_columns_change_the_digest_but_not_which_shards_there_are() -> None:
    whole, some = FilesRequest(patterns=("*.parquet",)), FilesRequest(patterns=("*.parquet",), columns=("x",))
    assert whole.question == some.question
    assert whole.digest != some.digest
    assert whole.digest == FilesRequest(patterns=("*.parquet",)).digest


@pytest.mark.parametrize(("url", "is_local"), [("/data", True), ("file:///data", True), ("s3://bucket", False)])
def test_copies_of_files_of_this_machine(url: str, is_local: bool) -> None:
    store = StoreSettings(url, {})
    files = FilesRequest(patterns=("",), columns=("x",))
    stream = CachedStream(directory=Path("/cache"), store=store, files=files)
    assert stream.copies_local_files == is_local
    assert stream.columns == ("x",)
    indexed = CachedStream(directory=Path("/cache"), store=store)
    assert not indexed.copies_local_files
    assert indexed.columns is None


@pytest.mark.parametrize("option", [{"retry": -1}, {"timeout_s": 0}, {"timeout_s": float("nan")}])
def test_patience_that_makes_no_sense(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="download_"):
        CachedStream(directory=Path("/cache"), store=StoreSettings("s3://bucket", {}), **option)  # type: ignore[arg-type]
