"""`reader_from_json`: one shard by its entry in the index, in every format."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from penstock import CSVWriter, JSONWriter, MDSWriter
from penstock.as_streaming.helpers import Reader, reader_from_json
from penstock.errors import BadIndexError, UnsafeTypeError

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [{"number": number, "text": f"row {number}"} for number in range(50)]


def entries(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())["shards"]
    return found


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_shard_is_read_by_its_entry(tmp_path: Path, writer: Any, compression: str | None) -> None:
    folder = tmp_path / "train"
    with writer(
        out=folder, columns={"number": "int", "text": "str"}, size_limit=300, compression=compression, hashes=["sha1"]
    ) as out:
        for sample in SAMPLES:
            out.write(sample)
    (folder / "index.json").rename(tmp_path / "index.json")
    obj = entries(tmp_path)
    readers: list[Any] = [reader_from_json(dirname=str(tmp_path), split="train", obj=each) for each in obj]
    assert len(readers) > 1
    assert [sample for reader in readers for sample in reader] == SAMPLES
    last = readers[-1]
    assert isinstance(last, Reader)
    assert (last.split, last.samples, last.size, len(last)) == ("train", obj[-1]["samples"], *[obj[-1]["samples"]] * 2)
    assert (last.compression, last.hashes, last.raw_data.basename) == (
        compression,
        ["sha1"],
        obj[-1]["raw_data"]["basename"],
    )
    assert last[-1] == last[[len(last) - 1]][0] == SAMPLES[-1]
    assert pickle.loads(pickle.dumps(last))[0] == last[0]
    with pytest.raises(IndexError, match="out of range"):
        last[len(last)]
    with pytest.raises(IndexError, match="out of range"):
        last.get_item(-1)


def test_a_shard_that_can_run_code_is_read_only_when_that_was_allowed(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"x": "pkl"}) as out:
        out.write({"x": {1, 2}})
    reader = reader_from_json(str(tmp_path), None, entries(tmp_path)[0])
    for read in (lambda: reader[0], lambda: reader.validate(False)):
        with pytest.raises(UnsafeTypeError, match="allow_unsafe_types=True"):
            read()
    reader.validate(True)
    assert reader[0] == {"x": {1, 2}}


def test_an_entry_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadIndexError, match="version 3"):
        reader_from_json(str(tmp_path), None, {"version": 3, "format": "mds"})
