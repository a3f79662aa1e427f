"""Passes over a source that is read in order: lanes, shards, buffer and batches, and the state after each batch."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from penstock.blocks.stage import BegunStage, resume, skip_rows
from penstock.data.identity import warn_of_other_code
from penstock.data.ranks import find_job_store
from penstock.errors import ResumeError
from penstock.loaders.lane_places import LaneCursor, LaneNotes, LanePlaces, find_places
from penstock.order.keys import hash_key, permutation
from penstock.order.lanes import Team, choose_num_lanes, find_team
from penstock.order.state_fields import COUNT, check_fields, shown
from penstock.sources.base import TransformedShardedSource
from penstock.sources.interleaving import (
    InterleavedStage,
    RangeReading,
    RowNumbers,
    RowRange,
    SplitStage,
    TurnsStage,
    divide,
)
from penstock.sources.iterators import SampleIterator
from penstock.sources.shuffling import ShuffledStage
from penstock.sources.tokens.source import TokenizeTransform
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from penstock.blocks.block import Block
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.sources.base import ShardedSource

Uneven = Literal["drop", "pad", "allow"]
_KIND = "penstock-stream"
_VERSION = 3
_PER_RANK = 2  # the version of states that each rank had of its own
_WEAKER_BUFFER = 1  # that of penstock 0.1.0.dev0, whose shuffle buffer gave another order
_FIELDS = {
    "kind": (_KIND,),
    "version": (_VERSION, _PER_RANK, _WEAKER_BUFFER),
    "epoch": COUNT,
    "position?": dict,
    "settings": dict,
    "source?": str,
    "files?": str,
}
_ROWS_IN_TURN = 256
_NO_LIMIT_ROWS = 1 << 20
_TURNS = 8  # that each open shard has, at least, among as many rows as the buffer holds
_log = logging.getLogger("penstock.loaders")


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
    uneven: Uneven

    @property
    def is_shuffled(self) -> bool:
        """Whether there is a buffer."""
        return self.buffer_rows is not None or self.buffer_bytes is not None

    @property
    def order(self) -> dict[str, Any]:
        """All that the order of samples depends on, in any world."""
        names = ("buffer_rows", "buffer_bytes", "interleave", "seed", "uneven")
        return {name: value for name, value in asdict(self).items() if name in names}

    @property
    def rows_in_turn(self) -> int | None:
        """How many rows of an open shard come together, few enough that what is mixed comes from all of them."""
        if self.buffer_rows is None:
            return 1 if self.is_shuffled else None
        return max(1, min(_ROWS_IN_TURN, self.buffer_rows // (_TURNS * self.interleave)))


@dataclass(slots=True)
class _Pass:
    """A pass that has begun: where, and how many rows this rank's team had taken there."""

    epoch: int
    place: LanePlaces
    team: Team
    taken: int = 0
    notes: LaneNotes | None = None


