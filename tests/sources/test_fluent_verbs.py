"""The verbs of sources and datasets: defined once, and the same of both."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from penstock import MDSWriter, MemoryShardedSource, ShardedSource, StreamingDataset
from penstock.sources.fluent_verbs import FluentVerbs
from penstock.transforms import AddField, ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = [{"id": number, "text": f"text {number}"} for number in range(20)]
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
CALLS: dict[str, Callable[[Any], Any]] = {
    "transform": lambda given: given.transform(AddField("lang", "en"), num_workers=2),
    "map": lambda given: given.map(lambda sample: {"id": sample["id"] * 2}, num_workers=2, worker_kind="thread"),
    "map_batches": lambda given: given.map_batches(lambda samples: samples[::3], 10),
    "flat_map": lambda given: given.flat_map(lambda sample: [sample] * (sample["id"] % 3)),
    "filter": lambda given: given.filter(lambda sample: sample["id"] > 10),
    "select": lambda given: given.select([3, 5, 8]),
    "take": lambda given: given.take(7),
    "skip": lambda given: given.skip(7),
    "shard": lambda given: given.shard(1, 3),
    "split": lambda given: given.split({"a": 0.5, "b": 0.5}, by="text")["a"],
    "select_fields": lambda given: given.select_fields(["text"]),
    "rename_fields": lambda given: given.rename_fields({"text": "content"}),
    "drop_fields": lambda given: given.drop_fields(["id"]),
    "apply_chat_template": lambda given: given.map(
        lambda sample: {"talk": [{"role": "user", "content": sample["text"]}]}
    ).apply_chat_template(TEMPLATE, "talk", output_field="told"),
}


def test_each_verb_is_defined_once() -> None:
    verbs = {name for name, value in vars(FluentVerbs).items() if inspect.isfunction(value)}
    assert verbs == {*CALLS, "numbered"}
    for kind in (ShardedSource, StreamingDataset):
        assert {name for name in verbs if getattr(kind, name) is not getattr(FluentVerbs, name)} == {
            "transform",
            "numbered",
        }
        assert inspect.signature(kind.transform).parameters == inspect.signature(FluentVerbs.transform).parameters


@pytest.mark.parametrize("verb", CALLS)
def test_a_dataset_does_what_a_source_does(tmp_path: Path, verb: str) -> None:
    with MDSWriter(out=str(tmp_path), columns={"id": "int", "text": "str"}) as writer:
        for row in ROWS:
            writer.write(row)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    made = list(CALLS[verb](MemoryShardedSource(ROWS)))
    assert list(CALLS[verb](dataset)) == made != ROWS
    dataset.close()
