"""Several questions to stores at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_MOST_THREADS = 32


def ask_all(questions: Sequence[Callable[[], T]]) -> list[T]:
    """Give all answers in order; the first error is raised.

    Whoever is interrupted leaves at once. A pool of threads would be waited for then, at the latest when the process
    ends, and these may wait long for a store that is away.
    """
    answers: list[Future[T]] = [Future() for _ in questions]
    pairs = list(zip(questions, answers, strict=True))
    for first in range(min(len(pairs), _MOST_THREADS)):
        share = pairs[first::_MOST_THREADS]
        threading.Thread(target=_answer, args=(share,), name="penstock-ranges", daemon=True).start()
    return [answer.result() for answer in answers]


def _answer(share: Sequence[tuple[Callable[[], T], Future[T]]]) -> None:
    for question, answer in share:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001  raised where the answer is waited for
            answer.set_exception(error)
