"""Arrays of JSON, read some bytes at a time: at any cut, from any place, and with faults in them."""

from __future__ import annotations

import codecs
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import JsonShardedSource
from penstock.errors import CorruptShardError, SampleIndexError
from penstock.formats.content import FileContent
from penstock.formats.files import FilesReading
from penstock.formats.lines.json_values import ValueBlocks
from penstock.sources.iterators import SampleIterator
from penstock.sources.shard_info import FileStage, FileVersion
from tests.sources.cutting import check_cut_anywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


TEXT = st.text(alphabet='a"\\]},ü😀\n')
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=3), VALUES | st.lists(VALUES, max_size=3), max_size=3), max_size=8)


def pieces(data: bytes, size: int, begin: int) -> Iterator[bytes]:
    return iter([data[at : at + size] for at in range(begin, len(data), size)])


class Stored:
    """A file whose chunks are made as they are asked for."""

    num_bytes = 1 << 40

    def __init__(self, open_at: Callable[[int], Iterator[bytes]]) -> None:
        self.chunks = open_at

    def read(self, begin: int, end: int) -> bytes:
        raise AssertionError(f"bytes {begin} to {end} are not needed")


def read(data: bytes, size: int = 1000, row: int = 0, **settings: Any) -> SampleIterator:
    return samples_of(Stored(partial(pieces, data, size)), row, **settings)


def samples_of(stored: Any, row: int = 0, **settings: Any) -> SampleIterator:
    blocks = ValueBlocks(FileContent("a.json", stored, None), FilesReading(**settings), row)
    return SampleIterator(FileStage(blocks, FileVersion("a.json", 0, None)))


@given(
    OBJECTS, st.sampled_from(["array", "indented array", "objects"]), st.booleans(), st.booleans(), st.integers(1, 50)
)
def test_it_is_read_however_it_is_cut_and_from_every_place(
    rows: list[dict[str, Any]], form: str, is_ascii: bool, has_mark: bool, size: int
) -> None:
    if form == "objects":
        text = " ".join(json.dumps(row, ensure_ascii=is_ascii, indent=1) for row in rows)
    else:
        text = json.dumps(rows, ensure_ascii=is_ascii, indent=2 if form == "indented array" else None)
    data = (codecs.BOM_UTF8 if has_mark else b"") + text.encode()
    assert check_cut_anywhere(partial(read, data, size)) == rows
    for row in range(len(rows) + 1):
        assert list(read(data, size, row=row)) == rows[row:]
    with pytest.raises(SampleIndexError, match=f"it has {len(rows)} rows"):
        next(read(data, size, row=len(rows) + 1))


@pytest.mark.parametrize(
    ("text", "before", "message"),
    [
        ('[{"a": 1} {"a": 2}]', 1, "a.json, line 1: item 1 is not JSON: expecting ','"),
        ('[{"a": 1},\n\n {"a": x}, {"a": 3}]', 1, "a.json, line 3: item 1 is not JSON: Expecting value"),
        ('[{"a": 1}]\n{"a": 2}', 1, "a.json, line 2: .* continues after its array"),
        ('[{"a": 1}, {"a": 2', 1, "a.json, line 1: item 1 is not JSON"),
        ('[{"a": 1},', 1, "a.json is cut off in its array, after 1 items"),
        ('[{"a": 1}, 2]', 1, "a.json: item 1 is not a JSON object, but of type int"),
        ("\x00\x01\x02", 0, "a.json, line 1: item 0 is not JSON"),
        ("[" * 100_000, 0, "nested too deeply|not JSON|not a JSON object"),
    ],
)
def test_faults_are_named_after_what_comes_before_them(text: str, before: int, message: str) -> None:
    for size in (1, 10_000) if len(text) < 1000 else (10_000,):
        samples = read(text.encode(), size)
        assert samples.take(9) == [{"a": 1}][:before] if before else True
        with pytest.raises(CorruptShardError, match=message):
            next(samples)


def test_values_that_are_no_objects_are_left_out_if_asked() -> None:
    data = b'[1, {"a": 1}, [], {"a": 2}, "x", null]'
    assert check_cut_anywhere(partial(read, data, 5, on_error="skip")) == [{"a": 1}, {"a": 2}]
    assert list(read(data, row=2, on_error="skip")) == [{"a": 2}]  # rows are those of the file


def test_a_fault_does_not_have_the_rest_of_the_file_read() -> None:
    given = 0

    def content(_: int) -> Iterator[bytes]:
        nonlocal given
        yield b'[{"a": 1}, {"a": wrong}'
        for _ in range(1000):
            given += 1
            yield b', {"a": 1}' * 10

    samples = samples_of(Stored(content))
    assert next(samples) == {"a": 1}
    with pytest.raises(CorruptShardError, match="item 1"):
        next(samples)
    assert given < 10


def test_a_state_is_a_seek_and_small_values_take_no_longer_in_large_pieces(tmp_path: Path) -> None:
    rows = [{"n": n, "text": "ü" * 40} for n in range(40_000)]  # 4 MB are read at once: quadratic work would show
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, ensure_ascii=False))
    samples = JsonShardedSource(str(path)).open_shard(str(path))
    assert samples.take(39_000) == rows[:39_000]
    state = samples.state_dict()
    assert state["byte"] > path.stat().st_size * 0.95
    # What lies before the place need not even be JSON any more.
    data = path.read_bytes()
    opened = Stored(lambda begin: iter([data[begin:]]) if begin else iter([b"x"]))
    resumed = samples_of(opened)
    resumed.load_state_dict({name: value for name, value in state.items() if name != "file"})
    assert list(resumed) == rows[39_000:]
