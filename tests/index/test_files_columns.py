"""Indexes of files whose shards are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadIndexError
from penstock.index.catalog import parse_index

STORED = Path(__file__).parents[1] / "golden" / "fuzz" / "files_of_csv.json"


@pytest.mark.parametrize(
    "shard", [[], "abc", "", [1, 8, 48], [1, 8, 48, 40, 1], [1, 8, 48, 40, 1, "", 2], {"a": 1}, {}, None, 3]
)
def test_a_shard_that_is_none_is_an_error_of_the_index(shard: Any) -> None:
    document = json.loads(STORED.read_bytes())
    assert parse_index(json.dumps(document).encode(), "here").num_samples == 15
    document["files"][1]["shards"].append(shard)
    with pytest.raises(BadIndexError, match=r"^Index file at here"):
        parse_index(json.dumps(document).encode(), "here")
