"""Shards whose bytes are not what they should be."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import CSVWriter, JSONWriter, LocalDataset, MDSWriter, XSVWriter
from penstock.data.look import verify_dataset
from penstock.errors import (
    BadIndexError,
    ColumnNameError,
    ColumnTypeError,
    ColumnValueError,
    ConfigError,
    CorruptShardError,
    EncodingConfigError,
    UnknownEncodingError,
    UnsafeTypeError,
)
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.encodings.table import encodings
from penstock.index.model import Column, ShardLayout
from tests.formats.making import attempt, build, edit_index, make_layout, mds_shard, open_parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.formats.base import ShardReader

LAYOUT = make_layout({"n": "int", "s": "str", "t": "bytes"})
SAMPLES = [{"n": n, "s": "é" * n, "t": bytes(n)} for n in range(4)]
(GOOD,) = build(LAYOUT, SAMPLES)
SHARD = r"^shard\.00000\.mds"


def offset_at(number: int) -> int:
    return 4 + 4 * number


def with_word(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


def word(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def open_whole(layout: ShardLayout, parts: list[bytes], num_samples: int) -> ShardReader:
    """Open a shard, looking at all of its samples."""
    return open_parts(layout, parts, num_samples, checked=True)


# --- Offsets of MDS shards ----------------------------------------------------------------------------------


def test_the_good_shard_is_good() -> None:
    assert open_parts(LAYOUT, [GOOD], 4).read(range(4)) == SAMPLES


@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 20, 23])
def test_too_short_for_its_offsets(size: int) -> None:
    with pytest.raises(CorruptShardError, match=SHARD + " is too short to hold the offsets of 4 samples") as caught:
        open_whole(LAYOUT, [GOOD[:size]], 4)
    assert isinstance(caught.value, ValueError)
    assert caught.value.facts["shard"] == "shard.00000.mds"


@pytest.mark.parametrize("size", [24, 100, len(GOOD) - 1])
def test_cut_off_at_the_end(size: int) -> None:
    with pytest.raises(
        CorruptShardError, match=SHARD + rf" has samples from byte \d+ to {len(GOOD)}, but they must end"
    ):
        open_parts(LAYOUT, [GOOD[:size]], 4)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_longer_than_its_samples(size: int) -> None:
    with pytest.raises(CorruptShardError, match=SHARD + rf" has samples .* must end at {len(GOOD) + size}"):
        open_whole(LAYOUT, [GOOD + bytes(size)], 4)


@pytest.mark.parametrize("declared", [0, 3, 5, 2**31])
def test_another_number_of_samples(declared: int) -> None:
    with pytest.raises(CorruptShardError, match=SHARD + r"( holds 4 samples, but the index says| is too short)"):
        open_whole(LAYOUT, [GOOD], declared)
    with pytest.raises(CorruptShardError, match=SHARD + f" holds {declared} samples, but the index says 4"):
        open_whole(LAYOUT, [with_word(GOOD, 0, declared)], 4)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_offsets_that_descend(number: int) -> None:
    for value in (word(GOOD, offset_at(number - 1)) - 1, 0, word(GOOD, offset_at(number + 1)) + 1, 2**32 - 1):
        with pytest.raises(CorruptShardError, match=SHARD + r", row \d: its offsets, .* decrease or lie outside"):
            open_whole(LAYOUT, [with_word(GOOD, offset_at(number), value)], 4)


def test_offsets_past_the_end() -> None:
    with pytest.raises(CorruptShardError, match=SHARD + " has samples from"):
        open_whole(LAYOUT, [with_word(GOOD, offset_at(4), len(GOOD) + 1)], 4)


@pytest.mark.parametrize("value", [0, 4, 23])
def test_offsets_inside_the_table(value: int) -> None:
    with pytest.raises(CorruptShardError, match=SHARD + f" has samples from byte {value} to .* begin at 24 or later"):
        open_whole(LAYOUT, [with_word(GOOD, offset_at(0), value)], 4)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("change", [-1, 1])
def test_offsets_that_move_a_border(number: int, change: int) -> None:
    value = word(GOOD, offset_at(number)) + change
    with pytest.raises(CorruptShardError, match=SHARD + r", row \d: "):
        open_whole(LAYOUT, [with_word(GOOD, offset_at(number), value)], 4)


# --- Sizes inside samples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [2**32 - 1, 2**31, 100, 17])
def test_sizes_that_lie(row: int, which: int, value: int) -> None:
    at = word(GOOD, offset_at(row)) + 4 * which
    with pytest.raises(
        CorruptShardError, match=SHARD + rf", row {row}: its values end at byte \d+, but the sample ends at"
    ):
        open_whole(LAYOUT, [with_word(GOOD, at, value)], 4)


def test_sizes_that_lie_in_turn() -> None:
    """Their sum wraps around 32 bits to the right value."""
    at = word(GOOD, offset_at(2))
    data = with_word(with_word(GOOD, at, 2**32 - 1), at + 4, (word(GOOD, at) + word(GOOD, at + 4) + 1) % 2**32)
    with pytest.raises(CorruptShardError, match=SHARD + ", row 2: its values end at byte"):
        open_whole(LAYOUT, [data], 4)


@pytest.mark.parametrize("record", [b"", b"\0", b"\0" * 7])
def test_samples_too_short_for_their_sizes(record: bytes) -> None:
    layout = make_layout({"s": "str", "t": "str"})
    with pytest.raises(CorruptShardError, match=SHARD + ", row 1: too short to hold the sizes of its values"):
        open_whole(layout, [mds_shard([bytes(8), record, bytes(8)])], 3)


@pytest.mark.parametrize("record", [b"", b"\0" * 7, b"\0" * 9])
def test_samples_of_the_wrong_fixed_size(record: bytes) -> None:
    with pytest.raises(CorruptShardError, match=SHARD + ", row 1: its values end at byte"):
        open_whole(make_layout({"n": "int"}), [mds_shard([bytes(8), record])], 2)


def test_swapping_sizes_is_a_matter_of_values() -> None:
    """Sizes that add up cannot be told from right ones, but text that is cut within a character can."""
    layout = make_layout({"s": "str", "t": "str"})
    good = mds_shard([struct.pack("<II", 2, 1) + "éx".encode()])
    assert open_parts(layout, [good], 1).read([0]) == [{"s": "é", "t": "x"}]
    bad = mds_shard([struct.pack("<II", 1, 2) + "éx".encode()])
    with pytest.raises(CorruptShardError, match=SHARD + ", row 0: column 's' cannot be decoded: UnicodeDecodeError"):
        open_parts(layout, [bad], 1).read([0])


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_are_read_or_refused(data: bytes, num_samples: int) -> None:
    samples, error = attempt(
        CorruptShardError, lambda: open_parts(LAYOUT, [data], num_samples).read(range(num_samples))
    )
    if samples is None:
        assert str(error).startswith("shard.00000.mds")
    else:
        assert len(samples) == num_samples


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_records_are_read_or_refused(records: list[bytes]) -> None:
    data = mds_shard(records)
    rows = range(len(records))
    samples, error = attempt(CorruptShardError, lambda: open_parts(LAYOUT, [data], len(rows)).read(rows))
    if samples is None:
        assert str(error).startswith("shard.00000.mds, row")
    else:
        assert build(LAYOUT, samples)[0].endswith(b"".join(records))


# --- Text shards --------------------------------------------------------------------------------------------

TEXT_SAMPLES = [{"n": n, "s": "é" * n, "x": n / 2} for n in range(4)]
TEXT = {"n": "int", "s": "str", "x": "float"}


@pytest.fixture(params=["json", "csv", "tsv", "xsv"])
def text_layout(request: pytest.FixtureRequest) -> ShardLayout:
    settings = {"separator": "||"} if request.param == "xsv" else {}
    return make_layout(TEXT, request.param, **settings)


def test_text_data_of_another_length(text_layout: ShardLayout) -> None:
    data, meta = build(text_layout, TEXT_SAMPLES)
    for spoiled in (b"", data[:-1], data + b"\n"):
        with pytest.raises(CorruptShardError, match=rf"^shard\.00000\.{text_layout.format} has samples from byte"):
            open_parts(text_layout, [spoiled, meta], 4)


def test_text_meta_that_is_cut_off(text_layout: ShardLayout) -> None:
    data, meta = build(text_layout, TEXT_SAMPLES)
    for size in (0, 3, 4, 23):
        with pytest.raises(CorruptShardError, match="is too short to hold the offsets of 4 samples"):
            open_parts(text_layout, [data, meta[:size]], 4)


def test_text_offsets(text_layout: ShardLayout) -> None:
    data, meta = build(text_layout, TEXT_SAMPLES)
    for at, value, message in (
        (0, 5, "holds 5 samples, but the index says 4"),
        (offset_at(2), 0, "offsets that decrease"),
        (offset_at(0), 2**32 - 1, "offsets that decrease"),
        (offset_at(4), len(data) + 1, "has samples from byte"),
        (offset_at(4), 2**32 - 1, "has samples from byte"),
    ):
        with pytest.raises(CorruptShardError, match=message):
            open_parts(text_layout, [data, with_word(meta, at, value)], 4)


def test_text_borders_inside_lines(text_layout: ShardLayout) -> None:
    data, meta = build(text_layout, TEXT_SAMPLES)
    for change in (-2, 2):
        spoiled = with_word(meta, offset_at(2), word(meta, offset_at(2)) + change)
        reader = open_parts(text_layout, [data, spoiled], 4)
        assert reader.read([0, 3]) == [TEXT_SAMPLES[0], TEXT_SAMPLES[3]]
        with pytest.raises(CorruptShardError, match=rf"^shard\.00000\.{text_layout.format}, row (1|2): the line "):
            reader.read([1, 2])


def test_text_that_is_not_utf_8(text_layout: ShardLayout) -> None:
    data, meta = build(text_layout, [sample | {"s": "@@"} for sample in TEXT_SAMPLES])
    spoiled = data.replace(b"@@", b"@\xff", 3)
    spoiled = spoiled.replace(b"@\xff", b"@@", 2)  # the third line only
    reader = open_parts(text_layout, [spoiled, meta], 4)
    assert len(reader.read([0, 1, 3])) == 3
    with pytest.raises(CorruptShardError, match=rf"^shard\.00000\.{text_layout.format}, row 2: the line ") as caught:
        reader.read(range(4))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("line", ["1,a", "1,a,0.5,x", "", "x,a,0.5", "1,a,x", "1.0,a,0.5", ",,"])
def test_lines_that_do_not_hold_their_columns(line: str) -> None:
    layout = make_layout(TEXT, "csv")
    header = b"n,s,x\n"
    data = header + line.encode() + b"\n"
    meta = struct.pack("<III", 1, len(header), len(data))
    with pytest.raises(CorruptShardError, match=r"^shard\.00000\.csv, row 0: the line does not have the 3 columns"):
        open_parts(layout, [data, meta], 1).read([0])


@pytest.mark.parametrize("line", ["", "{", "[]", "1", "null", '"x"', '{"n": 1}, {"n": 2}', "[" * 100_000, "NaN"])
def test_lines_that_are_no_json_objects(line: str) -> None:
    layout = make_layout(TEXT, "json")
    good = b'{"n": 1, "s": "x", "x": 0.5}\n'
    data = good + line.encode() + b"\n" + good
    meta = struct.pack("<IIIII", 3, 0, len(good), len(data) - len(good), len(data))
    reader = open_parts(layout, [data, meta], 3)
    assert len(reader.read([0, 2])) == 2
    with pytest.raises(CorruptShardError, match=r"^shard\.00000\.json, row 1: the line is not "):
        reader.read([0, 1, 2])


def test_json_numbers_of_another_type_keep_their_value() -> None:
    layout = make_layout({"n": "int"}, "json")
    for values in ([1.5, 2], ["1", 2], [None, 1], [2**70, 1], [True, False]):
        lines = [json.dumps({"n": value}).encode() + b"\n" for value in values]
        ends = np.cumsum([len(line) for line in lines]).tolist()
        reader = open_parts(layout, [b"".join(lines), struct.pack("<IIII", 2, 0, *ends)], 2)
        assert [sample["n"] for sample in reader.read([0, 1])] == values
        assert list(reader.read_columns([0, 1])["n"]) == values


# --- What is written can be read ----------------------------------------------------------------------------


def read_back(folder: Path) -> list[dict[str, Any]]:
    with LocalDataset(folder) as dataset:
        return dataset[:]


separators = st.sampled_from(["||", "|", "aba", "::", "\n", ", ", "\r\n", "|a|"])


@settings(max_examples=200)
@given(
    separator=separators,
    newline=st.sampled_from(["\n", "\r\n", "|", "a", "\n\n"]),
    values=st.lists(st.text("ab|:, \r\n", max_size=4), min_size=2, max_size=2),
)
def test_separated_values_are_refused_or_come_back(separator: str, newline: str, values: list[str]) -> None:
    sample = {"x": values[0], "y": values[1]}
    layout = make_layout({"x": "str", "y": "str"}, "xsv", separator=separator, newline=newline)
    parts, error = attempt(ColumnValueError, lambda: build(layout, [sample]))
    if parts is None:
        assert str(error).startswith("column '")
        assert isinstance(error, AssertionError)
    else:
        assert open_parts(layout, parts, 1).read([0]) == [sample]


def test_a_separator_cut_in_two_is_refused(tmp_path: Path) -> None:
    with XSVWriter(out=tmp_path, separator="||", columns={"a": "str", "b": "str"}) as writer:
        with pytest.raises(ColumnValueError, match="^sample 0: column 'a' "):
            writer.write({"a": "x|", "b": "y"})
        writer.write({"a": "x", "b": "y|"})
    assert read_back(tmp_path) == [{"a": "x", "b": "y|"}]


@pytest.mark.parametrize("newline", ["\n", "\r\n", " ", "||", "x", '"', "}", ","])
def test_json_lines_are_refused_or_come_back(newline: str, tmp_path: Path) -> None:
    samples = [{"a": "x||y", "n": 1}, {"a": "", "n": 2}]
    columns = {"a": "str", "n": "int"}
    writer, error = attempt(ConfigError, lambda: JSONWriter(out=tmp_path, columns=columns, newline=newline))
    if writer is None:
        assert "newline" in str(error)
        assert not newline.isspace()
    else:
        for sample in samples:
            writer.write(sample)
        writer.finish()
        assert read_back(tmp_path) == samples


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("kind", [CSVWriter, JSONWriter])
def test_booleans_are_refused_or_come_back(kind: type[CSVWriter | JSONWriter], value: bool, tmp_path: Path) -> None:
    with kind(out=tmp_path, columns={"n": "int"}) as writer:
        writer.write({"n": 5})
        expected = [{"n": 5}]
        _, error = attempt(ColumnTypeError, lambda: writer.write({"n": value}))
        if error is None:
            expected.append({"n": value})
    assert read_back(tmp_path) == expected


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_numbers_beyond_all_digits_are_refused(kind: str) -> None:
    layout = make_layout({"n": "int"}, kind)
    with pytest.raises(ColumnValueError, match="^column 'n' "):
        build(layout, [{"n": 10**5000}])


@pytest.mark.parametrize("name", ["a,b", "a\nb", "\ud800"])
def test_column_names_that_a_header_cannot_hold(name: str) -> None:
    with pytest.raises(ColumnNameError, match="^column ") as caught:
        build(make_layout({name: "int"}, "csv"), [])
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, ValueError)


# --- Layouts that cannot be read ----------------------------------------------------------------------------


def check_layout(columns: list[Column], **settings: Any) -> None:
    layout = ShardLayout(format="mds", columns=tuple(columns), **settings)
    open_parts(layout, [mds_shard([])], 0)


def test_unknown_encodings_are_refused_on_opening() -> None:
    with pytest.raises(UnknownEncodingError) as caught:
        check_layout([Column("x", "int128")])
    assert str(caught.value) == f"unknown column encoding 'int128': use one of {', '.join(encodings.names())}"
    text = make_layout({"x": "int"}, "csv")
    layout = ShardLayout(format="csv", columns=(Column("x", "bytes"),), settings={"newline": "\n"})
    with pytest.raises(
        UnknownEncodingError, match="^unknown column encoding 'bytes': text formats have str, int, float"
    ):
        open_parts(layout, build(text, []), 0)


def test_sizes_that_do_not_fit_the_encoding() -> None:
    for encoding, size in (("int", 4), ("int", None), ("str", 8), ("ndarray:int8:3", 4), ("ndarray:int8", 3)):
        with pytest.raises(
            BadIndexError, match=f"^the index says that column 'x' of encoding '{encoding}' has {size} bytes"
        ):
            check_layout([Column("x", encoding, size)])


@pytest.mark.parametrize(
    ("encoding", "size"),
    [
        ("ndarray:uint8:" + ",".join("1" * 64), 1),
        ("ndarray:uint8:" + ",".join("1" * 100), 1),
        ("ndarray:uint8:4294967296", 4294967296),
        ("ndarray:uint8:" + "9" * 5000, 1),
    ],
)
def test_arrays_too_large_for_anything(encoding: str, size: int) -> None:
    with pytest.raises(EncodingConfigError, match="^ndarray:uint8:"):
        check_layout([Column("x", encoding, size)])


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 - 1])
def test_arrays_larger_than_the_shard(size: int) -> None:
    """Whether such a column is refused at once or for want of bytes, the error is ours."""
    layout_columns = (Column("x", f"ndarray:uint8:{size}", size),)
    layout = ShardLayout(format="mds", columns=layout_columns)
    with pytest.raises((CorruptShardError, EncodingConfigError)):
        open_whole(layout, [mds_shard([b"abc"])], 1)


def test_pickles_need_leave(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"a": "int", "o": "pkl"}) as writer:
        writer.write({"a": 1, "o": {"x"}})
    with pytest.raises(UnsafeTypeError, match="^column 'o' has the encoding 'pkl', which can run code") as caught:
        LocalDataset(tmp_path)
    assert isinstance(caught.value, ValueError)
    assert "allow_unsafe_types=True" in str(caught.value)
    with pytest.raises(UnsafeTypeError):
        LocalDataset(tmp_path, columns=["a"])
    with pytest.raises(UnsafeTypeError):
        get_format("mds").check(make_layout({"o": "pkl"}), ReadOptions())
    assert LocalDataset(tmp_path, allow_unsafe_types=True)[0] == {"a": 1, "o": {"x"}}


def test_pickles_in_a_later_shard_need_leave_too(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"s": "str"}, size_limit=1) as writer:
        writer.write({"s": "a"})
        writer.write({"s": "b"})
    index = json.loads((tmp_path / "index.json").read_bytes())
    index["shards"][-1]["column_encodings"] = ["pkl"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(UnsafeTypeError):
        LocalDataset(tmp_path)


# --- Through a dataset --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with MDSWriter(out=tmp_path / "data", columns={"n": "int", "s": "str"}, size_limit=None) as writer:
        for number in range(5):
            writer.write({"n": number, "s": "text"})
    return tmp_path / "data"


def damage(folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = folder / "shard.00000.mds"
    data = change(path.read_bytes())
    path.write_bytes(data)


def test_a_file_shorter_or_longer_than_the_index_says(folder: Path) -> None:
    good = (folder / "shard.00000.mds").read_bytes()
    for data in (b"", good[:-1], good[:10], good + b"\0"):
        (folder / "shard.00000.mds").write_bytes(data)
        with pytest.raises(CorruptShardError) as caught:
            LocalDataset(folder)[0]
        path = folder / "shard.00000.mds"
        assert str(caught.value).startswith(f"{path} has {len(data)} bytes, but the index says {len(good)}")
        assert len(verify_dataset(folder).problems) == 1


def test_a_damaged_file_of_the_right_size(folder: Path) -> None:
    damage(folder, lambda data: with_word(data, offset_at(2), 5))
    with pytest.raises(CorruptShardError, match=SHARD + r", row \d: its offsets, .* decrease or lie outside"):
        LocalDataset(folder)[0]
    assert verify_dataset(folder).problems == (
        "shard.00000.mds, row 1: its offsets, 221 and 5, decrease or lie outside the shard",
    )


def test_a_damaged_value(folder: Path) -> None:
    damage(folder, lambda data: data[:-1] + b"\xff")
    with LocalDataset(folder) as dataset:
        assert len(dataset[:4]) == 4
        for read in (
            lambda: dataset[4],
            lambda: dataset[:],
            lambda: dataset.read_columns([0, 4]),
            lambda: list(dataset),
        ):
            with pytest.raises(CorruptShardError, match=SHARD + ", row 4: column 's' cannot be decoded"):
                read()
        assert dataset[0] == {"n": 0, "s": "text"}
    assert len(verify_dataset(folder, read_values=True).problems) == 1


def test_an_index_that_counts_other_samples(folder: Path) -> None:
    edit_index(folder, lambda entry: entry.update(samples=4))
    with pytest.raises(CorruptShardError, match=SHARD + " holds 5 samples, but the index says 4"):
        LocalDataset(folder)[0]


def test_an_index_with_other_columns(folder: Path) -> None:
    edit_index(folder, lambda entry: entry.update(column_names=["n"], column_encodings=["int"], column_sizes=[8]))
    with pytest.raises(CorruptShardError, match=SHARD + ", row 0: its values end at byte"):
        LocalDataset(folder)[0]


def test_the_dataset_survives_a_bad_shard(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"n": "int"}, size_limit=1) as writer:
        for number in range(3):
            writer.write({"n": number})
    shards = sorted(path.name for path in tmp_path.glob("*.mds"))
    assert len(shards) == 4  # the first one is empty
    (tmp_path / shards[2]).write_bytes(bytes((tmp_path / shards[2]).stat().st_size))
    with LocalDataset(tmp_path) as dataset:
        with pytest.raises(CorruptShardError):
            dataset[1]
        with pytest.raises(CorruptShardError):
            dataset[:]
        assert dataset[[0, 2]] == [{"n": 0}, {"n": 2}]
