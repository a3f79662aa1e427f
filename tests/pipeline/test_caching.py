"""The cache stage: the same samples, made once, by any number of processes, killed or not, here or in a store."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    AsyncDataLoader,
    MemoryShardedSource,
    Pipeline,
    PipelineConfig,
    ShardInfo,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from penstock.errors import CacheError, ColumnTypeError, ConfigError, EmptyDatasetError, ExtraColumnError
from penstock.pipeline.caching import BackgroundBuild, CachedShardedSource, follow_plan
from penstock.publish.engines import ProcessPool, ThisProcess
from penstock.publish.materialise import PartDone, PartsTarget, materialise
from penstock.sources.cutting import plan_cuts
from penstock.sources.tokens.source import TokenizeTransform
from tests.pipeline.deadly import Deadly
from tests.pipeline.texts import same, settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server

SMALL = {"part_size": 1000, "max_shard_size": 2000}  # a part for each file, with some shards


def cached(data: Path, cache: dict[str, Any] | None = None, **further: Any) -> Pipeline:
    chosen = {"cache_dir": f"{data}/cache", **(cache or {})}
    return Pipeline.from_config(settings(data, cache=chosen, **further)).source().tokenize().cache()


def plainly(data: Path) -> list[Any]:
    return list(Pipeline.from_config(settings(data)).source().tokenize().build())


def folders(data: Path) -> set[str]:
    return {path.name for path in (data / "cache").iterdir() if not path.name.startswith(".")}


# --- Keys -----------------------------------------------------------------------------------------------------


def test_cached_samples_are_the_same_and_made_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plainly(data)
    assert same(list(cached(data).build()), plain)
    assert len(folders(data)) == 2

    def never(*_: Any) -> None:
        raise AssertionError("tokenized again")

    with monkeypatch.context() as patch:
        patch.setattr(TokenizeTransform, "__call__", never)
        assert same(list(cached(data).build()), plain)
    # Other settings, another tokenizer or other files are other keys.
    cached(data, tokenize={"max_length": 9}).build()
    assert len(folders(data)) == 4
    text = (data / "tokenizer.json").read_text()
    (data / "tokenizer.json").write_text(text.replace('"w1"', '"w1x"'))
    assert not same(list(cached(data).build()), plain)
    assert len(folders(data)) == 6
    with (data / "web-0.jsonl").open("a") as file:
        file.write('\n{"id": "new", "text": "w1"}')
    assert sum(1 for _ in cached(data).build()) == 401
    assert len(folders(data)) == 7


def test_a_manifest_says_what_is_cached(data: Path) -> None:
    cached(data, SMALL).build()
    (folder, _) = sorted((data / "cache").glob("[0-9a-f]*"))
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert manifest["source"].startswith("files-")
    assert manifest["source"] in manifest["fingerprint"]
    assert manifest["transforms"] in manifest["fingerprint"]
    assert len(manifest["tokenizers"]) == 1
    assert sum(manifest["rows_of_parts"]) == manifest["num_rows"]
    assert len(manifest["rows_of_parts"]) == 2


@pytest.mark.parametrize(
    ("how", "after_a_touch", "after_a_move", "after_a_change"),
    [("combined", 2, 3, 4), ("path", 1, 2, 2), ("content", 1, 1, 2)],
)
def test_files_are_told_apart_as_asked_for(
    data: Path, how: str, after_a_touch: int, after_a_move: int, after_a_change: int
) -> None:
    (data / "web-1.jsonl").unlink()

    def count(name: str) -> int:
        config = settings(data, cache={"cache_dir": f"{data}/cache", "hash_fn": how})
        config["datasets"] = [{"data_files": f"{data}/{name}", "num_rows": 50}]
        assert sum(1 for _ in Pipeline.from_config(config).source().cache().build()) == 50
        return len(folders(data))

    assert count("web-0.jsonl") == 1
    os.utime(data / "web-0.jsonl", (1, 1))
    assert count("web-0.jsonl") == after_a_touch
    (data / "web-0.jsonl").rename(data / "moved.jsonl")
    assert count("moved.jsonl") == after_a_move
    text = (data / "moved.jsonl").read_text()
    (data / "moved.jsonl").write_text(text.replace("w1", "w2"))
    assert count("moved.jsonl") == after_a_change
    if how == "content":
        with pytest.raises(ConfigError, match="hash_fn='content' is for files"):
            config = {"datasets": [{"data_files": f"{data}/moved.jsonl"}], "streaming": False}
            Pipeline.from_config(config).source().cache({"hash_fn": how}).build()


def test_caching_as_settings_say(data: Path) -> None:
    config = settings(data, cache={"cache_dir": f"{data}/cache", "compression": "zstd", "max_shard_size": 3000})
    config["datasets"][0]["cache_enabled"] = False
    config["datasets"][1]["cache_path"] = f"{data}/own"
    Pipeline.from_config(config).source().cache().build()
    assert not (data / "cache").exists()
    (folder,) = (data / "own").glob("[0-9a-f]*")
    assert len(list(folder.glob("000000/*.zstd"))) > 2
    off = settings(data, tokenize={"cache_tokenized": False}, cache={"cache_dir": f"{data}/cache"})
    Pipeline.from_config(off).source().tokenize().cache().build()
    with pytest.warns(UserWarning, match="does nothing"):
        Pipeline.from_config(settings(data)).source().cache({"enabled": False, "cache_dir": f"{data}/cache"}).build()
    assert not (data / "cache").exists()
    memory = Pipeline.from_config(settings(data)).source().cache({"cache_type": "memory"}).build()
    for path in data.glob("*.jsonl"):
        path.unlink()
    assert sum(1 for _ in memory) == 400


def test_what_expires_is_made_anew(data: Path) -> None:
    cached(data).build()
    made = {path: path.stat().st_mtime_ns for path in data.glob("cache/*/_manifest.json")}
    cached(data, {"disk_cache_expiry": 3600}).build()
    assert {path: path.stat().st_mtime_ns for path in made} == made
    cached(data, {"disk_cache_expiry": 1e-9}).build()
    assert all(path.stat().st_mtime_ns > before for path, before in made.items())
    assert same(list(cached(data).build()), plainly(data))


@pytest.mark.parametrize(
    ("kind", "megabytes", "is_held"), [("hierarchical", 100, True), ("hierarchical", 0, False), ("disk", 100, False)]
)
def test_small_caches_are_held_in_memory(data: Path, kind: str, megabytes: int, is_held: bool) -> None:
    source = cached(data, {"cache_type": kind, "memory_cache_size": megabytes}).build()
    first = list(source)
    assert isinstance(first, list)
    for sample in first:
        sample["input_ids"][:] = -1  # changes of a sample are not seen by the next reader
    reads: list[str] = []

    def note(self: Any, name: str, rows: Any) -> Any:
        reads.append(name)
        return read(self, name, rows)

    read = CachedShardedSource.read_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachedShardedSource, "read_rows", note)
        assert same(list(source), plainly(data))
    assert bool(reads) != is_held


def test_what_has_no_fingerprint_is_not_cached(data: Path) -> None:
    config = settings(data, cache={"cache_dir": f"{data}/cache"})
    lock = threading.Lock()
    config["datasets"][0]["format_callback"] = lambda sample: {**sample, "id": lock.locked()}
    with pytest.raises(ConfigError, match="no fingerprint.* has no digest, because of 'lock': cannot pickle"):
        Pipeline.from_config(config).source().cache().build()
    assert not (data / "cache").exists()


# --- What it holds --------------------------------------------------------------------------------------------


def test_a_cache_is_a_dataset(data: Path) -> None:
    source = cached(data, SMALL).build()
    dataset = StreamingDataset(streams=[Stream(source=source)], shuffle=True, batch_size=8)  # type: ignore[arg-type]
    lengths = Counter(len(sample["input_ids"]) for sample in dataset)
    assert lengths == Counter(len(sample["input_ids"]) for sample in source)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=2, collate_fn=len)
    assert sum(loader) == 400
    every = [StreamingDataset(local=str(data / "cache" / name), batch_size=8) for name in folders(data)]
    assert sum(len(each) for each in every) == 400
    assert Counter(len(sample["input_ids"]) for each in every for sample in each) == lengths


def write(place: Path, source: Any, part_size: int | str = "16MB") -> CachedShardedSource:
    tasks, target = follow_plan(source, PartsTarget(str(place)), part_size)
    materialise(tasks, target, ThisProcess())
    return CachedShardedSource(target, len(tasks.cuts), "word")


def test_a_cache_of_another_version_is_made_anew(data: Path) -> None:
    cached(data).build()
    for name in ("_manifest.json", "_plan.json"):
        for path in data.glob(f"cache/*/{name}"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
            if name == "_plan.json":  # of a cache that is not whole
                (path.parent / "_manifest.json").unlink()
        assert same(list(cached(data).build()), plainly(data))


def test_an_error_in_a_cached_sample_says_what_to_do(data: Path) -> None:
    with (data / "books-1.jsonl").open("a") as file:
        file.write('\n{"id": "late", "text": "w1", "more": 1}')
    with pytest.raises(ExtraColumnError, match=r"column 'more' .* in a transform before cache\(\)"):
        Pipeline.from_config(settings(data)).source().cache({"cache_dir": f"{data}/cache", **SMALL}).build()


def test_parts_without_samples(tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(100)]
    source = MemoryShardedSource(rows, num_shards=10, fingerprint="x")
    some = write(tmp_path / "some", source.filter(lambda row: 35 <= row["n"] < 62 or row["n"] == 99), part_size=1)
    assert [row["n"] for row in some] == [*range(35, 62), 99]
    assert some.shard_lengths() == [0, 0, 0, 5, 10, 10, 2, 0, 0, 1]
    with pytest.raises(EmptyDatasetError, match="there is no sample"):
        write(tmp_path / "none", source.filter(lambda row: False))


def test_all_parts_have_the_same_columns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"n": n} if n < 90 else {"n": n, "late": 1} for n in range(100)]
    with pytest.raises(ExtraColumnError, match="row 0: column 'late'"):
        write(tmp_path / "cache", MemoryShardedSource(rows, num_shards=10), part_size=1)


def test_values_that_are_missing_or_differ_in_type_are_kept(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"score": 1, "note": None, "lang": None, "tokens": np.arange(0, dtype=np.int32)},
        {"score": 0.5, "note": None, "lang": "en", "tokens": np.arange(3, dtype=np.int32)},
        {"score": None, "note": None, "lang": "de", "tokens": np.arange(0, dtype=np.int32)},
    ]
    found = list(write(tmp_path / "cache", MemoryShardedSource(rows)))
    assert [type(row["score"]) for row in found] == [int, float, type(None)]
    assert same(found, rows)
    late = MemoryShardedSource([{"n": n if n < 300 else None} for n in range(400)])
    with pytest.raises(ColumnTypeError, match=r"row 300: column 'n'"):
        write(tmp_path / "late", late)


@given(sizes=st.lists(st.one_of(st.none(), st.integers(0, 300)), max_size=40), max_bytes=st.integers(1, 500))
def test_parts_are_runs_of_shards_of_about_a_size(sizes: list[int | None], max_bytes: int) -> None:
    infos = [ShardInfo(number, str(number), None, size) for number, size in enumerate(sizes)]
    parts = plan_cuts(infos, max_bytes)
    runs = [(part.first, part.end) for part in parts]
    assert [number for first, end in runs for number in range(first, end)] == list(range(len(sizes)))
    for first, end in runs:
        whole = [size for size in sizes[first:end] if size is not None]
        assert end == first + 1 or (len(whole) <= end - first and sum(whole) <= max_bytes + 1e-6)
    for (first, _), (_, end) in itertools.pairwise(runs):  # no two neighbours would have fitted together
        known = sizes[first:end]
        assert None in known or sum(size or 0 for size in known) > max_bytes


# --- Who builds it --------------------------------------------------------------------------------------------


def test_any_number_of_processes_of_any_engine_make_the_same_files(data: Path) -> None:
    made = []
    for workers, engine in ((0, "local"), (2, "local"), (2, "dask")):
        root = data / f"cache-{workers}-{engine}"
        cached(data, {**SMALL, "cache_dir": str(root), "num_workers": workers, "engine": engine}).build()
        files = {path.relative_to(root): path.read_bytes() for path in root.rglob("shard.*")}
        assert len(files) > 10
        made.append(files)
    assert made[0] == made[1] == made[2]


BUILD = """
import sys, time
from penstock import Pipeline
from penstock.sources.tokens.source import TokenizeTransform
quick = TokenizeTransform._finish
if len(sys.argv) > 2:
    TokenizeTransform._finish = lambda *given: [time.sleep(0.01), quick(*given)][1]
