"""Sources that are read in order as streams: written once on a node, taken over from processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CompositeShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
    SelectFields,
    ShardedSource,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    TextShardedSource,
    Transform,
)
from penstock.errors import BadSampleError, ConfigError, CorruptShardError, LockTimeoutError, TransformError
from penstock.sources import written
from tests.sources.cutting import plain
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def streamed(source: Any, **options: Any) -> StreamingDataset:
    return StreamingDataset(**{"streams": [Stream(source=source)], "shuffle": False, "batch_size": 5, **options})


def folders(places: Path) -> list[Path]:
    return sorted(path.parent for path in places.rglob("written.json"))


# --- Files ----------------------------------------------------------------------------------------------------


def make_files(folder: Path) -> None:
    for part in range(3):
        numbers = range(40 * part, 40 * part + 40)
        table = pa.table(
            {"id": list(numbers), "text": [f"t{n}" for n in numbers], "x": [list(range(n % 4)) for n in numbers]}
        )
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=15)
        with pa.OSFile(str(folder / f"{part}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=16)
        (folder / f"{part}.jsonl").write_text("".join(json.dumps({"id": n, "text": f"t{n}"}) + "\n\n" for n in numbers))
        (folder / f"{part}.json").write_text(json.dumps([{"id": n} for n in numbers]))
        (folder / f"{part}.csv").write_text("id,text\n" + "".join(f'{n},"a\n{n}"\n' for n in numbers))
        (folder / f"{part}.txt").write_text("".join(f"line {n}\r\n" for n in numbers))


# Whether a stream reads the files where they lie.
FILES: dict[str, tuple[Callable[[str], ShardedSource], bool]] = {
    "parquet": (lambda d: ParquetShardedSource(f"{d}/*.parquet"), True),
    "some columns, other order": (
        lambda d: ParquetShardedSource([f"{d}/2.parquet", f"{d}/0.parquet"], columns=["x", "id"]),
        True,
    ),
    "arrow": (lambda d: ArrowShardedSource(f"{d}/*.arrow", columns=["text"]), True),
    "jsonl": (lambda d: JsonShardedSource(f"{d}/*.jsonl"), True),
    "jsonl, one key": (lambda d: JsonShardedSource(d, columns=["id"]), True),
    "csv": (lambda d: CsvShardedSource(f"{d}/*.csv", types={"id": "int"}), True),
    "text": (lambda d: TextShardedSource(f"{d}/*.txt"), True),
    "text, another field": (lambda d: TextShardedSource(f"{d}/*.txt", text_field="line"), False),
    "a file twice": (lambda d: JsonShardedSource([f"{d}/1.jsonl", f"{d}/1.jsonl"]), False),
    "json array": (lambda d: JsonShardedSource(f"{d}/*.json"), False),
    "condition": (
        lambda d: ParquetShardedSource(f"{d}/*.parquet", filter=pc.field("id") > 50),
        False,
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_are_streams(kind: str, tmp_path: Path, places: Path) -> None:
    make_files(tmp_path)
    make, is_in_place = FILES[kind]
    source = make(str(tmp_path))
    assert plain(streamed(source)) == plain(source)
    assert bool(folders(places)) != is_in_place
    whole = plain(streamed(source, shuffle=True))
    assert whole != plain(source)
    begun = streamed(make(str(tmp_path)), shuffle=True)
    first = list(islice(iter(begun), 10))
    resumed = streamed(make(str(tmp_path)), shuffle=True)
    resumed.load_state_dict(begun.state_dict())
    assert plain([*first, *resumed]) == whole


def test_a_source_and_its_dataset_choose_columns_together(tmp_path: Path) -> None:
    make_files(tmp_path)
    source = ParquetShardedSource(f"{tmp_path}/*.parquet", columns=["id", "text"])
    assert next(iter(streamed(source, columns=["id"]))) == {"id": 0}
    with pytest.raises(ConfigError, match="columns= names x, but the source of a stream reads id, text only"):
        streamed(source, columns=["x"])
    mixed = StreamingDataset(streams=[Stream(source=source), Stream(source=JsonShardedSource(f"{tmp_path}/*.jsonl"))])
    assert plain(mixed) == plain([*source, *JsonShardedSource(f"{tmp_path}/*.jsonl")])


def test_files_are_shuffled_globally_by_the_loader(tmp_path: Path, places: Path) -> None:
    make_files(tmp_path)
    loader = AsyncDataLoader(JsonShardedSource(str(tmp_path)), 10, shuffle=True)
    numbers = [int(n) for batch in loader for n in batch["id"]]
    assert sorted(numbers) == list(range(120)) != numbers
    assert not folders(places)


def test_an_array_that_is_called_lines(tmp_path: Path) -> None:
    rows = [{"x": number} for number in range(20)]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows))
    source = JsonShardedSource(tmp_path / "a.jsonl")
    assert list(source) == rows
    with pytest.raises(CorruptShardError, match=r"a\.jsonl is one JSON array.*\(\.\.\., jsonl=False\)"):
        streamed(source)
    assert list(streamed(JsonShardedSource(tmp_path / "a.jsonl", jsonl=False))) == rows


# --- Stages ---------------------------------------------------------------------------------------------------


class Halves(Transform):
    """Keeps even numbers."""

    is_filter = True

    def __init__(self, word: str = "") -> None:
        self._word = word

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any] | None:
        return None if sample["id"] % 2 else {**sample, "word": self._word}

    def settings(self) -> dict[str, Any]:
        return {"word": self._word}


def documents(count: int = 60) -> MemoryShardedSource:
    samples = [{"id": n, "input_ids": np.arange(n % 9 + 1, dtype=np.int32)} for n in range(count)]
    return MemoryShardedSource(samples, num_shards=3, fingerprint=f"documents {count}")


STAGES: dict[str, Callable[[], ShardedSource]] = {
    "filtered": lambda: documents().transform(Halves()),
    "packed": lambda: PackedShardedSource(documents(), 16, 1, strategy="first_fit"),
    "mixed": lambda: MixedShardedSource({"a": documents(), "b": documents(30)}, stop_strategy="all_exhausted"),
    "limited": lambda: LimitedShardedSource(documents().transform(Halves()), 11),
    "all together": lambda: PackedShardedSource(
        CompositeShardedSource([documents().transform(Halves()).transform(SelectFields(["input_ids"])), documents(20)]),
        8,
        None,
    ),
}


@pytest.mark.parametrize("kind", STAGES)
def test_stages_are_streams(kind: str, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_SHARD_BYTES", 1000)
    monkeypatch.setattr(written, "_ROWS_AT_ONCE", 4)
    source = STAGES[kind]()
    assert plain(streamed(source)) == plain(source)
    [folder] = folders(places)
    assert not (folder / "progress.json").exists()
    stamp = (folder / "written.json").stat().st_mtime_ns
    loader = StreamingDataLoader(streamed(STAGES[kind](), shuffle=True), batch_size=5, num_workers=2, collate_fn=list)
    samples = [sample for batch in loader for sample in batch]
    assert sorted(map(repr, samples)) == sorted(map(repr, source))
    assert (folder / "written.json").stat().st_mtime_ns == stamp  # nothing was written again
    columns = streamed(source, columnar=True).read_columns(range(3))
    assert list(columns) == list(samples[0])


def test_other_settings_are_other_files(places: Path) -> None:
    for word in ("a", "b", "a"):
        assert next(iter(streamed(documents().transform(Halves(word)))))["word"] == word
    assert len(folders(places)) == 2


def test_columns_are_chosen_of_what_is_written() -> None:
    assert list(streamed(documents().transform(Halves()), columns=["id"]))[1] == {"id": 2}
    with pytest.raises(ConfigError, match="there is no column 'z': TransformedShardedSource gives id, input_ids, word"):
        streamed(documents().transform(Halves()), columns=["z"])


def test_values_come_back_as_they_were() -> None:
    samples: list[dict[str, Any]] = [
        {"n": n, "f": n / 3, "none": None, "b": b"\0%d" % n, "s": f"ü{n}" if n % 2 else None, "nan": float("nan")}
        | {"d": {"a": [n], "b": "x"}, "a": np.full((n % 3, 2, 3), n, np.float32), "h": np.arange(2, dtype=np.uint8)}
        for n in range(20)
    ]
    source = MemoryShardedSource(samples, fingerprint="values").transform(Same())
    got = list(streamed(source))
    assert [list(sample) for sample in got] == [list(sample) for sample in samples]
    for sample, expected in zip(got, samples, strict=True):
        for name in ("a", "h"):
            assert sample[name].dtype == expected[name].dtype
            assert np.array_equal(sample[name], expected[name])
        assert sample["nan"] != sample["nan"]
        for name in ("n", "f", "none", "b", "s"):
            assert sample[name] == expected[name]
        assert sample["d"]["b"] == "x"
        assert list(sample["d"]["a"]) == expected["d"]["a"]


class Same(Transform):
    is_filter = True  # so that rows have to be counted

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample

    def settings(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([{"x": 1}, {"x": 1, "y": 2}], "sample 1 has the fields x, y, but the first one has x.* select_fields"),
        ([{"x": 1}, {"x": "a"}], "field 'x' of the 2 samples from 0 on holds int, str"),
        ([{"x": {"a": 1}}, {"x": {"b": 1}}], "field 'x' of sample 0 would come back as"),
        ([{"x": object()}], "field 'x' of the 1 samples from 0 on holds object"),
        ([{"x": np.zeros(2)}, {"x": np.zeros((2, 2))}], "arrays differ"),
    ],
)
def test_what_would_come_back_changed_is_refused(samples: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(BadSampleError, match=text):
        streamed(MemoryShardedSource(samples, fingerprint=text).transform(Same()))


# --- Processes ------------------------------------------------------------------------------------------------


class FailsAt(Transform):
    """Fails, or waits for a file, at a sample."""

    is_filter = True

    def __init__(self, number: int, waits_for: str | None = None) -> None:
        self._number, self._waits_for = number, waits_for

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == self._number and self._waits_for is None:
            raise ValueError("no more")
        while sample["id"] == self._number and not Path(str(self._waits_for)).exists():
            time.sleep(0.01)
        return sample

    def settings(self) -> dict[str, Any]:
        return {}


def test_a_source_that_fails_is_an_error_and_goes_on_where_it_was(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "_SHARD_BYTES", 100)
    monkeypatch.setattr(written, "_ROWS_AT_ONCE", 4)
    for _ in range(2):
        with pytest.raises(TransformError, match="row 50 of"):
            streamed(MemoryShardedSource(list(documents()), fingerprint="x").transform(FailsAt(50)))
    [progress] = places.rglob("progress.json")
    assert sum(json.loads(progress.read_text())["rows"]) == 48
    damaged = [{"id": -1, "input_ids": np.zeros(1, np.int32)}] * 48  # these are not read again
    source = MemoryShardedSource([*damaged, *list(documents())[48:]], fingerprint="x").transform(FailsAt(-2))
    assert [sample["id"] for sample in streamed(source)] == list(range(60))


BUILD = textwrap.dedent("""
    import sys
    import numpy as np
    from penstock.sources import written
    from tests.sources.test_written import FailsAt, documents, streamed
    written._SHARD_BYTES, written._ROWS_AT_ONCE = 100, 4
    print([sample["id"] for sample in streamed(documents().transform(FailsAt(30, sys.argv[1])))] == list(range(60)))
