"""The line on the terminal: written over in place, gone when it is cleared."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios

from penstock.status_line import StatusLine


def test_a_text_is_written_over_the_one_before() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.show("a longer text")
    line.show("done", end="\n")
    assert stream.getvalue() == "\ra longer text\x1b[K\rdone\x1b[K\n"
    line.clear()  # what has ended stays
    assert stream.getvalue().endswith("\n")


def test_clearing_erases_what_is_shown_once() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.clear()
    assert not stream.getvalue()
    line.show("waiting")
    line.clear()
    line.clear()
    assert stream.getvalue() == "\rwaiting\x1b[K\r\x1b[K"


def test_no_terminal_is_seen_in_a_file() -> None:
    assert not StatusLine(io.StringIO()).is_terminal


def test_a_text_is_cut_where_a_narrow_terminal_would_wrap_it() -> None:
    near, far = os.openpty()
    try:
        with os.fdopen(far, "w") as stream:
            line = StatusLine(stream)
            assert line.is_terminal
            line.show("of no known width")
            assert os.read(near, 100) == b"\rof no known width\x1b[K"
            fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
            line.show("downloading shard 1/4 of many")
            assert os.read(near, 100) == b"\rdownloading shard 1\x1b[K"
            line.show("what stays may be long", end="\n")
            assert os.read(near, 100) == b"\rwhat stays may be long\x1b[K\r\n"
    finally:
        os.close(near)