Pipeline.from_config(sys.argv[1]).source().tokenize().cache().build()
"""


def begin_building(data: Path, *how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUILD, str(data / "pipeline.json"), *how])


def wait_until(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_cache_that_was_killed_or_is_built_by_others_goes_on(data: Path) -> None:
    cache = {"cache_dir": f"{data}/cache", **SMALL}
    config = settings(data, cache=cache, tokenize={"batch_size": 1})
    PipelineConfig.from_dict(config).save_file(data / "pipeline.json")
    process = begin_building(data, "slowly")
    wait_until(lambda: list(data.glob("cache/*/.*.saving/_unfinished.json")), process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (ledger,) = data.glob("cache/*/.*.saving/_unfinished.json")
    shards = [shard["files"][0]["name"] for shard in json.loads(ledger.read_text())["shards"]]
    before = {name: (ledger.parent / name).stat().st_mtime_ns for name in shards}
    several = [begin_building(data) for _ in range(3)]
    assert [process.wait(60) for process in several] == [0, 0, 0]
    part = ledger.parent.with_name(ledger.parent.name[1:].removesuffix(".saving"))
    assert {name: (part / name).stat().st_mtime_ns for name in shards} == before  # whole shards are kept
    assert len(folders(data)) == 2
    assert not list(data.glob("cache/*/.*"))
    assert same(list(cached(data, SMALL, tokenize={"batch_size": 1}).build()), plainly(data))
    assert len(folders(data)) == 2


def test_a_process_of_the_pool_that_dies_is_replaced(tmp_path: Path) -> None:
    made = follow_plan(Deadly(tmp_path / "dead"), PartsTarget(str(tmp_path / "cache")), 1)
    done: list[PartDone] = []
    materialise(*made, ProcessPool(2), done.append)
    assert (tmp_path / "dead").exists()
    assert sorted(part.number for part in done) == [0, 1, 2, 3]
    again = follow_plan(Deadly(None), PartsTarget(str(tmp_path / "other")), 1)
    with pytest.raises(CacheError, match="died 3 times in a row"):
        materialise(*again, ProcessPool(2), done.append)


BUILD_AND_DIE = """
import signal, sys
from penstock import MemoryShardedSource
from penstock.pipeline.caching import follow_plan
from penstock.publish.engines import ThisProcess
from penstock.publish.materialise import PartsTarget, materialise
def die(event, arguments):
    if event == "os.rename" and str(arguments[1]) == f"{sys.argv[1]}/{sys.argv[2]}":
        signal.raise_signal(signal.SIGKILL)
