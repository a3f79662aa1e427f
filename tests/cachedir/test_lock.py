"""Locks on files end by themselves, and the kernel knows who holds them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.cachedir.lock import (
    Holder,
    describe_holders,
    find_holders,
    is_still_at,
    lock_within,
    open_locked,
    try_hold,
)
from penstock.errors import LockTimeoutError

if TYPE_CHECKING:
    from pathlib import Path


LOCKS = """\
1: POSIX  ADVISORY  WRITE 700 08:01:11 1073741826 1073742335
2: FLOCK  ADVISORY  READ 4711 08:01:11 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4713 08:01:11 0 EOF
3: FLOCK  ADVISORY  READ 4712 08:01:11 0 EOF
4: FLOCK  ADVISORY  READ 4712 08:01:12 0 EOF
5: FLOCK  ADVISORY  READ 4712 08:01:12 0 EOF
6: FLOCK  ADVISORY  WRITE 99 08:01:12 0 EOF
7: FLOCK  ADVISORY  READ 4711 00:2a:12 0 EOF
"""


def test_the_kernel_knows_who_holds_what() -> None:
    device = os.makedev(8, 1)
    found = find_holders({(device, 11): 100, (device, 12): 50, (device, 13): 7}, LOCKS)
    assert found == [Holder(4712, 2, 150), Holder(4711, 1, 100)]
    assert find_holders({(device, 13): 7}, LOCKS) == []
    overlay = os.makedev(0, 99)  # shown under another number
    assert find_holders({(overlay, 11): 100}, LOCKS) == [Holder(4711, 1, 100), Holder(4712, 1, 100)]


def test_holders_in_words() -> None:
    words = describe_holders([Holder(pid, 1, 1000) for pid in range(1, 12)], {1: "python"})
    assert words.startswith("process 1 [python] holds 1 of them, 0.977 kB; process 2 holds 1")
    assert words.endswith("3 others hold 2.93 kB")
    assert describe_holders([], {}) == ""


def test_many_may_share_a_lock_or_one_has_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    readers = [open_locked(path, is_shared=True) for _ in range(2)]
    assert all(readers)
    assert open_locked(path) is None
    for reader in readers:
        assert reader is not None
        reader.close()
    alone = open_locked(path)
    assert alone is not None
    assert open_locked(path, is_shared=True) is None
    alone.close()


def test_a_lock_on_a_file_that_lost_its_name_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    old = try_hold(path)
    assert old is not None
    assert is_still_at(path, os.fstat(old.number))
    path.unlink()  # the whole folder was deleted
    assert not is_still_at(path, os.fstat(old.number))
    new = try_hold(path)
    assert new is not None
    assert not is_still_at(path, os.fstat(old.number))
    old.close()
    new.close()


def test_a_thread_that_waits_for_a_lock_gets_it_or_is_told_who_is_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_within(path, 1)
    with pytest.raises(LockTimeoutError, match=r"another process has held .*lock for more than 0\.05 s"):
        lock_within(path, 0.05)
    is_waiting = threading.Event()

    def wait() -> None:
        is_waiting.set()
        lock_within(path, 30).close()

    thread = threading.Thread(target=wait)
    thread.start()
    assert is_waiting.wait(30)
    held.close()
    thread.join(30)
    assert not thread.is_alive()
