"""A dataset that is dropped is gone at once, with its descriptors: nothing waits for the garbage collector."""

from __future__ import annotations

import gc
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import LocalDataset, StreamingDataLoader, StreamingDataset
from tests.streaming import write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def open_files(folder: Path) -> list[str]:
    """Files below a folder that this process has open or mapped."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    mapped = Path("/proc/self/maps").read_text().split()
    return [name for name in {*found, *mapped} if name.startswith(str(folder))]


class Subclass(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        return super().get_item(sample_id)


@pytest.mark.parametrize("kind", [StreamingDataset, Subclass])
@pytest.mark.parametrize("where", ["in place", "fetched"])
def test_after_one_sample(kind: type[StreamingDataset], where: str, tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "data", 60)
    places: dict[str, Any] = (
        {"local": folder} if where == "in place" else {"remote": folder, "local": tmp_path / "local"}
    )
    with without_collector():
        dataset = kind(**places, shuffle=True, batch_size=4)
        samples = iter(dataset)
        next(samples)
        assert dataset[3]["id"] == 3
        assert open_files(tmp_path)
        del samples, dataset
        assert not open_files(tmp_path)


def test_a_loader_by_column(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "data", 60)
    with without_collector():
        loader = StreamingDataLoader(StreamingDataset(local=folder), batch_size=4, columnar=True)
        batches = iter(loader)
        next(batches)
        assert open_files(tmp_path)
        del batches, loader
        assert not open_files(tmp_path)


def test_a_local_dataset(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "data", 60)
    with without_collector():
        dataset = LocalDataset(folder)
        assert dataset[7]["id"] == 7
        assert open_files(tmp_path)
        del dataset
        assert not open_files(tmp_path)
