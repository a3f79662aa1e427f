from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamingLeRobotDataset
from penstock.episodes.feature_stats import join_stats
from penstock.errors import BadIndexError
from tests.episodes.build import Layout, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

V2 = Layout(is_v3=False, has_video=False)


def stats_of(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": values.mean(axis=0).tolist(),
        "std": values.std(axis=0).tolist(),
        "count": [len(values)],
    }


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_joined_statistics_are_those_of_all_values(lengths: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(sum(lengths), 3))
    parts = np.split(values, np.cumsum(lengths)[:-1])
    joined, whole = join_stats([{"action": stats_of(part)} for part in parts])["action"], stats_of(values)
    for name in whole:
        assert np.allclose(joined[name], whole[name])


def test_a_dataset_with_statistics_of_each_episode_has_them_joined(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", V2)
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        assert dataset.meta.stats is None
    lines = [{"episode_index": e, "stats": {"action": stats_of(np.full((2, 2), float(e)))}} for e in range(5)]
    (tmp_path / "set/meta/episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        assert dataset.meta.stats is not None
        assert dataset.meta.stats["action"]["mean"] == [2.0, 2.0]


def test_statistics_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", V2)
    (tmp_path / "set/meta/episodes_stats.jsonl").write_text('{"episode_index": 0, "stats": {"action": {"mean": [1]}}}')
    with pytest.raises(BadIndexError, match="cannot be joined"):
        StreamingLeRobotDataset(root=tmp_path / "set")
