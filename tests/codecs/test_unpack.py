"""Memory that files are unpacked to."""

from __future__ import annotations

from penstock.codecs.unpack import new_memory


def test_memory_is_zeroed_and_of_the_size_that_was_asked_for() -> None:
    memory = new_memory(3 << 20)
    assert len(memory) == 3 << 20
    assert memory[:100] == memory[-100:] == bytes(100)
    memory[-3:] = b"end"
    assert memory[-4:] == b"\0end"