sys.addaudithook(die)
source = MemoryShardedSource([{"n": n} for n in range(40)], num_shards=4, fingerprint="numbers")
tasks, target = follow_plan(source, PartsTarget(sys.argv[1]), 1)
materialise(tasks, target, ThisProcess())
target.finish(4)
"""


@pytest.mark.parametrize("name", ["_plan.json", "index.json"])
def test_what_a_killed_builder_left_is_removed_by_the_next_one(tmp_path: Path, name: str) -> None:
    build = [sys.executable, "-c", BUILD_AND_DIE, str(tmp_path / "cache")]
    assert subprocess.run([*build, name], check=False).returncode == -signal.SIGKILL
    assert list(tmp_path.rglob("*.part"))
    subprocess.run([*build, "none"], check=True)
    assert not list(tmp_path.rglob("*.part"))


def test_an_error_in_a_process_of_the_pool_is_raised_here(data: Path) -> None:
    with (data / "books-1.jsonl").open("a") as file:
        file.write('\n{"id": "no text"}')
    with pytest.raises(Exception, match="no field 'text' to tokenize") as raised:
        cached(data, {**SMALL, "num_workers": 2}).build()
    assert "books-1.jsonl" in str(raised.value)


# --- Read while it is built -----------------------------------------------------------------------------------


class Gated(MemoryShardedSource):
    """Its shards come when they are let go, and one of them may fail."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__([{"n": n} for n in range(40)], num_shards=4, fingerprint="gated")
        self.gates = [threading.Event() for _ in range(4)]
        self.gates[0].set()
        self._fails_at = fails_at
        self.is_planned = False  # first rows are looked at before: of shards that have come, and no others

    def _read_chunks(self, shard_name: str, row: int) -> Any:
        number = self.shard_number(shard_name)
        assert self.gates[number].wait(30 if self.is_planned else 0)
        if number == self._fails_at:
            raise ZeroDivisionError("in shard 2")
        return super()._read_chunks(shard_name, row)