class StreamedPasses:
    """Reads a source pass after pass, each the next epoch."""

    def __init__(self, source: ShardedSource, settings: StreamSettings) -> None:
        self._source, self._settings = source, settings
        self._epoch = 0  # of the position
        self._place: LanePlaces | None = None  # where the pass begins that is under way or next; None: the beginning
        self._position: Position | None = None  # of this rank's team, after the batch delivered last
        self._old: State | None = None  # where a state of this rank alone goes on, in the order that it was saved in
        self._begins_next = False  # whether the next pass is another epoch
        self._current: _Pass | None = None  # the pass that moves the position: the last that has begun
        self.num_left_out = 0  # samples of a last batch that is not full

    # --- Passes -----------------------------------------------------------------------------------------------

    def begin(self) -> tuple[_Pass, Callable[[Executor | None], Iterator[tuple[Block, Position]]]]:
        """Begin the next pass. One that was left for another, or for a state, moves nothing any more."""
        if self._begins_next:
            self._go_to(self._epoch + 1, None)
        self._begins_next = True
        settings = self._settings
        place = self._place or LanePlaces(self._choose_num_lanes())
        begun = _Pass(self._epoch, place, find_team(settings.rank, settings.num_ranks, place.num_lanes))
        if self._old is None and not self._is_known(place.num_lanes):
            begun.notes = LaneNotes(self._question(begun), settings.num_ranks)
        self._current = begun
        return begun, partial(self._rows, begun) if self._old is None else partial(self._rows_alone, begun, self._old)

    def deliver(self, begun: _Pass, position: Position) -> None:
        """Move to the position after a batch."""
        if self._current is begun:
            self._position = position
            if begun.notes is not None and begun.notes.is_due() and not begun.team.member:
                begun.notes.tell(_own_cursors(position()))

    def finish(self, begun: _Pass, *, is_empty: bool) -> bool:
        """Move to the next epoch; return whether the pass is over: not if a state was from after its last batch."""
        if self._current is not begun:
            return True
        is_resumed = self._place is not None or self._old is not None
        if begun.notes is not None:  # other ranks may still read their lanes
            return True
        self._go_to(self._epoch + 1, None)
        return not (is_empty and is_resumed)

    def num_batches(self) -> int:
        """Count the batches of the pass that is under way or comes next, from where it begins."""
        settings, place = self._settings, self._place or LanePlaces(self._choose_num_lanes())
        ends = self._lane_lengths(place.num_lanes)
        team, taken = find_team(settings.rank, settings.num_ranks, place.num_lanes), place.taken(ends)
        left = sum(ends[lane] - taken[lane] for lane in team.lanes(place.num_lanes))
        count, rest = divmod(left, team.num_members)
        if rest and settings.uneven != "drop":
            group = sum(taken[lane] for lane in team.lanes(place.num_lanes)) // team.num_members + count
            count += settings.uneven == "pad" or self._split(None, team).within(group) < rest
        return count // settings.batch_size if settings.drop_last else -(-count // settings.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. A state that waits to be resumed in just this epoch stays."""
        if epoch != self._epoch or self._begins_next:
            self._go_to(epoch, None)

    def _go_to(self, epoch: int, place: LanePlaces | None, old: State | None = None) -> None:
        self._epoch, self._place, self._old, self._position = epoch, place, old, None
        self._begins_next, self._current = False, None

    # --- States -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Describe the position of the whole job after the batch delivered last."""
        settings = self._settings
        is_alone = self._old is not None
        position = self._old if self._position is None else self._position()
        return {
            "kind": _KIND,
            "version": _PER_RANK if is_alone else _VERSION,
            "epoch": self._epoch,
            "position": position if is_alone else self._place_after(position),
            "settings": _old_settings(settings) if is_alone else settings.order,
            "source": self._source.order_fingerprint,
            "code": [[*each[:2]] for each in self._source.code_digests],
            "files": None if (files := self._source.files_version) is None else files.digest,
        }

    def _place_after(self, position: State | None) -> State | None:
        """Describe where all lanes are, given where those of this rank are."""
        begun = self._current
        if begun is None or position is None:
            return None if self._place is None else self._place.to_state()
        own, num_teams = _own_cursors(position), begun.team.num_teams
        taken = sum(each.taken for each in own) - begun.taken
        if self._is_known(begun.place.num_lanes):
            own = own if begun.place.num_lanes == 1 else []
        elif begun.notes is not None:
            begun.notes.tell(own)
            own = [*own, *begun.notes.hear(begun.place.num_lanes)]
        return begun.place.dealt_on(num_teams, taken, own).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass."""
        check_fields(state, _FIELDS, "an AsyncDataLoader over a source")
        settings, saved, position = self._settings, state["settings"], state.get("position")
        is_alone = state["version"] != _VERSION and saved.get("num_ranks") != 1 and position is not None
        ours = settings.order if state["version"] == _VERSION else _old_settings(settings)
        if not is_alone:  # other numbers of ranks do not matter
            ours = {name: value for name, value in ours.items() if name not in ("rank", "num_ranks")}
        different = [
            f"{name}={shown(saved.get(name))}, here {ours[name]!r}" for name in ours if saved.get(name) != ours[name]
        ]
        if different:
            raise ResumeError(f"the state was taken with other settings: {'; '.join(different)}")
        if state["version"] == _WEAKER_BUFFER and settings.is_shuffled and position is not None:
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
        if position is None:
            self._go_to(state["epoch"], None)
        elif state["version"] == _VERSION:
            self._go_to(state["epoch"], LanePlaces.read(position))
        elif is_alone:
            warn_user(
                f"the state is that of rank {settings.rank} alone, as earlier releases saved it: this epoch goes on in"
                f" its order, on {settings.num_ranks} ranks only. From the next epoch on, a state is that of the job"
            )
            self._go_to(state["epoch"], None, dict(position))
        else:
            self._go_to(state["epoch"], LanePlaces(1, ((1, 0),), (LaneCursor(0, 0, dict(position)),)))

    # --- Samples ----------------------------------------------------------------------------------------------

    def _rows(self, begun: _Pass, executor: Executor | None) -> Iterator[tuple[Block, Position]]:
        team, place = begun.team, begun.place
        lanes = team.lanes(place.num_lanes)
        cursors = self._find(begun, executor) if place.dealt else []
        begun.taken = sum(each.taken for each in cursors)
        rows: OpenStage = TurnsStage(lanes, partial(self._open_lane, begun, executor))
        state: State = {"lanes": [each._asdict() for each in cursors]}
        if team.num_members > 1:
            rows = self._split(rows, team)
            state = {"group": begun.taken // team.num_members, "samples": state}
        yield from self._batches(SampleIterator(rows), state if cursors else None)

    def _batches(self, samples: SampleIterator, state: State | None) -> Iterator[tuple[Block, Position]]:
        if state is not None:
            samples.load_state_dict(state)
        settings = self._settings
        try:
            while len(rows := samples.take_block(settings.batch_size)):
                if len(rows) == settings.batch_size or not settings.drop_last:
                    yield rows, samples.position()
                else:
                    self.num_left_out = len(rows)
        finally:
            samples.close()

    def _rows_alone(self, begun: _Pass, old: State, executor: Executor | None) -> Iterator[tuple[Block, Position]]:
        """Go on from a state of this rank alone: with its part of the rows, or of a source that all ranks read."""
        settings = self._settings
        begun.place = LanePlaces(settings.num_ranks)
        team = Team(0, 1, settings.rank, settings.num_ranks)
        inner = old.get("samples") if settings.is_shuffled else old
        is_split = isinstance(inner, dict) and "group" in inner
        split = partial(self._split, team=team) if is_split else None
        yield from self._batches(SampleIterator(self._open_lane(begun, executor, settings.rank, split)), old)

    def _split(self, rows: Any, team: Team) -> SplitStage:
        settings = self._settings
        return SplitStage(
            rows, rank=team.member, num_ranks=team.num_members, uneven=settings.uneven, seed=settings.seed
        )

    def _open_lane(
        self,
        begun: _Pass,
        executor: Executor | None,
        lane: int,
        split: Callable[[OpenStage], OpenStage] | None = None,
        *,
        by_number: bool = False,
    ) -> OpenStage:
        """Open a lane, of all ranks' rows if they are `split` later; or only the numbers of its rows."""
        settings, num_lanes, source = self._settings, begun.place.num_lanes, self._source
        lengths = source.shard_lengths() if num_lanes > 1 and split is None else None
        is_cut = num_lanes > 1 and split is None and lengths is None
        if is_cut and num_lanes > len(source.shard_names):
            source, is_cut = source.part(lane, num_lanes), False
        names = list(source.shard_names)
        if settings.is_shuffled:
            order = permutation(hash_key("shards", settings.seed, begun.epoch), len(names)).tolist()
            names = [names[number] for number in order]
            lengths = None if lengths is None else [lengths[number] for number in order]
        ranges = [RowRange(name) for name in (names[lane::num_lanes] if is_cut else names)]
        open_at: Callable[[str, int], OpenStage] = source.open_stage
        if lengths is not None:
            ranges = divide(names, lengths, lane, num_lanes, settings.uneven)
            if by_number:
                known = dict(zip(names, lengths, strict=True))
                open_at = lambda name, row: RowNumbers(row, known[name])  # noqa: E731
        rows_in_turn = settings.rows_in_turn
        # Rows whose bytes are counted one by one had better be samples.
        makes_samples = settings.buffer_bytes is not None
        reading = RangeReading(open_at, rows_in_turn or _ROWS_IN_TURN, executor, makes_samples)
        num_open = settings.interleave if settings.is_shuffled else 1
        rows: OpenStage = InterleavedStage(ranges, reading, num_open=num_open, rows_in_turn=rows_in_turn)
        if split is not None:
            rows = split(rows)
        if not settings.is_shuffled:
            return rows
        # Lanes need no common randomness, and had better not repeat each other's.
        key = hash_key("buffer", settings.seed, begun.epoch, lane)
        num_rows = settings.buffer_rows or _NO_LIMIT_ROWS
        return ShuffledStage(rows, num_rows=num_rows, num_bytes=settings.buffer_bytes, key=key)

    # --- Lanes ------------------------------------------------------------------------------------------------

    def _choose_num_lanes(self) -> int:
        """Return how many lanes a pass has that begins now: each rank has its own, if there can be so many.

        Without numbers of rows, it is not known which lane will end first: if all ranks are to get equally many
        batches, they have to read the same.
        """
        source, num_ranks = self._source, self._settings.num_ranks
        if num_ranks == 1 or source.shard_lengths() is not None:
            return num_ranks
        is_uneven = source.is_endless or self._settings.uneven == "allow"
        return choose_num_lanes(num_ranks, source.num_parts) if is_uneven else 1

    def _is_known(self, num_lanes: int) -> bool:
        """Return whether all ranks know where all lanes are: all read the only one, or the numbers of rows say it."""
        if num_lanes == 1:
            return True
        is_numbered = self._source.shard_lengths() is not None and _stand_alone(self._source)
        return is_numbered and self._settings.buffer_bytes is None

    def _question(self, begun: _Pass) -> str:
        told = (self._source.order_fingerprint, self._source.num_shards, self._settings.order, begun.place.num_lanes)
        return f"{hash_key(repr(told), begun.epoch):016x}"

    def _lane_lengths(self, num_lanes: int) -> dict[int, int]:
        """Count the rows of each lane of a source that knows its length."""
        total, uneven = len(self._source), self._settings.uneven
        share = total // num_lanes if uneven == "drop" else -(-total // num_lanes)
        most = total if uneven == "allow" else share * num_lanes
        return {lane: max(0, min(share, most - lane * share)) for lane in range(num_lanes)}

    def _find(self, begun: _Pass, executor: Executor | None) -> list[LaneCursor]:
        """Find the positions of this rank's lanes, reading again what lies between them and what is known."""
        place, lanes = begun.place, begun.team.lanes(begun.place.num_lanes)
        by_number = place.num_lanes > 1 and self._is_known(place.num_lanes)
        ends = self._lane_lengths(place.num_lanes) if by_number else place.ends()
        taken, needed = place.taken(ends), lanes if by_number else place.beside(lanes)
        readers = {
            lane: _LaneReader(
                partial(self._open_lane, begun, executor, lane, by_number=by_number),
                place.newest(lane, taken[lane]),
                lane,
            )
            for lane in needed
        }
        try:
            found = find_places(place, ends, {lane: reader.go for lane, reader in readers.items()})
        finally:
            for reader in readers.values():
                reader.close()
        num_again = 0 if by_number else sum(reader.num_rows for reader in readers.values())
        if num_again:
            told = f"{num_again:,} rows are read again and dropped, to find where lanes of other ranks are"
            if find_job_store() is None:
                warn_user(f"{told}: ranks of a job of torch.distributed or JAX tell each other")
            else:
                _log.info("%s", told)
        return [found[lane] for lane in lanes]


