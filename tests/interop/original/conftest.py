"""Fixtures that the tests of mosaicml-streaming 0.5.0 use and that its source distribution lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock.as_streaming  # noqa: F401  before any test imports `streaming`

if TYPE_CHECKING:
    from pathlib import Path

MY_BUCKET = "streaming-test-bucket"
GCS_URL = R2_URL = "http://127.0.0.1:1"  # nothing of this is reached


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "world_size(count): the processes that a distributed test runs in")


@pytest.fixture
def local_remote_dir(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "local"), str(tmp_path / "remote")


@pytest.fixture
def compressed_local_remote_dir(tmp_path: Path) -> tuple[str, str, str]:
    return str(tmp_path / "compressed"), str(tmp_path / "local"), str(tmp_path / "remote")


@pytest.fixture
def mds_dataset_dir(tmp_path: Path) -> tuple[str, str]:
    """A small dataset: where it is, and where it may be kept."""
    from tests.common.datasets import (  # type: ignore[import-not-found]  # of the folder that this is copied to
        SequenceDataset,
        write_mds_dataset,
    )

    dataset = SequenceDataset(117)
    columns = dict(zip(dataset.column_names, dataset.column_encodings, strict=True))
    write_mds_dataset(str(tmp_path / "remote"), columns, dataset, size_limit=1 << 8)
    return str(tmp_path / "remote"), str(tmp_path / "local")
