"""No text from outside holds the process up, and no secret of it is shown."""

from __future__ import annotations

import importlib
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import StoreError
from penstock.outside_text import Bounded, declared
from penstock.scan.patterns import fits
from penstock.storage.base import MESSAGE_CHARACTERS, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

# Modules that show regular expressions no text from outside.
USE_RE = {"outside_text.py", "testing/formats.py"}


# --- Bounds -----------------------------------------------------------------------------------------------------


ROOT = Path(penstock.__file__).parent
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}


@pytest.fixture(scope="module")
def patterns() -> list[Bounded[Any]]:
    """Every expression that any module declares."""
    for name, text in TEXTS.items():
        if "Bounded(" in text:
            importlib.import_module(f"penstock.{name.removesuffix('.py').replace('/', '.')}")
    return declared


def test_every_expression_is_declared_with_a_bound(patterns: list[Bounded[Any]]) -> None:
    assert {name for name, text in TEXTS.items() if "\nimport re\n" in text or "\nfrom re import" in text} == USE_RE
    assert len(patterns) > 40
    for each in patterns:
        assert 0 < each.longest <= 1 << 20, each.expression


def test_no_more_than_the_bound_is_looked_at() -> None:
    digits = Bounded("[0-9]+", 10)
    declared.remove(digits)
    text = "7" * 11
    assert digits.fullmatch(text) is None
    assert digits.fullmatch(text[1:])
    found = digits.search(text)
    assert found is not None
    assert found.group() == "7" * 10
    assert digits.findall(text) == ["7" * 10]
    assert digits.sub("x", text) == "x"


SECRETS = [
    "http://bob:hunter2@host/a?b=hunter2 and more",
    "cannot read s3+x://hunter2@host/a",
    "<Error>https://host/a?sig=hunter2</Error>",
    '"https://bob:hunter2@host"',
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", [0, 100, *range(MESSAGE_CHARACTERS - 60, MESSAGE_CHARACTERS + 1)])
def test_no_cut_shows_a_secret(secret: str, place: int) -> None:
    shown = redacted(" " * place + secret + " " + "x" * 100)
    assert "hunt" not in shown
    assert "host" in shown or place > 1000
    assert len(shown) <= MESSAGE_CHARACTERS + 2


def test_redacting_leaves_the_rest() -> None:
    text = "it's <b>50%</b> of https://host/a/b#c, me@example.org? yes, a://b"
    assert redacted(text) == text
    assert redacted("https://u:p@host/a?x=1, and (ftp://h/?y)") == "https://host/a?…, and (ftp://h/?…)"


def test_hostile_globs_and_names_end() -> None:
    assert not fits("*a" * 100 + "*b", "a" * 200)
    assert not fits("**a" * 5 + "**/b", "a/" * 200 + "c")
    assert not fits("**/*/" * 20 + "x", "a/" * 60 + "c")


def hostile(pattern: Bounded[Any], length: int) -> Iterator[Any]:
    """Yield texts that almost match, for long: what a pattern is made of, over and over, alone and in pairs."""
    is_bytes = isinstance(pattern.expression, bytes)
    source = pattern.expression.decode("latin-1") if is_bytes else pattern.expression
    words = set("ab019 _-/.:;,@=?&%<>\"'(){}[]\n\t\0é*")
    words |= {"://", "a://", "data/", 'message: "', "<Code>", "---\n", "\n---"}
    words |= {word for word in source.replace("\\", " ").split() if 1 < len(word) < 20}
    words |= {"Error performing a ", "bytes 0-", "__", "index.json/", "train", "refs/pr/1", "parquet-mr version 1."}
    draw = random.Random(repr(source))
    num_pairs = min(150, (1 << 21) // length)
    seeds = [[word] for word in sorted(words)] + [draw.choices(sorted(words), k=2) for _ in range(num_pairs)]
    for seed in seeds:
        unit = "".join(seed)
        for before in ("", draw.choice(["://", 'message: "', "---\n", "data/"])):
            text = (before + unit * (length // len(unit) + 1))[:length]
            yield text.encode("latin-1", "replace") if is_bytes else text


def spent(pattern: Bounded[Any], text: Any) -> float:
    """Time all ways to match."""
    compiled, began = pattern.compiled, time.process_time()
    compiled.fullmatch(text)
    compiled.match(text)
    compiled.search(text)
    compiled.sub(text[:0], text)
    return time.process_time() - began


@pytest.mark.soak
def test_time_grows_as_the_text(patterns: list[Bounded[Any]]) -> None:
    slow = []
    for pattern in patterns:
        for text in hostile(pattern, pattern.longest):
            if spent(pattern, text) < 0.005:  # that freezes nothing
                continue
            half, whole = (min(spent(pattern, part) for _ in range(5)) for part in (text[: len(text) // 2], text))
            if whole > 3 * half:
                slow.append((pattern.expression, text[:40], half, whole))
    assert not slow


@pytest.mark.soak
@pytest.mark.parametrize("unit", ["a", "https://", "a:", "://a@", "?", "a?", "//", "x@", "<Code>", 'message: "', "\0"])
def test_time_of_redacting_grows_as_the_text(unit: str) -> None:
    def took(length: int) -> float:
        text = unit * (length // len(unit))
        began = time.process_time()
        redacted(text)
        StoreError(text)
        return time.process_time() - began

    assert min(took(4 << 20) for _ in range(3)) <= max(3 * min(took(2 << 20) for _ in range(3)), 0.01)


@pytest.mark.soak
@pytest.mark.parametrize("glob", ["*a", "**a", "?*", "*/", "**/", "[ab]*", "*ab?", "**/a/"])
@pytest.mark.parametrize("part", ["a", "a/", "ab", "/"])
def test_time_of_globs_grows_as_the_name(glob: str, part: str) -> None:
    pattern = glob * (8 if "**" in glob else 200) + "!"

    def took(length: int) -> float:
        name = part * (length // len(part))
        began = time.process_time()
        fits(pattern, name)
        return time.process_time() - began

    assert min(took(8000) for _ in range(3)) <= max(3 * min(took(4000) for _ in range(3)), 0.01)
