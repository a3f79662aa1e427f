"""Compressed files of lines are gone into at a frame: from a state, and at a row whose place is known."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import subprocess
import sys
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import AsyncDataLoader, CsvShardedSource, JsonShardedSource, ShardedSource, TextShardedSource
from penstock.codecs.compress import reading_codec
from penstock.errors import CorruptShardError, ObjectChangedError, ResumeError, SampleIndexError
from penstock.formats import content
from penstock.formats.content import RowPlace, RowPlaces
from penstock.formats.lines import cut
from penstock.scan.objects import ScannedObject
from penstock.sources.files import text_sources
from tests.codecs.test_stream import join_blocks
from tests.servers.faults import FaultProxy, Faults
from tests.sources.cutting import check_cut_anywhere, plain
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.sources.iterators import SampleIterator
    from penstock.types import Span
    from tests.servers.nginx import WebServer


def skippable(data: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "zst": lambda data: skippable(b"made by hand") + reading_codec("zstd").compress(data),
    "gz": partial(gzip.compress, mtime=0),
    "bz2": bz2.compress,
    "xz": lambda data: lzma.compress(data) + bytes(4),  # with padding, as streams may have
    "br": reading_codec("br").compress,
}
NUM = 60
WORDS = ["short", "with, comma", 'with "quotes"', "with\nnewline", "with\r\nreturn", ""]
CSV_ROWS: list[dict[str, Any]] = [{"n": str(n), "text": WORDS[n % 6] * (n % 7)} for n in range(NUM)]
JSON_ROWS: list[dict[str, Any]] = [{"n": n, "text": f"täxt {n}" * (n % 9)} for n in range(NUM)]


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


KINDS: dict[str, tuple[type[ShardedSource], bytes, list[dict[str, Any]]]] = {
    "a.jsonl": (
        JsonShardedSource,
        "".join(json.dumps(row) + "\n" * (1 + row["n"] % 3) for row in JSON_ROWS).encode(),
        JSON_ROWS,
    ),
    "a.json": (JsonShardedSource, json.dumps(JSON_ROWS, ensure_ascii=False, indent=1).encode(), JSON_ROWS),
    "a.csv": (
        CsvShardedSource,
        b"\xef\xbb\xbfn,text\r\n" + "".join(f"{row['n']},{quoted(row['text'])}\r\n" for row in CSV_ROWS).encode(),
        CSV_ROWS,
    ),
    "a.txt": (
        TextShardedSource,
        "".join(f"{row['text']}\r\n" for row in JSON_ROWS).encode(),
        [{"text": row["text"]} for row in JSON_ROWS],
    ),
}


@pytest.fixture(autouse=True)
def _places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every frame and every row count, as those of large files do."""
    monkeypatch.setattr(content, "_FRAMES_APART_BYTES", 1)
    monkeypatch.setattr(content, "_ROWS_APART_BYTES", 1)
    monkeypatch.setattr(cut, "_PIECE", 50)
    monkeypatch.setattr(cut, "_ROWS_AT_ONCE", 3)


