"""Encodings of saved rows are chosen by some first rows, not by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ExtraColumnError
from penstock.publish.mds_files import MDSSaveFormat, infer_columns

if TYPE_CHECKING:
    from pathlib import Path


def test_plain_values_that_differ_in_type_are_json() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": None, "c": "x", "d": None}, {"a": 0.5, "b": None, "c": "y", "d": "z"}]
    assert infer_columns(rows) == {"a": "json", "b": "json", "c": "str", "d": "json"}


def test_shards_and_the_index_of_all(tmp_path: Path) -> None:
    form, shards = MDSSaveFormat(None, 1 << 20), []
    form.begin([{"n": 1}])
    for number in range(2):
        shard = form.open(tmp_path, number)
        shard.add([{"n": number}, {"n": number + 10}], 2 * number)
        shards.append(shard.finish())
        assert shard.names == [f"shard.{number:05}.mds"]
    assert form.finish(tmp_path, shards) == ["index.json"]
    assert [each["samples"] for each in json.loads((tmp_path / "index.json").read_text())["shards"]] == [2, 2]
    with pytest.raises(ExtraColumnError, match="row 7: column 'm' is not in the first row"):
        form.open(tmp_path, 2).add([{"n": 1, "m": 2}], 7)
