"""The tree of errors: they pickle, survive a worker's re-raise, and are what users already catch."""

from __future__ import annotations

import inspect
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.errors import CorruptShardError, PenstockError, StoreError, printable

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_its_journeys(kind: type[PenstockError]) -> None:
    error = kind("what, where, what to do", shard="shard.00000.mds", row=3)
    for copy in (pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))):
        assert type(copy) is kind
        assert str(copy) == "what, where, what to do"
        assert copy.facts == {"shard": "shard.00000.mds", "row": 3}
    again = kind(str(error))  # what a data loader does with the error of a worker
    assert str(again) == str(error)
    assert str(kind(message="named")) == "named"
    assert kind.__doc__


@pytest.mark.parametrize(
    ("name", "builtins"),
    [
        ("ConfigError", (ValueError,)),
        ("UnknownEncodingError", (ValueError, TypeError, KeyError, AssertionError)),
        ("EncodingConfigError", (ValueError, AttributeError, AssertionError)),
        ("OutputExistsError", (FileExistsError,)),
        ("StageOrderError", (RuntimeError, ValueError)),
        ("SampleIndexError", (IndexError, ValueError)),
        ("BadIndexError", (ValueError,)),
        ("IndexFieldError", (ValueError, TypeError)),
        ("CorruptIndexError", (json.JSONDecodeError, ValueError)),
        ("EmptyDatasetError", (RuntimeError, IndexError)),
        ("CorruptShardError", (ValueError,)),
        ("UnsafeTypeError", (ValueError,)),
        ("MissingColumnError", (KeyError,)),
        ("ColumnSizeError", (KeyError,)),
        ("ColumnTypeError", (AttributeError, TypeError)),
        ("ColumnValueError", (ValueError, AssertionError)),
        ("ColumnRangeError", (OverflowError, ValueError)),
        ("ObjectNotFoundError", (FileNotFoundError,)),
        ("LostIndexError", (FileNotFoundError, RuntimeError)),
        ("UserCodeError", (ValueError, RuntimeError)),
        ("AccessDeniedError", (PermissionError,)),
        ("StoreTimeoutError", (TimeoutError,)),
        ("MissingExtraError", (ImportError,)),
    ],
)
def test_what_users_catch_keeps_being_caught(name: str, builtins: tuple[type[Exception], ...]) -> None:
    assert issubclass(getattr(errors, name), builtins)
    for builtin in builtins:
        assert issubclass(getattr(errors, name), builtin)


def test_a_corrupt_index_is_a_whole_json_error() -> None:
    error = errors.CorruptIndexError("Index file at x is empty or corrupted")
    assert (error.msg, error.doc, error.pos, error.lineno) == (
        "Index file at x is empty or corrupted",
        "",
        0,
        1,
    )


# --- What others wrote does not steer the terminal ------------------------------------------------------------


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


def test_a_long_error_is_cut() -> None:
    assert len(str(StoreError("x" * 10**6))) < 20_000
