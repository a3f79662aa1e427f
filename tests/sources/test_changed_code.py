"""The code of a transform changes: what is kept is made anew, and states go on, with a warning."""

from __future__ import annotations

import json
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock import (
    AsyncDataLoader,
    CompositeShardedSource,
    LimitedShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    Pipeline,
    ShardedSource,
    Stream,
    StreamingDataset,
    Transform,
)
from penstock.errors import ResumeError
from penstock.pipeline.caching import order_fingerprint_by
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def rows(count: int = 40, word: str = "rows") -> MemoryShardedSource:
    return MemoryShardedSource([{"x": n, "ids": [n] * 3} for n in range(count)], num_shards=2, fingerprint=word)


def once(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "x": sample["x"] * 10}


def mended(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "x": sample["x"] * 100}


class Once(Transform):
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "x": sample["x"] * 10}

    def settings(self) -> dict[str, Any]:
        return {}


class Mended(Once):
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "x": sample["x"] * 100}


Once.__qualname__ = Mended.__qualname__ = "Scale"  # the same class, before and after

READS: dict[str, Callable[[ShardedSource], ShardedSource]] = {
    "plain": lambda source: source,
    "filtered": lambda source: source.filter(bool),
    "limited": lambda source: LimitedShardedSource(source, 30),
    "composite": lambda source: CompositeShardedSource([rows(4), source]),
    "mixed": lambda source: MixedShardedSource({"a": source, "b": rows(5)}, stop_strategy="all_exhausted"),
    "packed": lambda source: PackedShardedSource(source, 8, None, input_field="ids", shuffle=False),
    "dataset": lambda source: StreamingDataset(streams=[Stream(source=source)]).as_source(),
}


@pytest.mark.parametrize("reads", READS.values(), ids=READS.keys())
@pytest.mark.parametrize(("first", "second"), [(once, mended), (Once(), Mended())], ids=["function", "class"])
def test_streams_of_sources_are_made_by_the_code_of_now(reads: Any, first: Any, second: Any) -> None:
    sources = [reads(rows().transform(each)) for each in (first, second)]
    read = [list(StreamingDataset(streams=[Stream(source=each)], batch_size=4)) for each in sources]
    for made, source in zip(read, sources, strict=True):
        assert [str(sample.get("x")) for sample in made] == [str(sample.get("x")) for sample in source]
    one, other = sources
    assert one.fingerprint != other.fingerprint
    assert one.order_fingerprint == other.order_fingerprint
    assert order_fingerprint_by(one, "combined") == one.order_fingerprint


@pytest.mark.parametrize("reads", READS.values(), ids=READS.keys())
@pytest.mark.parametrize(("first", "second"), [(once, mended), (Once(), Mended())], ids=["once", "Scale"])
@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle_buffer_size": 4}, {}], ids=str)
def test_states_go_on_in_the_code_of_now(
    request: pytest.FixtureRequest, reads: Any, first: Any, second: Any, options: Any
) -> None:
    def loader(transform: Any, source: ShardedSource | None = None) -> AsyncDataLoader:
        read = reads((source or rows()).transform(transform))
        return AsyncDataLoader(read, 4, seed=1, drop_last=False, collate_fn=list, prefetch_enabled=False, **options)

    begun = loader(first)
    list(islice(begun, 2))
    state = json.loads(json.dumps(begun.state_dict()))
    whole = list(loader(second))
    same, changed = loader(first), loader(second)
    same.load_state_dict(state)  # without a warning, which would be an error
    with pytest.warns(UserWarning, match=f"the code of {'Scale' if isinstance(first, Once) else 'mended'}, or what"):
        changed.load_state_dict(state)
    assert str(list(changed)) == str(whole[2:])
    state.pop("code")  # as states of before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changed.load_state_dict(state)
    assert str(list(changed)) == str(whole[2:])
    if "shuffle" not in options:
        with pytest.raises(ResumeError, match="another source"):
            loader(first, rows(word="other")).load_state_dict(state)


@pytest.mark.parametrize("code", [3, "x", [], [1], [["a"]], {"0": 3}, {"0": [[]]}, {"0": {"a": {}}}, None])
def test_states_with_other_words_about_code(code: Any) -> None:
    for options in ({"shuffle": True}, {}):
        loader = AsyncDataLoader(rows().map(once), 4, **options)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.load_state_dict({**loader.state_dict(), "code": code})
        assert next(iter(loader))


@pytest.mark.parametrize("cache", [{}, {"hash_fn": "content"}, {"hash_fn": "path"}], ids=str)
def test_caches_of_pipelines_are_made_by_the_code_of_now(tmp_path: Path, cache: dict[str, Any]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"x": n}) + "\n" for n in range(20)))

    def build(callback: Any) -> Any:
        files = {"name": "a", "data_files": str(tmp_path / "a.jsonl"), "format_callback": callback}
        config = {
            "datasets": [files],
            "cache": {"cache_dir": str(tmp_path / "cache"), **cache},
            "load": {"batch_size": 4},
        }
        return Pipeline.from_config(config).source().cache().load()

    assert [n for batch in build(once) for n in batch["x"].tolist()] == [10 * n for n in range(20)]
    begun, changed = build(once), build(mended)
    list(islice(begun, 2))
    assert [n for batch in changed for n in batch["x"].tolist()] == [100 * n for n in range(20)]
    changed = build(mended)
    with pytest.warns(UserWarning, match="the code of mended"):
        changed.load_state_dict(begun.state_dict())
    assert [n for batch in changed for n in batch["x"].tolist()] == [100 * n for n in range(8, 20)]
    folders = [each for each in (tmp_path / "cache").iterdir() if not each.name.startswith(".")]
    assert len(folders) == 2
    told = [json.loads((each / "_manifest.json").read_text())["code"][0][0] for each in folders]
    assert sorted(told) == ["mended", "once"]


def test_what_is_held_in_memory_keeps_the_name_of_its_code(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')

    def held(callback: Any) -> Any:
        files = {"name": "a", "data_files": str(tmp_path / "a.jsonl"), "format_callback": callback}
        config = {"datasets": [files], "cache": {"cache_type": "memory"}}
        return Pipeline.from_config(config).source().cache().build()

    assert held(once).fingerprint == held(once).fingerprint != held(mended).fingerprint
    assert held(once).order_fingerprint == held(mended).order_fingerprint
