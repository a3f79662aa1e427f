"""Parquet and Arrow do what every format of files must."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from penstock.testing import FileFormatContract
from tests.formats.columnar.test_nodes import write_ipc, write_parquet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.types import Sample

SAMPLES: list[Sample] = [
    {"id": number, "text": f"text {number} " * number, "at": dt.date(2024, 1, 1 + number), "tags": ["a"] * number}
    for number in range(12)
]
SAMPLES[5] |= {"text": None, "tags": None}


class TestParquet(FileFormatContract):
    format_name = "parquet"
    samples = SAMPLES

    def write(self, samples: Sequence[Sample]) -> bytes:
        return write_parquet(pa.Table.from_pylist(list(samples)), row_group_size=5)


class TestArrowFile(FileFormatContract):
    format_name = "arrow"
    samples = SAMPLES
    is_file: ClassVar[bool] = True

    def write(self, samples: Sequence[Sample]) -> bytes:
        return write_ipc(pa.Table.from_pylist(list(samples)), 5, is_file=self.is_file, compression=None)


class TestArrowStream(TestArrowFile):
    is_file = False
