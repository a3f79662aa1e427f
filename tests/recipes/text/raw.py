"""Tiny raw files of English Wikipedia, and a vocabulary of letters."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from penstock.testing import write_lines

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    ".",
    ",",
    "the",
]


def documents(name: str, num_documents: int = 3, num_lines: int = 4) -> list[list[str]]:
    numbers = random.Random(name)
    return [
        [
            " ".join("".join(numbers.choices(LETTERS, k=numbers.randint(1, 4))) for _ in range(numbers.randint(1, 8)))
            + " ."
            for _ in range(num_lines)
        ]
        for _ in range(num_documents)
    ]


def write_wiki(folder: Path, num_parts: int = 3) -> dict[str, list[list[str]]]:
    """Write parts, eval.txt and vocab.txt; return the documents of each file."""
    names = [f"part-{number:05}-of-00500" for number in range(num_parts)]
    made = {name: documents(name) for name in (*names, "eval.txt")}
    for name, each in made.items():
        lines = [line for document in each for line in (*document, "")]
        write_lines(folder / name, lines)
    write_lines(folder / "vocab.txt", TOKENS)
    return made
