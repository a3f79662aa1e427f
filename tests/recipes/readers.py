"""Readers of the recipes: the arguments that each needs of its own, and what it can be opened on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "text"]


def write_tokenizer(folder: Path) -> str:
    """Write a tokenizer of letters that puts [CLS] and [SEP] around a text, and return its path."""
    tokenizer = Tokenizer(models.WordPiece({**{word: number for number, word in enumerate(WORDS)}}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def own_arguments(name: str, folder: Path) -> dict[str, Any]:
    """Return the arguments that a reader needs beside those of `StreamingDataset`."""
    if name in ("StreamingC4", "StreamingPile"):
        return {"tokenizer_name": write_tokenizer(folder), "max_seq_len": 8, "group_method": "truncate"}
    return {}
