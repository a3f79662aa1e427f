"""Every kind of dataset appears as a whole or not at all, in a folder and in a store, whenever its writer is killed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock import (
    ArrowShardedSource,
    CSVWriter,
    JsonShardedSource,
    LeRobotWriter,
    LocalDataset,
    MDSWriter,
    ParquetShardedSource,
    StreamingDataset,
    StreamingLeRobotDataset,
    save_iterator,
)
from penstock.cache.proxied import open_proxied
from penstock.testing import TargetContract
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.servers.s3 import S3Server


class TestMDSWriter(TargetContract):
    kind: Any = MDSWriter

    def write(self, place: str, numbers: Iterable[int], *, replaces: bool) -> None:
        with self.kind(out=place, columns={"x": "int"}, size_limit=300, exist_ok=replaces) as writer:
            for number in numbers:
                writer.write({"x": number})

    def read(self, place: str) -> list[int]:
        return [sample["x"] for sample in LocalDataset(place)]


class TestCSVWriter(TestMDSWriter):
    kind = CSVWriter


class TestParquet(TargetContract):
    format: Any = "parquet"
    options: Any = None

    def write(self, place: str, numbers: Iterable[int], *, replaces: bool) -> None:
        rows = ({"x": number} for number in numbers)
        save_iterator(rows, place, self.format, 200, overwrite=replaces, storage_options=self.options)

    def read(self, place: str) -> list[int]:
        kind = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource}[self.format]
        return [row["x"] for row in kind(f"{place}/shard-*", storage_options=self.options)]


class TestArrow(TestParquet):
    format = "arrow"


class TestJsonLines(TestParquet):
    format = "jsonl"


class TestSavedMDS(TestParquet):
    format = "mds"

    def read(self, place: str) -> list[int]:
        return [sample["x"] for sample in LocalDataset(place)]


class TestLeRobot(TargetContract):
    can_replace = False
    options: Any = None

    def write(self, place: str, numbers: Iterable[int], *, replaces: bool) -> None:
        with LeRobotWriter(place, fps=10, data_files_size_in_mb=0.001, storage_options=self.options) as writer:
            for number in numbers:
                writer.write_episode([{"x": float(number)}], "count")

    def read(self, place: str) -> list[int]:
        with StreamingLeRobotDataset(root=place, shuffle=False, storage_options=self.options) as dataset:
            return [int(sample["x"]) for sample in dataset]


class InBucket:
    """The same in a bucket."""

    options: Any = None

    @pytest.fixture(autouse=True)
    def bucket(self, moto: S3Server) -> Iterator[None]:
        with private_places():
            type(self).options = self.options = moto.options
            moto.make_bucket(name := f"targets-{uuid.uuid4().hex[:8]}")
            self.root = f"s3://{name}"
            yield

    def make_place(self, folder: Path) -> str:
        return f"{self.root}/{folder.name}"


@pytest.mark.soak
class TestMDSInBucket(InBucket, TestMDSWriter):
    def write(self, place: str, numbers: Iterable[int], *, replaces: bool) -> None:
        columns = {"x": "int"}
        with MDSWriter(
            out=place, columns=columns, size_limit=300, exist_ok=replaces, storage_options=self.options
        ) as writer:
            for number in numbers:
                writer.write({"x": number})

    def read(self, place: str) -> list[int]:
        with StreamingDataset(remote=place, shuffle=False, storage_options=self.options) as dataset:
            return [sample["x"] for sample in dataset]


class TestJsonLinesInBucket(InBucket, TestJsonLines):
    keeps_replaced = False

    def read(self, place: str) -> list[int]:
        open_proxied(place, self.options).read("_manifest.json")  # without it there is no dataset
        return super().read(place)


@pytest.mark.soak
class TestLeRobotInBucket(InBucket, TestLeRobot):
    pass
