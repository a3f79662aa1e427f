"""JSON lines: every line that is not blank is what `json` makes of it, wherever chunks and spans are cut."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.base import ReadOptions
from penstock.formats.lines import json_values, scan
from penstock.testing.reading import is_same
from tests.formats.in_place import InPlace, MemoryFile, scan_and_read

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
samples = st.dictionaries(st.sampled_from(["a", "b", "c", "ü", ""]), values, max_size=4)
endings = st.sampled_from([b"\n", b"\r\n", b" \n", b"\n\n", b"\n \t\r\n\r\n"])


def write(rows: list[tuple[Any, bytes]], *, mark: bool, ascii_only: bool, drop_last: bool) -> bytes:
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + end for row, end in rows]
    data = b"".join(lines)
    return b"\xef\xbb\xbf" * mark + (data.rstrip(b"\r\n \t") if drop_last else data)


@given(
    rows=st.lists(st.tuples(samples, endings), min_size=1, max_size=30),
    mark=st.booleans(),
    ascii_only=st.booleans(),
    drop_last=st.booleans(),
    chunk_bytes=st.integers(1, 200),
    span_bytes=st.integers(1, 300),
)
def test_rows_are_what_json_makes_of_them(
    rows: list[tuple[Any, bytes]], mark: bool, ascii_only: bool, drop_last: bool, chunk_bytes: int, span_bytes: int
) -> None:
    data = write(rows, mark=mark, ascii_only=ascii_only, drop_last=drop_last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "SPAN_BYTES", span_bytes)
        patch.setattr(scan, "_SMALLEST_SPAN_BYTES", span_bytes // 8)
        found = scan_and_read("jsonl", data, chunk_bytes=chunk_bytes)
    expected = [json.loads(json.dumps(row)) for row, _ in rows]
    assert is_same(found, expected)


@pytest.mark.parametrize("has_msgspec", [True, False])
def test_corners_are_the_same_with_every_parser(has_msgspec: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        '{"a": NaN, "b": -Infinity}',
        '{"a": 123456789012345678901234567890}',
        '{"a": 1, "a": 2}',
        '{"a": "\\ud800"}',
        '{"a": 1e400}',
        '{"a": -0, "b": -0.0, "c": 1E5}',
        '{"a": 5e-324, "b": 0.1, "c": 2.2250738585072011e-308}',
        '{"a": 18446744073709551616, "b": 9223372036854775808}',
        "{}",
    ]
    if not has_msgspec:
        monkeypatch.setitem(sys.modules, "msgspec.json", None)
    json_values.json_decoder.cache_clear()
    try:
        for rows in [texts, *([text] for text in texts)]:
            found = scan_and_read("jsonl", "\n".join(rows).encode())
            assert is_same(found, [json.loads(text) for text in rows])
    finally:
        json_values.json_decoder.cache_clear()


BAD_LINES = {
    b'{"a": 1': "not JSON",
    b"[1, 2]": "not a JSON object, but of type list",
    b'{"a": "\xff"}': "utf-8",
    b'{"a": 1}, {"a": 2}': "not JSON",
    b'{"a": [1': "not JSON",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda bad: str(bad[:20]))
def test_a_line_that_does_not_parse_names_file_and_line(bad: bytes) -> None:
    good = b'{"a": 0}\n'
    data = b"\r\n" + good * 3 + b"\n" + bad + b"\n" + good * 2
    found = InPlace("jsonl", MemoryFile("x/a.jsonl", data))
    with found.opened() as [reader]:
        assert len(reader) == 6
        assert reader.read([0, 2, 4]) == [{"a": 0}] * 3
        for read in (reader.read, reader.read_columns):
            with pytest.raises(CorruptShardError, match=f"x/a.jsonl, line 6: .*{BAD_LINES[bad]}") as caught:
                read(range(6))
            assert (caught.value.facts["line"], caught.value.facts["row"]) == (6, 3)


def test_line_numbers_go_on_from_span_to_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SPAN_BYTES", 50)
    monkeypatch.setattr(scan, "_SMALLEST_SPAN_BYTES", 1)
    lines = [b'{"a": %d}\n' % number for number in range(40)]
    lines[29:29] = [b"\n", b" \n"]
    lines[35] = b"nonsense\n"
    found = InPlace("jsonl", MemoryFile("a.jsonl", b"".join(lines), chunk_bytes=17))
    assert len(found.scanned.shards) > 5
    with pytest.raises(CorruptShardError, match=r"a\.jsonl, line 36: "):
        found.samples()


def test_files_that_are_something_else_are_refused_by_name() -> None:
    for data, reason in [
        (b'[{"a": 1}, {"a": 2}]', "one JSON array"),
        (b'[\n{"a": 1},\n{"a": 2}\n]\n', "one JSON array"),
        (bytes(range(256)) * 100, "not hold JSON lines: line 1"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"\n\n1\n2\n", "not hold JSON lines: line 3"),
    ]:
        with pytest.raises(CorruptShardError, match=reason) as caught:
            InPlace("jsonl", MemoryFile("b/wrong.jsonl", data))
        assert "b/wrong.jsonl" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_files_without_rows_have_no_shards(data: bytes) -> None:
    for chunk_bytes in (1, 100):
        found = InPlace("jsonl", MemoryFile("a.jsonl", data, chunk_bytes))
        assert (found.scanned.shards, found.scanned.columns) == ((), ())


def test_numbers_of_one_kind_are_arrays_by_column() -> None:
    rows = [{"i": n, "f": n / 2, "b": n % 2 == 0, "s": str(n), "l": [n], "m": n or 0.5, "w": n << 70} for n in range(5)]
    [columns] = InPlace("jsonl", MemoryFile("a", "\n".join(map(json.dumps, rows)).encode())).columns()
    kinds = {name: values.dtype for name, values in columns.items() if isinstance(values, np.ndarray)}
    assert kinds == {"i": np.dtype(np.int64), "f": np.dtype(np.float64), "b": np.dtype(np.bool_)}
    assert {name: list(values) for name, values in columns.items()} == {
        name: [r[name] for r in rows] for name in rows[0]
    }


def test_keys_may_differ_and_projection_takes_what_is_there() -> None:
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": 2.5}, {"a": 3, "b": None, "c": "x"}]
    found = InPlace("jsonl", MemoryFile("a", "\n".join(map(json.dumps, rows)).encode()))
    assert found.samples() == rows
    assert found.columns() == [{"a": [1, None, 3], "b": [None, 2.5, None], "c": [None, None, "x"]}]
    assert found.samples(columns=("b", "a")) == [{"a": 1}, {"b": 2.5}, {"b": None, "a": 3}]
    assert found.columns(columns=("b",)) == [{"b": [None, 2.5, None]}]
    with pytest.raises(ConfigError, match="'d'"):
        found.samples(columns=("d",))


def test_keys_that_come_late_are_columns_all_the_same() -> None:
    rows = [{"a": number} for number in range(500)]
    data = "\n".join(map(json.dumps, [*rows, {"a": 1, "late": 2}])).encode()
    found = InPlace("jsonl", MemoryFile("a", data))
    assert [column.name for column in found.scanned.columns] == ["a"]
    [columns] = found.columns()
    assert columns["late"] == [None] * 500 + [2]


def test_a_line_longer_than_everything_else() -> None:
    long = json.dumps({"text": "ü" * (3 << 20)}).encode()
    data = b'{"text": "a"}\n' + long + b"\n" + b'{"text": "b"}'
    assert [len(sample["text"]) for sample in scan_and_read("jsonl", data, chunk_bytes=1 << 16)] == [1, 3 << 20, 1]
    assert [len(sample["text"]) for sample in scan_and_read("jsonl", long)] == [3 << 20]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_ROW_BYTES", 5 << 20)
    with pytest.raises(CorruptShardError, match=r"a\.jsonl has a line of more than 5"):
        InPlace("jsonl", MemoryFile("a.jsonl", b'{"a": 1}\n' + b"x" * (6 << 20)))


def test_a_shard_of_another_number_of_rows_is_corrupt() -> None:
    found = InPlace("jsonl", MemoryFile("a.jsonl", b'{"a": 1}\n{"a": 2}\n'))
    [info] = found.infos
    for data in (b'{"a": 1}\n', b'{"a": 1}\n{"a": 2}\n{"a"', b""):
        with pytest.raises(CorruptShardError, match="rows, but the index says 2"):
            found.form.open([data], info, ReadOptions())


def test_a_compressed_file_is_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SPAN_BYTES", 50)
    rows = [{"a": number} for number in range(100)]
    data = b"\xef\xbb\xbf\n" + "\n".join(map(json.dumps, rows)).encode()
    found = InPlace("jsonl", MemoryFile("a.jsonl.gz", data, is_compressed=True))
    [shard] = found.scanned.shards
    assert (shard.num_samples, shard.raw_bytes, shard.is_exact) == (100, len(data), True)
    assert found.samples() == rows


def test_nan_is_nan() -> None:
    [sample] = scan_and_read("jsonl", b'{"a": NaN}')
    assert math.isnan(sample["a"])
