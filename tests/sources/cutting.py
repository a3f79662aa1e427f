"""The law of every iterator: cut after any sample, go on in another iterator, and nothing is lost or twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.sources.iterators import SampleIterator


def plain(samples: Iterable[Any]) -> str:
    """Samples as text, so that those with arrays can be compared."""
    return json.dumps(list(samples), default=lambda value: value.tolist(), sort_keys=True)


def check_cut_anywhere(
    open_samples: Callable[[], SampleIterator], places: Iterable[int] | None = None, limit: int | None = None
) -> list[Any]:
    """Cut after each sample, singly and many at a time, and compare with the uncut; gives all samples."""
    whole = open_samples().take(limit) if limit is not None else list(open_samples())
    if limit is None:
        assert plain(open_samples().take(len(whole) + 1)) == plain(whole)
    for place in places if places is not None else range(len(whole) + 1):
        first = open_samples()
        before = first.take(place // 2)
        before += [next(first) for _ in range(place - place // 2)]
        state = json.loads(json.dumps(first.state_dict()))
        second = open_samples()
        second.take(3)  # what it gave before a state is loaded does not matter
        second.load_state_dict(state)
        assert json.loads(json.dumps(second.state_dict())) is not None
        rest = second.take(len(whole) - place)
        assert plain(before + rest) == plain(whole), place
        if limit is None:
            assert not second.take(1)
        first.close()
        second.close()
    return whole
