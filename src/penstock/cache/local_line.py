"""What a store in the memory of this process is asked through: a scheduler of the process instead of the fetcher."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from penstock.errors import FetcherError
from penstock.processes import PerProcess
from penstock.wire.ahead import NOTHING
from penstock.wire.messages import GroupUpdate, Message, Pending, Unregister, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cache.client import Group
    from penstock.fetcher.scheduler import Scheduler
    from penstock.wire.messages import AnswerT, Progress

_PROGRESS_S = 1.0


class LocalLine:
    """A scheduler of this process, there while any cache uses it, and asked as the fetcher is. Safe for threads."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may close a cache at any time
        self._groups: dict[int, Group] = {}
        self._scheduler: Scheduler | None = None
        self.is_connected = True

    def connect(self) -> None:
        """There is no line to be made."""

    def join(self, group: Group) -> None:
        """Add a cache, and introduce it."""
        from penstock.fetcher.main import open_scheduler  # seldom needed, and much

        with self._lock:
            self._groups[group.number] = group
            if self._scheduler is None:
                self._scheduler = open_scheduler()
        for message in group.introduction():
            group.take_answer(self.request(message)[0])

    def leave(self, group: Group) -> None:
        """Remove a cache; the scheduler ends with the last one."""
        self.note(Unregister(group.number))
        with self._lock:
            self._groups.pop(group.number, None)
            unused = None if self._groups else self._scheduler
            if unused is not None:
                self._scheduler = None
        if unused is not None:
            unused.close()

    def note(self, message: Message[Any]) -> None:
        """Announce what needs no answer."""
        scheduler = self._scheduler
        if scheduler is not None:
            scheduler.do(0, message, self._hear)

    def request(
        self,
        message: Message[AnswerT],
        *,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_asked: Callable[[], None] = lambda: None,
        ahead: bytes = NOTHING,  # noqa: ARG002  nothing has to be started
    ) -> tuple[AnswerT, bytes]:
        """Ask and wait, with a report every second."""
        scheduler = self._scheduler
        if scheduler is None:
            raise FetcherError("a cache was closed while it was used")
        answer: Any = scheduler.do(0, message, self._hear)
        on_asked()
        if isinstance(pending := answer, Pending):
            try:
                while not wait([pending.future], _PROGRESS_S).done:
                    on_progress(pending.progress())
                answer = pending.future.result()
            finally:
                pending.end()
        answer, payload = answer_of(answer)
        return answer, b"".join(payload)

    def _hear(self, update: GroupUpdate) -> None:
        group = self._groups.get(update.group)
        if group is not None:
            group.on_update(update)


local_line = PerProcess(LocalLine)
