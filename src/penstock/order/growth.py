"""A stream that has grown since a state was saved: recognised by its beginning, which must be as it was.

Rows are numbered in the order of arrival, so an append changes no number. A state has the fingerprint and the number of
samples of what was there when its epoch began: the epoch goes on over these, and the next one has all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ResumeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.order.native import StreamPlan
    from penstock.order.options import StreamShards
    from penstock.types import Int64Array

_MOST_TRIED = 1 << 10  # places at which files may have come in between, and empty shards at the end
_CHOOSE_AGAIN = 2  # windows are chosen anew for so many times the shards


def streams_then(
    streams: Sequence[StreamShards], fingerprints: Mapping[str, str], sizes: Mapping[str, int], *, may_grow: bool
) -> list[StreamShards]:
    """Return the streams as they were when a state was saved that has these fingerprints and numbers of samples."""
    found = []
    for stream in streams:
        known, size = fingerprints.get(stream.name, stream.fingerprint), sizes.get(stream.name, 0)
        then = stream if known == stream.fingerprint else _beginning(stream, known, size)
        if then is None:
            raise _changed(stream, known, size)
        if then is not stream and not may_grow:
            num_shards = len(stream.lengths) - len(then.lengths)
            raise ResumeError(
                f"stream {stream.name!r} has grown since the state was saved: {stream.num_samples - size:,} rows in"
                f' {num_shards:,} shards came after its {size:,} rows. Pass grow="epoch" to the StreamingDataset: the'
                " epoch of the state goes on over the rows that it began with, and the next one has all"
            )
        found.append(then)
    return found


def plan_later(now: StreamPlan, then: StreamPlan) -> StreamPlan:
    """Plan the epochs from which on a stream has all its rows: seed and lanes stay, and windows for most streams."""
    windows = dict(now.windows)
    for stream, before in zip(now.streams, then.streams, strict=True):
        if len(stream.lengths) < _CHOOSE_AGAIN * len(before.lengths):
            windows[stream.name] = then.windows[stream.name]
    return replace(now, options=then.options, num_lanes=then.num_lanes, windows=windows)


def _beginning(stream: StreamShards, fingerprint: str, size: int) -> StreamShards | None:
    """Return the first shards of a stream that have so many samples, if they have this fingerprint."""
    totals = np.cumsum(stream.lengths)
    first, end = (int(np.searchsorted(totals, size, side=side)) for side in ("left", "right"))
    candidates = range(0 if not size else first + 1, min(end, first + _MOST_TRIED) + 1)  # the last ones may be empty
    parts = (_part(stream, np.arange(count)) for count in candidates)
    return next((part for part in parts if part is not None and part.fingerprint == fingerprint), None)


def _part(stream: StreamShards, shards: Int64Array) -> StreamShards | None:
    """Return some shards of a stream as a stream of these alone, all others behind them; None if files cannot tell."""
    if stream.content and stream.files is None:
        return None
    lengths = stream.lengths[shards]
    return replace(
        stream,
        lengths=lengths,
        joined=np.delete(stream.lengths, shards),
        sizes=None if stream.sizes is None else stream.sizes[shards],
        content=stream.files.content_of(shards) if stream.files is not None and stream.content else "",
        stretches=None if stream.stretches is None else stream.stretches[stream.stretches < lengths.sum()],
    )


def _changed(stream: StreamShards, fingerprint: str, size: int) -> ResumeError:
    for begin, end in _runs(stream.lengths, stream.num_samples - size):
        part = _part(stream, np.delete(np.arange(len(stream.lengths)), np.s_[begin:end]))
        if stream.files is not None and part is not None and part.fingerprint == fingerprint:
            return ResumeError(
                f"the file {stream.files.file_of(begin)} of stream {stream.name!r} came after the state was saved, but"
                " its name sorts before files that were there: name new files so that they come last, or write an"
                " index (MDSWriter with append=True does)"
            )
    return ResumeError(
        f"the shards of stream {stream.name!r} have changed since the state was saved ({size:,} samples then,"
        f" {stream.num_samples:,} now), and what was there is not their beginning: resume with the same data, or start"
        ' without the state. Only rows that are appended can join a run, with grow="epoch"'
    )


def _runs(lengths: Int64Array, size: int) -> Iterator[tuple[int, int]]:
    """Yield runs of shards, but the last ones, that have so many samples together."""
    totals = np.cumsum([0, *lengths])
    begins = np.arange(min(len(lengths), _MOST_TRIED))
    ends = np.searchsorted(totals, totals[begins] + size) if size > 0 else begins
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if begin < end < len(lengths) and totals[end] - totals[begin] == size:
            yield begin, end
