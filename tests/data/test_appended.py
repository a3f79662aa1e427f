"""A dataset that was appended to while a job was away: the epoch under way goes on, the next one has all rows."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import ResumeError
from tests.streaming import batch_ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_mds(folder: Path, first: int, count: int) -> None:
    with MDSWriter(out=folder, columns={"id": "int"}, size_limit=200, append=folder.exists()) as writer:
        for number in range(first, first + count):
            writer.write({"id": number})


def write_lines(folder: Path, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": number}) for number in range(first, first + count)]
    (folder / f"{first:06}.jsonl").write_text("\n".join(lines) + "\n")


WRITERS: dict[str, Callable[[Path, int, int], None]] = {"mds": write_mds, "jsonl": write_lines}


def open_loader(folder: Path, rank: int = 0, num_ranks: int = 1, workers: int = 0, **options: Any) -> Any:
    options = {"grow": "epoch", **options}
    if "streams" not in options:
        options["remote"] = str(folder)
    dataset = StreamingDataset(shuffle=True, rank=rank, world_size=num_ranks, num_nodes=num_ranks, **options)
    return StreamingDataLoader(dataset, batch_size=4, num_workers=workers)


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_join_with_the_next_epoch(tmp_path: Path, kind: str) -> None:
    folder, write = tmp_path / "data", WRITERS[kind]
    write(folder, 0, 70)
    before = open_loader(folder, workers=1)
    seen = [number for batch in batch_ids(islice(before, 7)) for number in batch]
    state = json.loads(json.dumps(before.state_dict()))
    uncut = open_loader(folder)
    uncut.load_state_dict(state)
    rest = batch_ids(uncut)

    write(folder, 70, 50)
    refused = open_loader(folder, grow=None)
    refused.load_state_dict(state)
    with pytest.raises(ResumeError, match=r"has grown .* 50 rows .* grow=\"epoch\""):
        next(iter(refused))
    resumed = open_loader(folder, workers=1)
    resumed.load_state_dict(state)
    assert batch_ids(resumed) == rest
    assert sorted(seen + [number for batch in rest for number in batch]) == list(range(70))
    late = json.loads(json.dumps(resumed.state_dict()))  # at the end of the epoch, which is that of the old rows
    write(folder, 120, 10)
    resumed = open_loader(folder)
    resumed.load_state_dict(late)
    assert sorted(number for batch in batch_ids(resumed) for number in batch) == list(range(130))


def test_a_state_under_way_carries_what_its_epoch_has_on_any_world(tmp_path: Path) -> None:
    """Appended to twice within one epoch, on 1, then 3, then 2 ranks; a stream behind the one that grows stays."""
    web, books = tmp_path / "web", tmp_path / "books"
    write_mds(web, 0, 60)
    write_lines(books, 1000, 30)
    state, seen = None, []
    for num_ranks, more in ((1, 40), (3, 25), (2, 0)):
        loaders = []
        for rank in range(num_ranks):
            streams = [Stream(local=str(web), name="web"), Stream(remote=str(books), name="books")]
            loaders.append(open_loader(tmp_path, rank, num_ranks, streams=streams))
            if state is not None:
                loaders[-1].load_state_dict(state)
        for loader in loaders:
            seen += [number for batch in batch_ids(islice(loader, None if more == 0 else 5)) for number in batch]
        states = [json.dumps(loader.state_dict(), sort_keys=True) for loader in loaders]
        assert len(set(states)) == 1
        state = json.loads(states[0])
        if more:
            assert state["sizes"] == {"web": 60, "books": 30}
            write_mds(web, 60 if more == 40 else 100, more)
    assert sorted(set(seen)) == [*range(60), *range(1000, 1030)]
    assert len(seen) - len(set(seen)) <= 1  # what ranks are padded with
    nexts = [number for loader in loaders for batch in batch_ids(loader) for number in batch]
    assert sorted(set(nexts)) == [*range(125), *range(1000, 1030)]


def test_samples_are_found_by_number_while_the_old_epoch_goes_on(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", 0, 40)
    dataset = StreamingDataset(local=tmp_path / "data", grow="epoch")
    first = list(islice(dataset, 10))
    state = dataset.state_dict()
    write_mds(tmp_path / "data", 40, 20)
    grown = StreamingDataset(local=tmp_path / "data", grow="epoch")
    grown.load_state_dict(state)
    rest = iter(grown)
    assert next(rest)["id"] == 10
    assert grown[55]["id"] == 55
    assert [*ids_of(first), 10, *ids_of(rest)] == list(range(40))
    assert ids_of(grown) == list(range(60))