def reading_while_building(source: Any, place: Path) -> CachedShardedSource:
    tasks, target = follow_plan(source, PartsTarget(str(place)), 1)
    source.is_planned = True

    def run(on_part: Any, is_stopped: Any) -> None:
        materialise(tasks, target, ThisProcess(), on_part, is_stopped)

    return CachedShardedSource(target, len(tasks.cuts), "gated", builder=BackgroundBuild(run, "here", 4))


def test_samples_are_read_while_others_are_made(tmp_path: Path) -> None:
    gated = Gated()
    source = reading_while_building(gated, tmp_path / "cache")
    samples = iter(source)
    assert [row["n"] for row in samples.take(10)] == list(range(10))
    state = samples.state_dict()
    assert not (tmp_path / "cache" / "index.json").exists()
    gated.gates[1].set()
    assert [row["n"] for row in samples.take(7)] == list(range(10, 17))
    for gate in gated.gates:
        gate.set()
    assert [row["n"] for row in samples] == list(range(17, 40))
    assert source.shard_lengths() == [10, 10, 10, 10]
    whole = CachedShardedSource(PartsTarget(str(tmp_path / "cache")), 4, "gated")
    resumed = iter(whole)
    resumed.load_state_dict(state)  # a state from then fits the whole
    assert [row["n"] for row in resumed] == list(range(10, 40))
    assert whole.fingerprint == source.fingerprint
    assert list(pickle.loads(pickle.dumps(source))) == list(whole)