@pytest.fixture
def stored_from(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note where reading of stored bytes begins."""
    begins: list[int] = []
    read = ScannedObject._pieces

    def noted(opened: ScannedObject, span: Span) -> Iterator[bytes]:
        begins.append(span.begin)
        return read(opened, span)

    monkeypatch.setattr(ScannedObject, "_pieces", noted)
    return begins


def in_frames(data: bytes, codec: str, num_frames: int) -> list[bytes]:
    """Compress data in frames that end anywhere, also in the middle of a row or of a character; one of them empty."""
    if codec == "br":
        return [CODECS[codec](data)]
    cuts = [len(data) * number // num_frames for number in range(num_frames + 1)]
    frames = [CODECS[codec](data[begin:end]) for begin, end in pairwise(cuts)]
    return [*frames[:2], CODECS[codec](b""), *frames[2:]] if num_frames > 1 else frames


def through_json(samples: SampleIterator) -> Any:
    return json.loads(json.dumps(samples.state_dict()))


# --- Exact -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("num_frames", [1, 9])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", KINDS)
def test_every_row_and_every_place(name: str, codec: str, num_frames: int, tmp_path: Path) -> None:
    make, data, rows = KINDS[name]
    path = tmp_path / f"{name}.{codec}"
    path.write_bytes(b"".join(in_frames(data, codec, num_frames)))
    known: Any = make(str(path))  # type: ignore[call-arg]
    assert plain(check_cut_anywhere(known.__iter__, places=range(0, len(rows) + 1, 7))) == plain(rows)
    assert plain(check_cut_anywhere(partial(known.open_shard, str(path)), places=[0, 5, NUM])) == plain(rows)
    for row in range(len(rows) + 1):
        assert plain(known.open_shard_at_row(str(path), row=row)) == plain(rows[row:]), row
    for row in range(0, len(rows) + 1, 13):
        unknown: Any = make(str(path))  # type: ignore[call-arg]
        assert plain(unknown.open_shard_at_row(str(path), row=row)) == plain(rows[row:]), row
        gone_there = pickle.loads(pickle.dumps(known)).open_shard_at_row(str(path), row=row)
        assert plain(gone_there) == plain(rows[row:])
    for source in (known, make(str(path))):  # type: ignore[call-arg]
        with pytest.raises(SampleIndexError, match=f"row {NUM + 1} .* does not exist: it has {NUM} rows"):
            list(source.open_shard_at_row(str(path), row=NUM + 1))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("codec", sorted(CODECS.keys() - {"br"}))
@pytest.mark.parametrize("name", KINDS)
def test_states_begin_at_the_nearest_frame(name: str, codec: str, tmp_path: Path, stored_from: list[int]) -> None:
    make, data, rows = KINDS[name]
    path = tmp_path / f"{name}.{codec}"
    frames = in_frames(data, codec, 9)
    path.write_bytes(b"".join(frames))
    begins = [sum(map(len, frames[:number])) for number in range(len(frames))]
    samples = make(str(path)).open_shard(str(path))  # type: ignore[call-arg]
    used = set()
    for row in range(len(rows)):
        state = through_json(samples)
        stored, before = state.get("frame", [0, 0])
        if name != "a.json":  # whose states count from the beginning of what was parsed at once
            assert before <= state["byte"]
            assert state["byte"] - before <= len(data) // 9 + 2
        assert stored in begins
        if row:
            resumed = make(str(path)).open_shard(str(path))  # type: ignore[call-arg]
            resumed.load_state_dict(state)
            assert next(resumed) == rows[row]
            assert stored_from[-1] == stored
            used.add(stored)
        # What earlier versions saved has no frame.
        if row % 9 == 5:
            old = make(str(path)).open_shard(str(path))  # type: ignore[call-arg]
            old.load_state_dict({key: value for key, value in state.items() if key != "frame"})
            assert plain(old) == plain(rows[row:])
        next(samples)
    assert len(used) >= (8 if name != "a.json" else 4)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3 << 20)), max_size=400), st.lists(st.integers(0, 2000)))
def test_places_are_few_and_the_right_ones(steps: list[tuple[int, int]], asked: list[int]) -> None:
    places, row, byte = RowPlaces(), 0, 0
    noted = {0: 0}
    for more_rows, more_bytes in steps:
        row, byte = row + more_rows, byte + more_bytes
        noted[row] = byte
        places.note(RowPlace(row, byte, row))
    for place, at in list(noted.items())[::-1]:  # again, in another order, as another reader may come by
        places.note(RowPlace(place, at, place))
    for each in asked:
        found = places.before(each)
        assert found is None or (found.row <= each and noted[found.row] == found.byte)
    assert len(places._places) <= content._MOST_PLACES
    if byte and byte < 100 << 20:
        found = places.before(row)
        assert found is not None
        assert byte - found.byte < 4 << 20


# --- Only what is needed is fetched --------------------------------------------------------------------------------

BIG_ROWS = 4000


def noise_lines() -> list[bytes]:
    import random

    source = random.Random(0)
    return [b"%d %b\n" % (number, source.randbytes(750).hex().encode()) for number in range(BIG_ROWS)]


def write_frames(path: Path, codec: str, num_frames: int) -> int:
    """Write 3 MB of rows that do not shrink to less than half; give the number of bytes that are stored."""
    data = b"".join(noise_lines())
    path.write_bytes(b"".join(in_frames(data, codec, num_frames)))
    return path.stat().st_size


@pytest.mark.parametrize("codec", sorted(CODECS.keys() - {"br"}))
def test_only_the_frames_from_there_on_are_fetched(codec: str, nginx: WebServer) -> None:
    size = write_frames(nginx.files / f"b.txt.{codec}", codec, 30)
    rows = [line[:-1].decode() for line in noise_lines()]
    with FaultProxy(nginx.url, Faults()) as proxy:
        url = f"{proxy.url}/b.txt.{codec}"
        source = TextShardedSource(url)
        samples = source.open_shard(url)
        samples.take(3700)
        state = through_json(samples)
        assert [row["text"] for row in samples] == rows[3700:]
        fresh = TextShardedSource(url)
        resumed = fresh.open_shard(url)
        resumed.load_state_dict(state)
        before = proxy.counts["bytes"]
        assert [row["text"] for row in resumed] == rows[3700:]
        assert proxy.counts["bytes"] - before < size * (0.075 + 0.04)  # those rows, and a frame
        before = proxy.counts["bytes"]
        assert [row["text"] for row in source.open_shard_at_row(url, row=3700)] == rows[3700:]
        assert proxy.counts["bytes"] - before < size * 0.35  # of 6 MB, every MB a place is known


def test_a_file_of_one_frame_is_unpacked_from_its_beginning(tmp_path: Path, stored_from: list[int]) -> None:
    path = tmp_path / "b.txt.gz"
    write_frames(path, "gz", 1)
    samples = TextShardedSource(str(path)).open_shard(str(path))
    samples.take(3000)
    state = through_json(samples)
    assert state.keys() == {"row", "byte", "line", "file"}
    stored_from.clear()
    resumed = TextShardedSource(str(path)).open_shard(str(path))
    resumed.load_state_dict(state)
    assert next(resumed)["text"].startswith("3000 ")
    assert stored_from == [0]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("codec", ["", *sorted(CODECS.keys() - {"br"})])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_an_index_beside_the_files_tells_where_rows_are(
    name: str, codec: str, tmp_path: Path, stored_from: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.formats.lines import scan
    from penstock.scan import objects

    monkeypatch.setattr(scan, "SPAN_BYTES", 200)
    monkeypatch.setattr(scan, "_SMALLEST_SPAN_BYTES", 1)
    monkeypatch.setattr(objects, "_FRAME_BYTES", 1)
    monkeypatch.setattr(text_sources, "_LARGE_BYTES", 1)
    make, data, rows = KINDS[name]
    path = tmp_path / f"{name}.{codec}".rstrip(".")
    frames = in_frames(data, codec, 15) if codec else [data]
    path.write_bytes(b"".join(frames))
    leave_index(tmp_path, path.name)
    gone_to = set()
    for row in range(len(rows) + 1):
        stored_from.clear()
        source = make(str(path))  # type: ignore[call-arg]
        assert plain(source.open_shard_at_row(str(path), row=row)) == plain(rows[row:]), row
        gone_to.add(stored_from[-1])
    # Files of xz are one shard: there may be padding between their streams.
    assert len(gone_to) >= (1 if codec == "xz" else 4)
    # Of another version of the file it tells nothing.
    path.write_bytes(b"".join(in_frames(data + data.splitlines(True)[-1], codec, 3) if codec else [data * 2]))
    stored_from.clear()
    again = make(str(path)).open_shard_at_row(str(path), row=20)  # type: ignore[call-arg]
    assert next(again) == rows[20]
    assert stored_from[-1] in (0, len(b"\xef\xbb\xbfn,text\r\n"))


def leave_index(folder: Path, name: str) -> None:
    from penstock.index.files_json import STORED_NAME
    from penstock.scan.make_index import Scan
    from penstock.storage.local import LocalStore

    store = LocalStore(folder)
    index = Scan(store=store, url=str(folder)).make_index([store.stat(name)], {})
    (folder / STORED_NAME).write_bytes(index)


@pytest.mark.parametrize("index", [b"", b"{}", b"[1]", b"{", b'{"catalog": "files", "version": 1, "files": [7]}'])
def test_a_broken_index_is_not_used(index: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "_LARGE_BYTES", 1)
    make, data, rows = KINDS["a.jsonl"]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(data))
    (tmp_path / ".penstock-index").write_bytes(index)
    assert list(make(str(path)).open_shard_at_row(str(path), row=50)) == rows[50:]  # type: ignore[call-arg]


@pytest.mark.parametrize("details", [b"x", b"[-1,1]", b"[9999,1]", b"[0,0]", b"[0,1,99999]", b"[1.5,1]"])
def test_wrong_details_of_an_index_are_not_used(
    details: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock.formats.lines import scan
    from penstock.index import files_json
    from penstock.scan import objects

    monkeypatch.setattr(scan, "SPAN_BYTES", 200)
    monkeypatch.setattr(scan, "_SMALLEST_SPAN_BYTES", 1)
    monkeypatch.setattr(objects, "_FRAME_BYTES", 1)
    monkeypatch.setattr(text_sources, "_LARGE_BYTES", 1)
    make, data, rows = KINDS["a.jsonl"]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join(in_frames(data, "gz", 15)))
    leave_index(tmp_path, path.name)
    index = tmp_path / files_json.STORED_NAME
    [file] = files_json.load_files(json.loads(index.read_bytes()), "here")
    shards = (file.shards[0], *(shard._replace(details=details) for shard in file.shards[1:]))
    index.write_bytes(files_json.dump_files([file._replace(shards=shards)], {}))
    assert list(make(str(path)).open_shard_at_row(str(path), row=50)) == rows[50:]  # type: ignore[call-arg]
    assert "is not used" in caplog.text


# --- A new process, hostile states, other versions -------------------------------------------------------------------

PROGRAM = """
import json, sys
from penstock import AsyncDataLoader, CsvShardedSource
loader = AsyncDataLoader(CsvShardedSource(sys.argv[1]), batch_size=64, prefetch_workers=3)
loader.load_state_dict(json.loads(sys.argv[2]))
print(json.dumps([batch["n"] for batch in loader]))
"""


def numbers_in_frames() -> bytes:
    data = b"n,text\n" + b"".join(b'%d,"%b\n"\n' % (n, b"x" * 300) for n in range(2000))
    return b"".join(in_frames(data, "zst", 12))


def test_another_process_goes_on_from_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zst"
    path.write_bytes(numbers_in_frames())
    loader = AsyncDataLoader(CsvShardedSource(str(path)), batch_size=64)
    whole = [batch["n"] for batch in loader]
    begun = AsyncDataLoader(CsvShardedSource(str(path)), batch_size=64)
    batches = iter(begun)
    for _ in range(20):
        next(batches)
    state = json.dumps(begun.state_dict())
    assert '"frame": [' in state
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), state], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [list(numbers) for numbers in whole[20:]]


@pytest.mark.parametrize("codec", ["", *CODECS])
@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_does_not_fit_is_an_error_that_names_the_file(name: str, codec: str, tmp_path: Path) -> None:
    make, data, _ = KINDS[name]
    path = tmp_path / f"{name}.{codec}".rstrip(".")
    path.write_bytes(b"".join(in_frames(data, codec, 9)) if codec else data)
    size = path.stat().st_size
    state = {"row": 30, "byte": 900, "line": 30} | ({"is_in_array": True} if name == "a.json" else {})
    wrong: list[Any] = [{"byte": 10**9}, {"frame": "x"}, {"frame": [1]}, {"frame": [-1, 0]}, {"frame": [True, 0]}]
    if codec:
        frames = [[size, 0], [size + 1, 0], [10**15, 0], [0, 901], [7, 800], [size // 2 + 1, 100], [size - 3, 0]]
        wrong += [{"frame": frame} for frame in frames]
    if name != "a.json":
        wrong += [{"row": -1}, {"row": "x"}, {"byte": -5}, {"line": 1.5}, {"row": True}]
    for each in wrong:
        samples = make(str(path)).open_shard(str(path))  # type: ignore[call-arg]
        if "frame" in each and not codec and isinstance(each["frame"], list):
            continue
        with pytest.raises(ResumeError, match=path.name) as caught:
            samples.load_state_dict({**state, **each})
            next(samples)
        assert len(str(caught.value)) < 600


def test_a_file_that_is_another_by_now_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zst"
    path.write_bytes(numbers_in_frames())
    source = CsvShardedSource(str(path))
    loader = AsyncDataLoader(source, batch_size=64)
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    state = loader.state_dict()
    samples = source.open_shard(str(path))
    samples.take(1500)
    place = samples.state_dict()
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 1
    path.write_bytes(damaged)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ObjectChangedError, match=r"a\.csv\.zst"):
        list(source.open_shard_at_row(str(path), row=1500))
    resumed = source.open_shard(str(path))
    resumed.load_state_dict(place)
    with pytest.raises(ObjectChangedError, match=r"a\.csv\.zst"):
        next(resumed)
    with pytest.raises(ResumeError):
        AsyncDataLoader(CsvShardedSource(str(path)), batch_size=64).load_state_dict(state)
    # A new source reads what is there now, and finds the fault where it is.
    now = CsvShardedSource(str(path)).open_shard(str(path))
    with pytest.raises(ResumeError, match=r"a\.csv\.zst has changed since the state was saved"):
        now.load_state_dict(place)
    now.load_state_dict({name: value for name, value in place.items() if name != "file"})
    with pytest.raises((CorruptShardError, ResumeError), match=r"a\.csv\.zst"):
        list(now)


# --- Blocks of .xz files ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", KINDS)
def test_blocks_of_one_stream_are_gone_to(
    name: str, tmp_path: Path, stored_from: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_FAR_BYTES", 0)
    make, data, rows = KINDS[name]
    path = tmp_path / f"{name}.xz"
    size = len(data) // 9
    path.write_bytes(join_blocks([data[at : at + size] for at in range(0, len(data), size)]))
    source: Any = make(str(path))  # type: ignore[call-arg]
    samples = source.open_shard(str(path))
    gone_to = set()
    for row in range(len(rows)):
        state = through_json(samples)
        assert "frame" not in state
        resumed: Any = make(str(path))  # type: ignore[call-arg]
        resumed = resumed.open_shard(str(path))
        stored_from.clear()
        resumed.load_state_dict(state)
        assert plain(resumed) == plain(rows[row:]), row
        gone_to.add(stored_from[-1])
        next(samples)
        assert plain(source.open_shard_at_row(str(path), row=row)) == plain(rows[row:])
    assert len(gone_to) >= (8 if name != "a.json" else 1)
    beyond = source.open_shard(str(path))
    with pytest.raises(ResumeError, match=r"\.xz ends before byte (1000000000|999999999) "):
        beyond.load_state_dict({**state, "byte": 10**9})
        next(beyond)
