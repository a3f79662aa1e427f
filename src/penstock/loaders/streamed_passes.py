"""Passes over a source that is read in order: shards, buffer, ranks and batches, and the state after each batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.data.identity import warn_of_other_code
from penstock.errors import ResumeError
from penstock.order.keys import hash_key, permutation
from penstock.order.state_fields import COUNT, check_fields, shown
from penstock.sources.interleaving import InterleavedStage, RangeReading, RowRange, SplitStage, divide
from penstock.sources.iterators import SampleIterator
from penstock.sources.shuffling import ShuffledStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from penstock.blocks.block import Block
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.sources.base import ShardedSource

_KIND = "penstock-stream"
_VERSION = 2
_WEAKER_BUFFER = 1  # the version of states of penstock 0.1.0.dev0, whose shuffle buffer gave another order
_FIELDS = {
    "kind": (_KIND,),
    "version": (_VERSION, _WEAKER_BUFFER),
    "epoch": COUNT,
    "position?": dict,
    "settings": dict,
    "source?": str,
    "files?": str,
}
_ROWS_IN_TURN = 256
_NO_LIMIT_ROWS = 1 << 20
_TURNS = 8  # that each open shard has, at least, among as many rows as the buffer holds


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a source is read; a state fits only the settings that it was taken with."""

    batch_size: int
    drop_last: bool
    buffer_rows: int | None
    buffer_bytes: int | None
    interleave: int
    seed: int
    rank: int
    num_ranks: int
    pads: bool

    @property
    def is_shuffled(self) -> bool:
        """Whether there is a buffer."""
        return self.buffer_rows is not None or self.buffer_bytes is not None

    @property
    def order(self) -> dict[str, Any]:
        """All that the order of samples depends on."""
        return {name: value for name, value in asdict(self).items() if name not in ("batch_size", "drop_last")}


