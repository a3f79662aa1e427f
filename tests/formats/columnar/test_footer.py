"""A footer is cut into what all row groups share and what each needs, and put together again for some of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.columnar.footer import (
    MAGIC,
    CompactReader,
    FileHead,
    ThriftError,
    parse_footer,
    read_row_groups,
    write_integer,
    write_row_groups,
)
from tests.formats.columnar.test_nodes import write_parquet

TABLE = pa.table({"x": range(10), "s": [str(number) for number in range(10)]})


def footer_of(data: bytes) -> bytes:
    length = int.from_bytes(data[-8:-4], "little")
    return data[-8 - length : -8]


def test_some_row_groups_are_a_footer_again() -> None:
    data = write_parquet(TABLE, row_group_size=4)
    head, groups = parse_footer(footer_of(data))
    assert [group.num_rows for group in groups] == [4, 4, 2]
    assert groups[0].bounds[0] == 4
    assert groups[1].chunks[1].path == ("s",)
    about = head.to_json()
    again = FileHead.parse(about["version"], about["schema"], about["created_by"], tuple(about["arrow_schema"]))
    details = write_row_groups(groups[1:])
    cut = pq.read_metadata(pa.BufferReader(MAGIC + again.footer(6, details)))
    whole = pq.read_metadata(pa.BufferReader(data))
    assert cut.num_row_groups == 2
    assert cut.schema.to_arrow_schema().equals(whole.schema.to_arrow_schema())
    assert cut.row_group(0).column(0).data_page_offset == whole.row_group(1).column(0).data_page_offset
    assert [group.num_rows for group in read_row_groups(CompactReader(details), ())] == [4, 2]


@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, -(2**40), 2**62])
def test_numbers(value: int) -> None:
    assert CompactReader(write_integer(value)).integer() == value


def test_what_is_cut_off() -> None:
    whole = footer_of(write_parquet(TABLE))
    for size in range(len(whole)):
        with pytest.raises(ThriftError):
            parse_footer(whole[:size])
