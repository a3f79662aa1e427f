"""Small datasets of text, a tokenizer, and how results are compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [f"w{number}" for number in range(60)]


def write_texts(folder: Path) -> Path:
    """Write two datasets of text in two files each, and a tokenizer for them."""
    for name, count in (("web", 300), ("books", 100)):
        lines = [json.dumps({"id": f"{name}{n}", "text": " ".join(WORDS[: n % 50 + 1])}) for n in range(count)]
        half = count // 2
        (folder / f"{name}-0.jsonl").write_text("\n".join(lines[:half]))
        (folder / f"{name}-1.jsonl").write_text("\n".join(lines[half:]))
    vocab = {word: number for number, word in enumerate(["<unk>", "<pad>", "<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def settings(data: Path, **further: Any) -> dict[str, Any]:
    return {
        "datasets": [
            {"name": "web", "data_files": f"{data}/web-*.jsonl"},
            {"name": "books", "data_files": f"{data}/books-*.jsonl"},
        ],
        "default_tokenizer": f"{data}/tokenizer.json",
        "load": {"batch_size": 10},
        **further,
    }


def ids(batches: Any) -> list[str]:
    return [name for batch in batches for name in batch["id"]]


def same(left: Any, right: Any) -> bool:
    """Return whether batches or samples are equal, arrays and lists of arrays included."""
    if isinstance(left, dict):
        return set(left) == set(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(np.array_equal(left, right))