def test_a_reader_hears_that_a_part_cannot_come(tmp_path: Path) -> None:
    gated = Gated(fails_at=2)
    source = reading_while_building(gated, tmp_path / "cache")
    for gate in gated.gates:
        gate.set()
    samples = iter(source)
    assert len(samples.take(20)) == 20
    with pytest.raises(ZeroDivisionError, match="in shard 2"):
        samples.take(1)
    with pytest.raises(ZeroDivisionError):
        len(source)
    other = Gated()
    stopped = reading_while_building(other, tmp_path / "other")
    first = iter(stopped).take(10)
    assert len(first) == 10
    stopped.close()
    with pytest.raises(CacheError, match="was stopped"):
        stopped.read_rows(stopped.shard_names[3], [0])
    for gate in other.gates:
        gate.set()


def test_a_pipeline_that_does_not_wait_gives_the_same(data: Path) -> None:
    whole = cached(data, {**SMALL, "wait": False, "num_workers": 1}).load({"batch_size": 1, "prefetch_enabled": False})
    batches = list(whole)
    expected = [{name: value[None] for name, value in row.items()} for row in plainly(data)]
    assert same(batches, expected)
    again = cached(data, {**SMALL, "wait": False}).load({"batch_size": 1})
    again.load_state_dict(whole.state_dict())
    assert isinstance(again.build(), AsyncDataLoader)
    assert same(list(again), expected)  # the next epoch
    again.close()


# --- In a store -----------------------------------------------------------------------------------------------


def test_a_cache_in_a_bucket(data: Path, moto: S3Server) -> None:
    moto.make_bucket("caches")
    cache = {"cache_dir": "s3://caches/tokens", **SMALL, "compression": "zstd"}
    config = settings(data, cache=cache, storage_options={"s3": moto.options})

    def make(**how: Any) -> Any:
        return Pipeline.from_config(config).source().tokenize().cache({**cache, **how})

    plain = plainly(data)
    source = make(num_workers=2).build()
    assert same(list(source), plain)
    assert same(list(make().build()), plain)
    assert source.has_random_rows
    urls = {each.place for each in make().get_data().values()}
    assert sum(len(StreamingDataset(remote=url, storage_options=moto.options, batch_size=8)) for url in urls) == 400
    assert same(list(make(disk_cache_expiry=1e-9, wait=False).build()), plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_of_one_large_file_has_many_parts(
    data: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.formats.lines.cut._PIECE", 256)
    lines = [json.dumps({"text": f"w{n % 60} " * (n % 40)}) for n in range(2000)]
    (data / "web-0.jsonl").write_text("\n".join(lines))
    cache = {"cache_dir": str(tmp_path / "cache"), "part_size": 20_000, "max_shard_size": 8_000, "num_workers": workers}
    config = settings(data, cache=cache)
    plain = list(Pipeline.from_config(config).source().tokenize().build())
    source = Pipeline.from_config(config).source().tokenize().cache().build()
    assert same(list(source), plain)
    assert len(source.shard_names) > 8  # type: ignore[union-attr]
