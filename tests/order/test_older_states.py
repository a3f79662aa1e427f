"""States that were written before an order changed, and states past the last sample of MosaicML's padded epochs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import Stream, StreamingDataLoader, StreamingDataset
from penstock.data.passes import PassState
from penstock.data.run_state import RankNow
from penstock.errors import ResumeError
from penstock.order.cursor import Cursor
from penstock.order.world import seats
from tests.order.record_states import BATCH, MOSAIC, PADDED, SHARDS, UNSHUFFLED, WORLD, buffered, plan_run, rest_of
from tests.streaming import batch_ids, write_shards

STATES = Path(__file__).resolve().parents[1] / "golden" / "states"


def recorded(name: str) -> Any:
    return json.loads((STATES / f"{name}.json").read_text())


@pytest.mark.parametrize("lanes", [None, 1, 4, 8])
@pytest.mark.parametrize("method", ["random", "stratified", "device_per_stream"])
def test_epochs_without_shuffling_are_all_alike(method: str, lanes: int | None) -> None:
    shards = {"a": [300] * 10, "b": [130] * 7, "c": [40] * 3}
    settings = {"shuffle": False, "batching_method": method, "num_canonical_nodes": lanes}
    plan, _ = plan_run(settings, shards)
    first, *others = (rest_of(plan, Cursor(epoch)) for epoch in range(4))
    assert len(first) == 60 * BATCH
    assert others == [first] * 3


def test_a_state_of_an_unshuffled_epoch_goes_on_in_the_mix_that_it_began_with() -> None:
    old = recorded("unshuffled")
    plan, at = plan_run(UNSHUFFLED, SHARDS, old["state"])
    assert at == Cursor(2, 4 * BATCH)
    assert rest_of(plan, at) == old["rest"]
    fresh, _ = plan_run(UNSHUFFLED, SHARDS)
    assert rest_of(fresh, at) != old["rest"]
    later = Cursor(2, 9 * BATCH)  # and so do states that are saved on the way
    again, _ = plan_run(UNSHUFFLED, SHARDS, json.loads(json.dumps(plan.state_dict(later))))
    assert rest_of(again, later) == old["rest"][5 * BATCH :]
    following, _ = plan_run(UNSHUFFLED, SHARDS, plan.state_dict(Cursor(3, BATCH)))
    for each in (plan, again, following, fresh):
        assert rest_of(each, Cursor(3)) == rest_of(fresh, Cursor(0))


def test_states_of_now_go_on_in_the_order_of_now(tmp_path: Path) -> None:
    for name, sizes in (("a", [30] * 4), ("b", [13] * 3), ("c", [9])):
        write_shards(tmp_path / name, sizes, first_id=1000 * ord(name))

    def loader() -> StreamingDataLoader:
        streams = [Stream(local=str(tmp_path / name)) for name in "abc"]
        return StreamingDataLoader(StreamingDataset(streams=streams, batch_size=8, **UNSHUFFLED), batch_size=8)

    whole = loader()
    whole.set_epoch(2)
    batches, states = [], []
    for batch in whole:
        batches.append(batch["id"].tolist())
        states.append(json.loads(json.dumps(whole.state_dict())))
    following = batch_ids(whole)
    for number, state in enumerate(states, 1):
        resumed = loader()
        resumed.load_state_dict(state)
        assert batch_ids(resumed) == (batches[number:] or following), number


def test_the_rest_of_a_padded_epoch_is_that_of_mosaicml() -> None:
    num_past_end = 0
    for case in recorded("past_end"):
        shards = {str(number): stream["shards"] for number, stream in enumerate(case["streams"])}
        settings = {**MOSAIC, "batching_method": case["args"]["batching_method"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few samples are dealt twice, as the original does
            plan, at = plan_run(settings, shards, case["resume"])
            now = RankNow(next(iter(seats(WORLD))), BATCH // WORLD.num_ranks, plan, at)
            start = now.start(PassState(is_state_new=True))
        grid = np.array(case["ids"]).reshape(case["shape"])[0, :, 0]  # [rank][batch][slot]
        if (grid < 0).all():
            assert start == Cursor(2)
            continue
        assert start == Cursor(1, case["resume"]["sample_in_epoch"])
        for seat, theirs in zip(seats(WORLD), grid, strict=True):
            ours = plan.batches(start, range(plan.num_batches(start, seat, BATCH)), seat, BATCH)
            assert np.concatenate([*ours, np.empty(0, int)]).tolist() == theirs[theirs >= 0].tolist()
        num_past_end += case["resume"]["sample_in_epoch"] >= sum(map(sum, shards.values()))
    assert num_past_end >= 8


def test_a_state_past_the_last_sample_goes_on_as_in_the_release_that_wrote_it() -> None:
    state = recorded("mosaic")["state"]
    shards = {str(number): lengths for number, lengths in enumerate(PADDED[1])}
    settings = {**MOSAIC, "batching_method": "device_per_stream"}
    assert state["position"] == 8 * BATCH > sum(map(sum, PADDED[1]))
    assert plan_run(settings, shards, state)[1] == Cursor(2)
    within = {**state, "position": 7 * BATCH, "sample_in_epoch": 7 * BATCH}  # where nothing has changed
    assert plan_run(settings, shards, within)[1] == Cursor(1, 7 * BATCH)
    plan, _ = plan_run(settings, shards)
    at = Cursor(1, 8 * BATCH)
    assert plan_run(settings, shards, plan.state_dict(at))[1] == at


def test_a_state_in_the_weaker_shuffle_buffer_is_refused() -> None:
    state = recorded("buffer")["state"]
    loader = buffered()
    with pytest.raises(ResumeError, match=r"middle of epoch 0 by penstock 0\.1\.0\.dev0, .* with set_epoch"):
        loader.load_state_dict(state)
    loader.load_state_dict({**state, "epoch": 1, "position": None})  # between epochs there is nothing in it
    rest = [batch["x"].tolist() for batch in loader]
    fresh = buffered()
    fresh.set_epoch(1)
    assert rest == [batch["x"].tolist() for batch in fresh]
    assert rest != recorded("buffer")["rest"]
