"""Begins passes of a dataset, and gives each worker or thread that takes part its reader."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.data.ranks import is_worker, worker_of
from penstock.errors import ResumeError
from penstock.order.state_fields import COUNT, check_fields
from penstock.processes import PerProcess
from penstock.reading.pass_reader import DeliveredCount, PassReader, ProcessReaders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.counters import Counters
    from penstock.data.passes import Pass
    from penstock.data.run_state import RunState
    from penstock.reading.pass_reader import MakeSamples, PassOptions, ThreadReader
    from penstock.reading.source import Source
    from penstock.reading.transforms import MakeColumns
    from penstock.types import Columns, Int64Array


_WORKER_STATE = "penstock-worker"
_WORKER_FIELDS = {"worker": COUNT, "num_workers": COUNT, "yielded": COUNT, "begun": dict}


def is_worker_state(state: Mapping[str, Any]) -> bool:
    """Distinguish the state of one worker, of a loader that keeps one for each of its own, from that of a job."""
    return state.get("kind") == _WORKER_STATE


class PassReaders:
    """What a dataset, or a loader for it, reads with. Each process has its own open shards and counts."""

    def __init__(
        self,
        run: RunState,
        source: Source,
        first_ids: Int64Array,
        options: PassOptions,
        counters: Counters,
        *,
        draws: bool = False,
    ) -> None:
        self._run, self._options, self._draws = run, options, draws
        self._in_process = PerProcess(partial(_readers_here, source, first_ids, counters))
        self._num_yielded_before = 0  # of a worker that goes on from its own state
        self._announced: int | None = None

    @property
    def here(self) -> ProcessReaders:
        """The readers of this process; a forked one begins with nothing."""
        return self._in_process.get()

    # --- Beginning --------------------------------------------------------------------------------------------

    @contextmanager
    def announced(self, num_workers: int) -> Iterator[Pass]:
        """Begin a pass for a loader with so many workers, or none; those started within the block take part in it."""
        begun = self._run.announce(num_workers)
        self._announced = begun.number
        try:
            yield begun
        finally:
            self._announced = None

    def take_announced(self) -> int | None:
        """Return the number of the pass that was announced for the one who asks now, once."""
        number, self._announced = self._announced, None
        return number

    def samples(self, number: int | None, make: MakeSamples | None) -> Iterator[Iterator[Any]]:
        """Take part in a pass and give its samples, in pieces to be laid end to end."""
        return self._join(number, self.here.main, make=make).samples()

    def columns(self, number: int | None, make_columns: MakeColumns | None) -> Iterator[Columns]:
        """Take part in a pass and give its batches by column."""
        return self._join(number, self.here.main, make_columns=make_columns).columns()

    def columns_ahead(self, begun: Pass, make_columns: MakeColumns | None) -> PassReader:
        """Return the reader by column of another thread, in a pass that was announced for no worker."""
        reader = self._join(begun.number, self.here.of_thread(), make_columns=make_columns)
        self.here.under_way = None  # a thread reads ahead of what is taken, which only its loader counts
        return reader

    def _join(self, number: int | None, reader: ThreadReader, **makes: Any) -> PassReader:
        schedule = self._run.schedule(self._run.join(number))
        self.here.under_way = delivered = DeliveredCount(schedule, self._num_yielded_before)
        self._num_yielded_before = 0
        return PassReader(reader, self._options, delivered, **makes, draws=self._draws)

    def all_ranks(
        self, state: Mapping[str, Any] | None, epoch: int, make: MakeSamples | None
    ) -> tuple[dict[str, Any], Iterator[Iterator[Any]]]:
        """Read what all ranks get together, beside the passes: from a state on, which is returned, or from an epoch."""
        schedule = self._run.schedule_of_all(state, epoch)
        reader = PassReader(self.here.main, self._options, DeliveredCount(schedule), make=make)
        return schedule.plan.state_dict(schedule.at), reader.samples()

    # --- How far it has come ----------------------------------------------------------------------------------

    def worker_state(self) -> dict[str, Any]:
        """Describe how far this worker has come."""
        under_way = self.here.under_way
        if under_way is None:
            raise ResumeError("this worker has not started a pass yet, so it has no state to save")
        worker, num_workers = worker_of()
        return {
            "kind": _WORKER_STATE,
            "worker": worker,
            "num_workers": num_workers,
            "yielded": under_way.count,
            "begun": under_way.schedule.plan.state_dict(under_way.schedule.at),
        }

    def load_worker_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Go on from the state of this worker with its next pass; return the state of the job where that pass began."""
        check_fields(state, _WORKER_FIELDS, "one worker of a torch DataLoader")
        worker, num_workers = worker_of()
        if (state["worker"], state["num_workers"]) != (worker, num_workers):
            raise ResumeError(
                f"this is the state of worker {state['worker']} of {state['num_workers']}, but this is worker"
                f" {worker} of {num_workers}: resume with num_workers={state['num_workers']}, or use penstock's"
                " StreamingDataLoader, whose state works with any number of workers"
            )
        self._num_yielded_before = state["yielded"]
        return {**state["begun"], "is_begun": True}


def _readers_here(source: Source, first_ids: Int64Array, counters: Counters) -> ProcessReaders:
    return ProcessReaders(source, first_ids, counters.row(), is_worker=is_worker())