class StreamedPasses:
    """Reads a source pass after pass, each the next epoch."""

    def __init__(self, source: ShardedSource, settings: StreamSettings) -> None:
        self._source, self._settings = source, settings
        self._epoch = 0  # of the position
        self._position: Position | None = None  # None: the beginning
        self._begins_next = False  # whether the next pass is another epoch
        self._current: object = None  # the pass that moves the position: the last that has begun
        self._is_resumed = False  # whether this pass began where a state says

    def begin(self) -> tuple[object, Callable[[Executor | None], Iterator[tuple[Block, Position]]]]:
        """Begin the next pass. One that was left for another, or for a state, moves nothing any more."""
        if self._begins_next:
            self._epoch, self._position = self._epoch + 1, None
        self._begins_next = True
        position = None if self._position is None else self._position()
        self._current, self._is_resumed = object(), position is not None
        return self._current, partial(self._rows, self._epoch, position)

    def deliver(self, begun: object, position: Position) -> None:
        """Move to the position after a batch."""
        if self._current is begun:
            self._position = position

    def finish(self, begun: object, *, is_empty: bool) -> bool:
        """Move to the next epoch; return whether the pass is over: not if a state was from after its last batch."""
        if self._current is not begun:
            return True
        self._epoch, self._position, self._begins_next = self._epoch + 1, None, False
        return not (is_empty and self._is_resumed)

    def num_batches(self) -> int:
        """Count the batches of an epoch."""
        settings = self._settings
        total = len(self._source)
        share = -(-total // settings.num_ranks) if settings.pads else total // settings.num_ranks
        return share // settings.batch_size if settings.drop_last else -(-share // settings.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. A state that waits to be resumed in just this epoch stays."""
        if epoch != self._epoch or self._begins_next:
            self._go_to(epoch, None)

    def state_dict(self) -> dict[str, Any]:
        """Describe the position after the batch delivered last."""
        return {
            "kind": _KIND,
            "version": _VERSION,
            "epoch": self._epoch,
            "position": None if self._position is None else self._position(),
            "settings": self._settings.order,
            "source": self._source.order_fingerprint,
            "code": [[*each[:2]] for each in self._source.code_digests],
            "files": None if (files := self._source.files_version) is None else files.digest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass."""
        check_fields(state, _FIELDS, "an AsyncDataLoader over a source")
        ours = self._settings.order
        theirs = state["settings"]
        different = [
            f"{name}={shown(theirs.get(name))}, here {ours[name]!r}" for name in ours if theirs.get(name) != ours[name]
        ]
        if different:
            raise ResumeError(f"the state was taken with other settings: {'; '.join(different)}")
        if state["version"] == _WEAKER_BUFFER and self._settings.is_shuffled and state.get("position") is not None:
            raise ResumeError(
                f"the state was saved in the middle of epoch {state['epoch']} by penstock 0.1.0.dev0, whose shuffle"
                " buffer gave another order than this one: finish the epoch with that release, or begin it again, or"
                " the next one, with set_epoch"
            )
        if self._source.files_version is not None:
            self._source.files_version.check(state.get("files"))
        now = self._source.order_fingerprint
        if None not in (state.get("source"), now) and state["source"] != now:
            raise ResumeError("the state belongs to another source: its fingerprint differs")
        warn_of_other_code(state.get("code"), [[*each[:2]] for each in self._source.code_digests])
        position = state.get("position")
        self._go_to(state["epoch"], None if position is None else partial(dict, position))

    def _go_to(self, epoch: int, position: Position | None) -> None:
        self._epoch, self._position, self._begins_next, self._current = epoch, position, False, None

    # --- Samples --------------------------------------------------------------------------------------------

    def _rows(self, epoch: int, position: State | None, executor: Executor | None) -> Iterator[tuple[Block, Position]]:
        samples = SampleIterator(self._open(epoch, executor, takes_turns=self._took_turns(position)))
        if position is not None:
            samples.load_state_dict(position)
        settings = self._settings
        try:
            while len(rows := samples.take_block(settings.batch_size)):
                if len(rows) == settings.batch_size or not settings.drop_last:
                    yield rows, samples.position()
        finally:
            samples.close()

    def _took_turns(self, position: State | None) -> bool:
        """Return True if a state is of ranks that took samples in turn, as long as their source knew no lengths."""
        inner = (position or {}).get("samples") if self._settings.is_shuffled else position
        return isinstance(inner, dict) and "group" in inner

    def _open(self, epoch: int, executor: Executor | None, *, takes_turns: bool) -> OpenStage:
        settings = self._settings
        names = list(self._source.shard_names)
        lengths = self._source.shard_lengths() if settings.num_ranks > 1 and not takes_turns else None
        if settings.is_shuffled:
            order = permutation(hash_key("shards", settings.seed, epoch), len(names)).tolist()
            names = [names[number] for number in order]
            lengths = None if lengths is None else [lengths[number] for number in order]
        ranges = [RowRange(name) for name in names]
        if lengths is not None:
            ranges = divide(names, lengths, rank=settings.rank, num_ranks=settings.num_ranks, pads=settings.pads)
        rows_in_turn = self._rows_in_turn()
        # Rows whose bytes are counted one by one had better be samples.
        reading = RangeReading(
            self._source.open_stage,
            rows_in_turn or _ROWS_IN_TURN,
            executor,
            makes_samples=settings.buffer_bytes is not None,
        )
        num_open = settings.interleave if settings.is_shuffled else 1
        rows: OpenStage = InterleavedStage(ranges, reading, num_open=num_open, rows_in_turn=rows_in_turn)
        if settings.num_ranks > 1 and lengths is None:
            rows = SplitStage(
                rows, rank=settings.rank, num_ranks=settings.num_ranks, pads=settings.pads, seed=settings.seed
            )
        if not settings.is_shuffled:
            return rows
        # Ranks that have shards of their own need no common randomness, and had better not repeat each other's.
        key = hash_key("buffer", settings.seed, epoch, settings.rank)
        num_rows = settings.buffer_rows or _NO_LIMIT_ROWS
        return ShuffledStage(rows, num_rows=num_rows, num_bytes=settings.buffer_bytes, key=key)

    def _rows_in_turn(self) -> int | None:
        settings = self._settings
        if settings.buffer_rows is None:
            return 1 if settings.is_shuffled else None
        # Few enough that what is mixed together comes from all open shards.
        return max(1, min(_ROWS_IN_TURN, settings.buffer_rows // (_TURNS * settings.interleave)))
