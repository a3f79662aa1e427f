"""What a pipeline tells of its work: bars and lines of progress, log records, and counts."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtraError
from penstock.extras import require
from penstock.status_line import Bar, ProgressBar, StatusLine

if TYPE_CHECKING:
    from typing import TextIO

    from typing_extensions import Self

    from penstock.pipeline.config import ObservabilityConfig

log = logging.getLogger("penstock.pipeline")


class Observer:
    """Hears of all work of a pipeline. What it has counted stands in `metrics`, by stage and dataset.

    Args:
        config: What to show, to log and to count.
        stream: Where progress is shown; standard error by default.
    """

    def __init__(self, config: ObservabilityConfig, stream: TextIO | None = None) -> None:
        self.config, self._stream = config, stream
        self.metrics: dict[str, dict[str, float]] = {}

    def watch(
        self, stage: str, name: str, total: int | None = None, unit: str = "samples", *, has_bar: bool = True
    ) -> Watch:
        """Begin to watch a piece of work, in a `with` block. Without a bar, there are only lines for machines."""
        return Watch(self, stage, name, total, unit, has_bar=has_bar)

    def bar(self, label: str, total: int | None, unit: str, *, is_wanted: bool) -> Bar:
        """Make what shows the progress of one piece of work."""
        config, stream = self.config, self._stream or sys.stderr
        kind = config.progress_type if config.progress_enabled else "none"
        if kind == "json":
            return JsonLines(label, total, unit, stream, config.log_interval)
        if kind == "none" or not is_wanted or not StatusLine(stream).is_terminal:
            return Bar()
        with suppress(MissingExtraError):  # the plain line needs nothing
            if kind != "plain":
                return (TqdmBar if kind == "tqdm" else RichBar)(label, total, unit, stream)
        return ProgressBar(label, stream)

    def log(self, level: int, text: str, *args: Any) -> None:
        """Write a record to the log `penstock.pipeline`, if the settings want records of this level."""
        if level >= getattr(logging, self.config.log_level):
            log.log(level, text, *args)

    def count(self, key: str, **amounts: float) -> None:
        """Add to the counts of a piece of work."""
        if self.config.metrics_enabled:
            counts = self.metrics.setdefault(key, {})
            for name, amount in amounts.items():
                counts[name] = counts.get(name, 0) + amount

    def set(self, key: str, **amounts: float) -> None:
        """Replace amounts by those that were counted elsewhere."""
        if self.config.metrics_enabled:
            self.metrics.setdefault(key, {}).update(amounts)


class Watch:
    """One piece of work of a stage, from its beginning to its end; told by several threads if need be."""

    def __init__(
        self, observer: Observer, stage: str, name: str, total: int | None, unit: str, *, has_bar: bool
    ) -> None:
        self._observer, self._key, self._unit = observer, f"{stage}/{name}", unit
        self._has_bar = has_bar
        self._total = total
        self._lock = threading.Lock()
        self._calls = self._done = 0
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._bar = self._observer.bar(self._key, self._total, self._unit, is_wanted=self._has_bar)
        self._observer.log(logging.DEBUG, "%s begins", self._key)
        return self

    def add(self, count: int, num_bytes: int = 0) -> None:
        """Announce that so much more is done."""
        with self._lock:
            self._calls += 1
            self._done += count
            self._bar.add(count, num_bytes)
            self._observer.count(self._key, **{self._unit: count, "bytes": num_bytes})
            if self._calls % self._observer.config.log_interval == 0:
                self._observer.log(logging.INFO, "%s: %s", self._key, self._said())

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._bar.close(is_whole=error is None)
        self._observer.count(self._key, seconds=time.perf_counter() - self._began)
        how = "done" if error is None else "failed"
        self._observer.log(logging.INFO if error is None else logging.ERROR, "%s %s: %s", self._key, how, self._said())

    def _said(self) -> str:
        seconds = time.perf_counter() - self._began
        of_all = "" if self._total is None else f" of {self._total:,}"
        return f"{self._done:,}{of_all} {self._unit} in {seconds:.1f} s"


class JsonLines(Bar):
    """A line of JSON at the end, and one after so many calls; for machines, so also where there is no terminal."""

    def __init__(self, label: str, total: int | None, unit: str, stream: TextIO, interval: int) -> None:
        super().__init__()
        self._about = {"work": label, "unit": unit, "total": total}
        self._stream, self._interval, self._calls = stream, interval, 0

    def show(self) -> None:
        """Write a line if it is time for one."""
        self._calls += 1
        if self._calls % self._interval == 0:
            self._write("running")

    def close(self, *, is_whole: bool = True) -> None:
        """Write the last line."""
        self._write("done" if is_whole else "failed")

    def _write(self, state: str) -> None:
        line = {"done": self.count, "bytes": self.num_bytes, "seconds": round(self.seconds, 3), "state": state}
        self._stream.write(json.dumps({**self._about, **line}) + "\n")
        self._stream.flush()


class TqdmBar(Bar):
    """A bar of tqdm, without the thread and the semaphore that it would make: processes here are forked."""

    def __init__(self, label: str, total: int | None, unit: str, stream: TextIO) -> None:
        super().__init__()
        tqdm = require("tqdm", extra="progress", purpose="bars of tqdm").tqdm
        kind: Any = type("PenstockBar", (tqdm,), {"monitor_interval": 0})
        kind.set_lock(threading.RLock())
        self._bar = kind(desc=label, total=total, unit=f" {unit}", file=stream)

    def show(self) -> None:
        """Move the bar."""
        self._bar.update(self.count - self._bar.n)

    def close(self, *, is_whole: bool = True) -> None:  # noqa: ARG002
        """Leave the bar as it is."""
        self._bar.close()


class RichBar(Bar):
    """A bar of rich."""

    def __init__(self, label: str, total: int | None, unit: str, stream: TextIO) -> None:
        super().__init__()
        progress = require("rich.progress", extra="progress", purpose="bars of rich")
        console = require("rich.console", extra="progress", purpose="bars of rich").Console(file=stream)
        self._progress = progress.Progress(
            *progress.Progress.get_default_columns(),
            progress.TextColumn("{task.completed:,} " + unit),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task(label, total=total)
        self._progress.start()
        self._shown_at = time.monotonic()

    def show(self) -> None:
        """Move the bar, a few times a second."""
        self._progress.update(self._task, completed=self.count)
        if time.monotonic() - self._shown_at > 0.2:
            self._shown_at = time.monotonic()
            self._progress.refresh()

    def close(self, *, is_whole: bool = True) -> None:  # noqa: ARG002
        """Leave the bar as it is."""
        self._progress.refresh()
        self._progress.stop()
