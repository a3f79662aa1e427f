"""Bars of the real rich, on something that calls itself a terminal."""

from __future__ import annotations

import threading
from io import StringIO

import pytest

from penstock import ObservabilityConfig
from penstock.pipeline.observing import Observer, RichBar

pytestmark = pytest.mark.integrations


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_of_rich() -> None:
    stream, before = Terminal(), threading.active_count()
    observer = Observer(ObservabilityConfig(progress_type="rich"), stream)
    with observer.watch("cache", "web", total=30) as first, observer.watch("save", "books") as second:
        for _ in range(3):
            first.add(10, 100)
            second.add(1)
    text = stream.getvalue()
    assert "cache/web" in text
    assert "100%" in text
    assert "30 samples" in text
    assert "save/books" in text
    assert threading.active_count() == before
    bar = observer.bar("save/web", 30, "samples", is_wanted=True)
    assert isinstance(bar, RichBar)
    bar.close(is_whole=True)
    # A failure leaves the terminal as it was, with its cursor.
    with pytest.raises(ZeroDivisionError), observer.watch("save", "web", total=3):
        raise ZeroDivisionError
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")
