"""What others wrote does not steer the terminal."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptShardError, StoreError
from penstock.printable import printable


@given(st.text())
def test_nothing_unseen_is_left(text: str) -> None:
    shown = printable(text)
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in shown)
    assert "\u202e" not in shown
    shown.encode()  # nothing that a terminal cannot be given
    assert printable(shown) == shown


def test_what_people_write_stays() -> None:
    text = "日本語　データ, é ü ß, 🙂, C:\\x, \xa0"
    assert printable(text) == text
    assert printable("a\tb\n\x1b[2J\u202e\udcff") == "a\\tb\\n\\x1b[2J\\u202e\\udcff"
    assert printable("a\n\x1b", lines=True) == "a\n\\x1b"


def test_errors_show_what_cannot_be_seen() -> None:
    error = CorruptShardError("shard \x1b[2J\x07 is\nbad", shard="\x1b")
    assert str(error) == error.message == "shard \\x1b[2J\\x07 is\nbad"
    assert error.facts == {"shard": "\x1b"}
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (CorruptShardError, str(error))
    assert "\x1b" not in repr(StoreError("\x1b"))
