"""What the examples of training on text share: a small corpus, its tokenizer, and packed rows of its tokens."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from penstock import JsonShardedSource, PackedShardedSource, TokenizedShardedSource, TokenizerConfig

SEQ_LENGTH = 32
WORDS = ("the", "a", "river", "pipe", "water", "valve", "carries", "feeds", "opens", "cold", "old", "far", "and", "or")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="folder of the corpus; written if it is not there")
    parser.add_argument("--steps", type=int, default=12, help="of the whole run, also where it goes on")
    parser.add_argument("--checkpoint", type=Path, help="go on from this file or folder if it is there, and save to it")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--seen", type=Path, help="file to note in what each step was trained on")
    parser.add_argument("--process", type=int, default=0, help="number of this process, of --processes")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--port", type=int, default=0, help="where the first process listens, if there are several")
    return parser.parse_args()


def write_corpus(folder: Path) -> None:
    """Write some files of text, and the tokenizer for it, unless they are there."""
    if (folder / "tokenizer.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 60))) for _ in range(300)]
    for part in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[part::3]]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<eos>"]))
    tokenizer.save(str(folder / "tokenizer.json"))


def packed_rows(folder: Path) -> tuple[PackedShardedSource, int]:
    """Return rows of tokens, and how many different tokens there are."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = JsonShardedSource(f"{folder}/*.jsonl")
    config = TokenizerConfig(str(folder / "tokenizer.json"), max_length=512, return_attention_mask=False)
    tokens = TokenizedShardedSource(texts, tokenizer, config)
    rows = PackedShardedSource(tokens, SEQ_LENGTH, eos_token_id=2, pad_token_id=1, strategy="first_fit")
    return rows, tokenizer.get_vocab_size()


def note(seen: Path | None, step: int, input_ids: Any) -> None:
    """Write down what a step was trained on."""
    if seen is not None:
        with seen.open("a") as file:
            file.write(json.dumps([step, [list(map(int, row)) for row in input_ids]]) + "\n")