""")


def start(gate: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(gate)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_writes_and_a_killed_one_is_taken_over_from(places: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    processes = [start(gate)]
    try:
        wait_for(lambda: any(json.loads(path.read_text())["rows"] == [4] * 5 for path in places.rglob("progress.json")))
        processes += [start(gate), start(gate)]
        time.sleep(0.3)
        assert all(process.poll() is None for process in processes)  # they wait for the first
        processes[0].kill()
        gate.touch()
        assert processes[0].wait() == -signal.SIGKILL
        for process in processes[1:]:
            out, errors = process.communicate(timeout=60)
            assert (out, process.returncode) == ("True\n", 0), errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    [folder] = folders(places)
    assert len(list(folder.glob("*.columns"))) == 15
    assert not list(folder.glob(".*.part"))


def test_a_process_that_waits_for_one_that_is_stuck_is_told(
    places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = start(tmp_path / "never")
    try:
        wait_for(lambda: any(places.rglob("progress.json")))
        os.kill(stuck.pid, signal.SIGSTOP)
        monkeypatch.setattr(written, "_PATIENCE_S", 0.2)
        monkeypatch.setattr(written, "_LOOK_EVERY_S", 0.05)
        with pytest.raises(LockTimeoutError, match="but has not read one for"):
            streamed(documents().transform(FailsAt(30, "never")))
    finally:
        stuck.kill()
        stuck.communicate()


def test_files_that_were_deleted_or_cut_are_written_again(places: Path) -> None:
    def xs() -> list[int]:
        return [sample["id"] for sample in streamed(documents().transform(Halves()))]

    expected = xs()
    [folder] = folders(places)
    (folder / "00000.columns").unlink()
    assert xs() == expected
    (folder / "00000.columns").write_bytes(b"cut")
    assert xs() == expected
    (folder / "written.json").write_text("{")
    assert xs() == expected
