"""The sign of life: true bytes while they come, on a terminal and in a log, for shards and for ranges."""

from __future__ import annotations

import io
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cache import progress
from penstock.cache.progress import LongWait, describe, leave_lines_to_others, single_progress_line, wait_line
from penstock.cache.proxied import open_proxied
from penstock.cachedir.items import item_of_shard
from penstock.errors import StoreError
from penstock.fetcher.main import open_scheduler
from penstock.status_line import StatusLine
from penstock.storage.base import resolve_store
from penstock.storage.retry import RetryPolicy
from penstock.types import Span
from penstock.wire.messages import Progress
from penstock.wire.settings import CachedStream
from tests.cache.kit import Dataset, wait_until, write_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.fetcher.scheduler import Scheduler

REPORT = Progress(name="shard.00012.mds", num_bytes=1 << 20, total_bytes=4 << 20, num_wanted=9, state="running")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A process that shows nothing yet, at a time that the test says."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(progress, "_process", progress._ProcessLines())
    return clock


def test_a_terminal_shows_it_after_a_moment_and_is_clean_afterwards(clock: SimpleNamespace) -> None:
    terminal = Terminal()
    wait = LongWait(StatusLine(terminal))
    wait.show("shard 13/99", REPORT)
    assert not terminal.getvalue()
    clock.now += 2
    wait.show("shard 13/99", Progress())  # the fetcher is alive, and has no more to say
    assert not terminal.getvalue()
    wait.show("shard 13/99", REPORT)
    assert "downloading shard 13/99 (1 MB of 4 MB; 9 files queued)" in terminal.getvalue()
    wait.end()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_elsewhere_it_is_a_line_in_the_log_every_few_seconds(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with wait_line("shard 13/99", "a shard") as show, wait_line(None, "a shard") as again:
        for _ in range(21):
            show(REPORT)
            again(REPORT)  # another thread of this process, say
            clock.now += 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 4
    assert caplog.messages[0] == (
        "penstock has waited 3 s for data so far: downloading shard 13/99 (1 MB of 4 MB; 9 files queued), 0 B/s"
    )
    assert caplog.messages[-1].startswith("penstock has waited 18 s")


class NotebookStream(io.StringIO):
    """What Jupyter puts in place of standard error: no terminal, and no file behind it."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


def test_in_a_notebook_it_is_whole_lines_without_control_characters(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logging is not set up there, so Python writes warnings to whatever is standard error at that moment."""
    monkeypatch.setattr(logging.getLogger("penstock.cache"), "propagate", False)  # past the handlers of these tests
    stream = NotebookStream()
    monkeypatch.setattr("sys.stderr", stream)
    with wait_line("shard 13/99", "a shard") as show:
        for _ in range(9):
            show(REPORT)
            clock.now += 1
    first, second = stream.getvalue().splitlines(keepends=True)
    assert first.startswith("penstock has waited 3 s for data so far: downloading shard 13/99 (1 MB of 4 MB; ")
    assert second.startswith("penstock has waited 8 s")
    assert second.endswith("\n")
    assert not {"\r", "\x1b"} & set(stream.getvalue())


def test_many_short_waits_for_one_batch_are_a_long_one(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with single_progress_line():
        for _ in range(4):
            with wait_line(None, "a shard") as show:
                clock.now += 1
                show(REPORT)
    assert len(caplog.messages) == 1
    clock.now += 60
    for _ in range(4):  # with batches between them they are short
        with wait_line(None, "a shard") as show:
            clock.now += 1
            show(REPORT)
    assert len(caplog.messages) == 1


def test_of_several_workers_one_speaks(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    leave_lines_to_others()
    with wait_line(None, "a shard") as show:
        clock.now += 60
        show(REPORT)
    assert not caplog.messages


def test_in_words() -> None:
    ranges = Progress(name="ranges", num_bytes=2048, total_bytes=4096, bytes_per_s=1024, state="reading")
    assert describe(ranges, "parts of 7 shards") == "reading parts of 7 shards (2 kB of 4 kB), 1 kB/s"
    unsized = Progress(name="index.json", num_bytes=2048, bytes_per_s=1024, num_wanted=1, state="running")
    assert describe(unsized) == "downloading index.json (2 kB so far), 1 kB/s"
    refused = replace(ranges, num_bytes=0, reason="connection refused")
    assert describe(refused, "shard 1/9") == "asking the store for shard 1/9 again (0 B of 4 kB): connection refused"
    assert describe(replace(refused, state="asked"), "a") == "asking the store for a again: connection refused"


def test_a_store_that_is_only_looked_at_shows_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As `penstock inspect` and `verify` do, which may wait for minutes for a store that is away."""
    monkeypatch.setattr(progress, "_process", progress._ProcessLines())
    monkeypatch.setattr(progress, "_LOG_AFTER_S", 0)
    (tmp_path / "index.json").write_bytes(bytes(1000))
    with hesitant_store(tmp_path) as (url, may_go_on), ThreadPoolExecutor(1) as pool:
        store = open_proxied(url)
        data = pool.submit(store.read, "index.json", Span(0, 1000))
        wait_until(lambda: caplog.messages)
        may_go_on.set()
        assert len(data.result(60)) == 1000
        store.close()  # type: ignore[attr-defined]
    assert caplog.messages[0].endswith(f"waiting for the store: {url}/index.json (read)")


def test_a_store_that_is_only_looked_at_and_refuses_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_process", progress._ProcessLines())
    monkeypatch.setattr(progress, "_LOG_AFTER_S", 0)
    with late_server() as server:
        url = f"http://user:secret@127.0.0.1:{server.server_port}"
        store = open_proxied(url, retry=RetryPolicy.of(1, 2.5))
        with pytest.raises(StoreError):
            store.stat("index.json")
        store.close()  # type: ignore[attr-defined]
    assert re.search(r"asking the store for http://.*/index.json \(stat\) again: .*refused", caplog.messages[0])
    assert "secret" not in caplog.text


@contextmanager
def hesitant_store(folder: Path) -> Iterator[tuple[str, threading.Event]]:
    """A web server that sends the first half of every body, and the second one when it is told to."""
    may_go_on = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            data = (folder / self.path.lstrip("/")).read_bytes()
            begin, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
            body = data[int(begin) : int(last) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{int(begin) + len(body) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"tag"')
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            may_go_on.wait(60)
            self.wfile.write(body[len(body) // 2 :])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", may_go_on
    finally:
        may_go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def late_server(folder: Path | None = None) -> Iterator[ThreadingHTTPServer]:
    """A web server that refuses connections until it is activated and served."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = partial(Handler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    server.server_bind()
    try:
        yield server
    finally:
        server.server_close()


@contextmanager
def asked_scheduler(data: Dataset, url: str) -> Iterator[Scheduler]:
    scheduler = open_scheduler()
    scheduler.register((1, 1), [CachedStream(directory=data.local, store=resolve_store(url))], None)
    try:
        yield scheduler
    finally:
        scheduler.close()
        assert scheduler.join(60)


def check_half(report: Callable[[], Progress], total: int) -> None:
    held_back = 0 if total < 1 << 20 else 1 << 16  # of large pieces what came last may wait for more
    wait_until(lambda: total // 2 - held_back <= report().num_bytes <= total // 2)
    wait_until(lambda: report().bytes_per_s > 0)
    assert report().total_bytes == total


@pytest.mark.parametrize("num_bytes", [100_000, 12_000_000])  # in one piece, and in several
def test_the_bytes_of_a_shard_are_seen_while_they_come(tmp_path: Path, num_bytes: int) -> None:
    data = write_dataset(tmp_path, num_shards=1, num_bytes=num_bytes)
    with hesitant_store(data.remote) as (url, may_go_on), asked_scheduler(data, url) as scheduler:
        request = scheduler.ask((1, 1), 0, item_of_shard(data.infos[0], 0, "0e"))
        check_half(lambda: scheduler.progress(request), num_bytes)
        may_go_on.set()
        assert request.future.result(60).num_downloaded == num_bytes


def test_the_bytes_of_ranges_are_seen_while_they_come(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=2)
    names = [info.name for info in data.infos]
    places = [(names[0], Span(0, 1000)), (names[1], Span(50_000, 53_000))]
    with hesitant_store(data.remote) as (url, may_go_on), asked_scheduler(data, url) as scheduler:
        reading = scheduler.read((1, 1), 0, places, "0e", {})
        check_half(lambda: scheduler.progress_of_read(reading), 4000)
        may_go_on.set()
        assert [len(pieces[0]) for pieces in reading.future.result(60)] == [1000, 3000]  # type: ignore[arg-type]


def test_a_store_that_tells_nothing_on_the_way_is_counted_in_the_end(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1)
    with asked_scheduler(data, str(data.remote)) as scheduler:
        reading = scheduler.read((1, 1), 0, [("shard.00000.data", Span(0, 1000))], "0e", {})
        reading.future.result(60)
        assert scheduler.progress_of_read(reading).num_bytes == 1000


def _has_reason(report: Callable[[], Progress]) -> bool:
    return bool(report().reason)


def test_why_a_store_is_asked_again_is_said_until_it_answers(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1)
    places = [(data.infos[0].name, Span(0, 1000))]
    with late_server(data.remote) as server, ThreadPoolExecutor(1) as pool:
        with asked_scheduler(data, f"http://user:secret@127.0.0.1:{server.server_port}") as scheduler:
            reading = scheduler.read((1, 1), 0, places, "0e", {})
            request = scheduler.ask((1, 1), 0, item_of_shard(data.infos[0], 0, "0e"))
            reports: list[Callable[[], Progress]] = [
                lambda: scheduler.progress(request),
                lambda: scheduler.progress_of_read(reading),
            ]
            for report in reports:
                wait_until(partial(_has_reason, report))
                assert "refused" in report().reason
                assert "secret" not in report().reason
            server.server_activate()
            pool.submit(server.serve_forever, 0.05)
            request.future.result(60)
            reading.future.result(60)
            assert scheduler.progress_of_read(reading).reason == ""
            server.shutdown()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_progress_in_words() -> None:
    report = Progress(
        name="shard.00012.mds",
        num_bytes=1 << 20,
        total_bytes=4 << 20,
        bytes_per_s=41 << 20,
        position=3,
        num_wanted=9,
    )
    assert describe(replace(report, state="running")) == (
        "downloading shard.00012.mds (1 MB of 4 MB; 9 files queued), 41 MB/s"
    )
    assert "after 3 others" in describe(replace(report, state="queued"))
    assert "room" in describe(replace(report, state="waiting_for_space"))