class _LaneReader:
    """Goes on in a lane from its newest known position."""

    def __init__(self, open_lane: Callable[[], OpenStage], known: LaneCursor | None, lane: int) -> None:
        self._stage: OpenStage | None = None
        self._open_lane = open_lane
        self._cursor = known
        self._lane = lane
        self.num_rows = 0  # that were read

    def go(self, taken: int) -> LaneCursor:
        """Go to where so many rows were taken, or to the end of the lane."""
        cursor = self._cursor
        if cursor is not None and (cursor.taken == taken or cursor.at is None):
            return cursor
        if self._stage is None:
            self._stage = self._open_lane()
            if cursor is None:
                cursor = LaneCursor(self._lane, 0, self._stage.get_state())
            else:
                self._stage = BegunStage(resume(self._stage, cursor.at or {}), self._stage)
        assert cursor is not None  # noqa: S101
        num_skipped, rest = skip_rows(self._stage, taken - cursor.taken)
        self.num_rows += num_skipped
        is_over = num_skipped < taken - cursor.taken
        self._stage = BegunStage(rest, self._stage)
        at = None if is_over else self._stage.get_state()
        self._cursor = LaneCursor(self._lane, cursor.taken + num_skipped, at)
        return self._cursor

    def close(self) -> None:
        """Close the lane."""
        if self._stage is not None:
            self._stage.close()


def _own_cursors(position: State) -> list[LaneCursor]:
    return [LaneCursor(**each) for each in position.get("samples", position)["lanes"]]


def _old_settings(settings: StreamSettings) -> dict[str, Any]:
    """Return all that the order depended on where each rank had a state of its own."""
    known = {"rank": settings.rank, "num_ranks": settings.num_ranks, "pads": settings.uneven == "pad"}
    return {name: value for name, value in settings.order.items() if name != "uneven"} | known


def _stand_alone(source: ShardedSource) -> bool:
    """Return whether a row is the same sample wherever reading begins: no function of yours takes several rows."""
    each = source.transforms if isinstance(source, TransformedShardedSource) else ()
    is_batched = any(one.is_batched and not isinstance(one, TokenizeTransform) for one in each)
    return not is_batched and all(map(_stand_alone, source._input_sources))
