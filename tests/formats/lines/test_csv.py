"""CSV and TSV: what `csv.reader` makes of a file, row by row, wherever it is cut and however it quotes."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.lines import scan
from tests.formats.in_place import InPlace, MemoryFile, scan_and_read

# Without lone carriage returns: `csv` cannot read them back unquoted either.
fields = st.text(st.sampled_from('ab ,;"\t\nü') | st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(fields, min_size=width, max_size=width), max_size=12)
)


def read_with_csv(data: bytes, separator: str) -> list[dict[str, str]]:
    text = io.StringIO(data.decode("utf-8-sig"), newline="")
    header, *rows = (row for row in csv.reader(text, delimiter=separator) if row)
    return [dict(zip(header, row, strict=True)) for row in rows]


def small_spans(patch: pytest.MonkeyPatch, span_bytes: int) -> None:
    patch.setattr(scan, "SPAN_BYTES", span_bytes)
    patch.setattr(scan, "_SMALLEST_SPAN_BYTES", span_bytes // 8)


@pytest.mark.parametrize(("format_name", "separator"), [("csv_file", ","), ("tsv_file", "\t")])
@given(
    table=tables,
    ending=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    mark=st.booleans(),
    drop_last=st.booleans(),
    chunk_bytes=st.integers(1, 60),
    span_bytes=st.integers(1, 90),
)
def test_rows_are_what_csv_makes_of_them(
    format_name: str,
    separator: str,
    table: list[list[str]],
    ending: str,
    quoting: Any,
    mark: bool,
    drop_last: bool,
    chunk_bytes: int,
    span_bytes: int,
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, lineterminator=ending, quoting=quoting)
    width = len(table[0]) if table else 2
    writer.writerow([f"c{number}" for number in range(width)])
    for row in table:
        writer.writerow(row)
        out.write(ending * (len(row[0]) % 2))
    data = b"\xef\xbb\xbf" * mark + out.getvalue().encode()
    data = data.removesuffix(ending.encode()) if drop_last else data
    expected = read_with_csv(data, separator)
    with pytest.MonkeyPatch.context() as patch:
        small_spans(patch, span_bytes)
        found = InPlace(format_name, MemoryFile("a.csv", data, chunk_bytes))
        assert found.scanned.settings == {"is_regular": True}
        assert found.samples() == expected


@given(
    text=st.text('ab",\n', max_size=60),
    chunk_bytes=st.integers(1, 60),
    span_bytes=st.integers(1, 60),
)
def test_quotes_may_stand_anywhere(text: str, chunk_bytes: int, span_bytes: int) -> None:
    data = f"h\n{text}".encode()
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    with pytest.MonkeyPatch.context() as patch:
        small_spans(patch, span_bytes)
        found = InPlace("csv_file", MemoryFile("a.csv", data, chunk_bytes))
        assert sum(shard.num_samples for shard in found.scanned.shards) == len(rows)
        if all(len(row) == 1 for row in rows):
            assert [sample["h"] for sample in found.samples()] == [row[0] for row in rows]
        else:
            with pytest.raises(
                CorruptShardError, match=r"a\.csv, line \d+: the row has \d fields, but the header has 1"
            ):
                found.samples()


def test_a_file_of_stray_quotes_is_read_as_csv_reads_it() -> None:
    data = b'name,size\nthe 5" disk,1\nthe 3" disk,2\n"a ""quoted""\nname",3\n'
    found = InPlace("csv_file", MemoryFile("a.csv", data))
    assert found.scanned.settings == {"is_regular": False}
    names = [sample["name"] for sample in found.samples()]
    assert names == ['the 5" disk', 'the 3" disk', 'a "quoted"\nname']


def test_types_make_values_of_text() -> None:
    data = b'i,f,b,j,s\n1,0.5,true,"[1, 2]",x\n-2,1e3,FALSE,{},\n'
    types = {"i": "int", "f": "float", "b": "bool", "j": "json"}
    found = InPlace("csv_file", MemoryFile("a.csv", data), {"types": types})
    assert found.samples() == [
        {"i": 1, "f": 0.5, "b": True, "j": [1, 2], "s": "x"},
        {"i": -2, "f": 1000.0, "b": False, "j": {}, "s": ""},
    ]
    [columns] = found.columns()
    kinds = {name: values.dtype.kind for name, values in columns.items() if isinstance(values, np.ndarray)}
    assert kinds == {"i": "i", "f": "f", "b": "b"}
    assert columns["s"] == ["x", ""]
    assert found.samples(columns=("s", "i")) == [{"s": "x", "i": 1}, {"s": "", "i": -2}]


def test_empty_fields_of_a_type_are_none() -> None:
    found = InPlace("csv_file", MemoryFile("a.csv", b"a,b\n,x\n2,\n"), {"types": {"a": "int"}})
    assert found.samples() == [{"a": None, "b": "x"}, {"a": 2, "b": ""}]
    assert found.columns() == [{"a": [None, 2], "b": ["x", ""]}]


def test_a_value_of_another_type_names_file_line_and_column() -> None:
    data = b'a,b\n1,"two\nlines"\n\nx,y\n'
    found = InPlace("csv_file", MemoryFile("d/a.csv", data), {"types": {"a": "int"}})
    with pytest.raises(CorruptShardError, match=r"d/a\.csv, line 5: column 'a' is not of type int: .*'x'"):
        found.samples()


def test_ragged_rows_are_bad_samples() -> None:
    found = InPlace("csv_file", MemoryFile("a.csv", b"a,b\n1,2\n3\n4,5,6\n7,8\n"))
    with found.opened() as [reader]:
        assert reader.read([0, 3]) == [{"a": "1", "b": "2"}, {"a": "7", "b": "8"}]
        for row, line, count in [(1, 3, 1), (2, 4, 3)]:
            with pytest.raises(CorruptShardError, match=rf"a\.csv, line {line}: the row has {count} fields, .* has 2"):
                reader.read_columns([0, row])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a,b,a\n1,2,3\n", "several columns called 'a': rename"),
        (b"\x00\x01\x02\n", "does not begin with a line of column names"),
        (b"a\xff,b\n", "header that cannot be read: .*UTF-8"),
        ("a,b\n".encode("utf-16"), "UTF-16"),
        (b"a,b\r1,2\r", "header that cannot be read: .*new-line"),
    ],
)
def test_headers_that_make_no_sense_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptShardError, match=rf"d/a\.csv .*{reason}"):
        InPlace("csv_file", MemoryFile("d/a.csv", data))


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="'date'.*use one of str, int, float, bool, json"):
        InPlace("csv_file", MemoryFile("a.csv", b"a\n1\n"), {"types": {"a": "date"}})


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_any_line_has_no_columns(data: bytes) -> None:
    found = InPlace("csv_file", MemoryFile("a.csv", data))
    assert (found.scanned.columns, found.scanned.shards) == ((), ())


def test_a_header_alone_has_columns_and_no_rows() -> None:
    for data in (b"a,b", b"a,b\r\n", b'a,"b"\n\n'):
        found = InPlace("csv_file", MemoryFile("a.csv", data))
        assert [column.name for column in found.scanned.columns] == ["a", "b"]
        assert found.scanned.shards == ()


def test_fields_beyond_the_limit_of_csv() -> None:
    long = "x\n" * 200_000
    assert scan_and_read("csv_file", f'a\n"{long}"\n'.encode()) == [{"a": long}]
    stray = f'{long[:100]}5" '.replace("\n", "") + "y" * 300_000
    assert scan_and_read("csv_file", f"a\n{stray}\n".encode(), chunk_bytes=1000) == [{"a": stray}]


def test_a_compressed_file_is_one_shard_behind_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    small_spans(monkeypatch, 20)
    data = b"\xef\xbb\xbfa,b\n" + b"".join(b"%d,x\n" % number for number in range(50))
    found = InPlace("csv_file", MemoryFile("a.csv.gz", data, is_compressed=True))
    [shard] = found.scanned.shards
    assert (shard.num_samples, shard.raw_bytes) == (50, len(data))
    assert [sample["a"] for sample in found.samples()] == [str(number) for number in range(50)]
