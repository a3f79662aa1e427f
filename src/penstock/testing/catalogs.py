"""What every catalog must do, as a test class that plug-ins inherit."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import BadIndexError
from penstock.index.catalog import parse_index

# What stands in the place of a value in a file that another program wrote.
_STRANGE: tuple[Any, ...] = (None, -1, 1 << 70, 0.5, True, "", "../..", [], [None], {}, {"x": None})


class CatalogContract:
    """A subclass gives the index of some dataset, as the JSON object that its catalog understands."""

    def make_document(self) -> dict[str, Any]:
        """Return the object, with its field `catalog`."""
        raise NotImplementedError

    def test_an_index_has_shards(self) -> None:
        """The document is understood: samples in shards, shards in files."""
        index = parse_index(json.dumps(self.make_document()).encode(), "here")
        assert index.num_samples == sum(shard.num_samples for shard in index.shards) > 0
        assert all(shard.parts and shard.name for shard in index.shards)

    def test_what_makes_no_sense_is_refused_as_a_bad_index(self) -> None:
        """With any value missing, or another in its place, it is an index still, or a bad one; never another error."""
        for changed in _changes(self.make_document()):
            try:
                parse_index(json.dumps(changed).encode(), "here")
            except BadIndexError as error:
                assert "here" in str(error)  # noqa: PT017
            except Exception as error:
                raise AssertionError(f"not a BadIndexError, for {changed!r:.300}") from error


def _changes(value: Any) -> list[Any]:
    """Return a JSON value with each of its parts, at any depth, left out or replaced by something strange."""
    if isinstance(value, dict):
        left_out = [{name: part for name, part in value.items() if name != gone} for gone in value]
        return left_out + [{**value, name: new} for name, part in value.items() for new in _changes(part)]
    if isinstance(value, list) and value:
        return [[new, *value[1:]] for new in _changes(value[0])] + list(_STRANGE)
    return list(_STRANGE)
