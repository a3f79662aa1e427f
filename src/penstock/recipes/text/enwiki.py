"""English Wikipedia for BERT: pairs of segments with masked words, and their reader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data.dataset import StreamingDataset
from penstock.recipes.base import Recipe, add_flag, raw, run_module
from penstock.recipes.text.documents import DocumentSource
from penstock.recipes.text.pretraining import DTYPES, PairOptions, PairSource, WordPieces

if TYPE_CHECKING:
    import argparse

_FILES = {"train": "part-*", "val": "eval.txt"}
_NO_LABEL = -100  # what losses of torch leave out


def add_pair_flags(parser: argparse.ArgumentParser, defaults: PairOptions) -> None:
    """Add the flags that say how samples are made of text."""
    add_flag(parser, "--vocab_file", help="a vocabulary of BERT; by default vocab.txt beside the raw files")
    add_flag(parser, "--do_lower_case", type=int, default=1, help="0 for vocabularies with capitals")
    add_flag(parser, "--max_seq_length", type=int, default=defaults.max_seq_length, help="tokens of a sample")
    add_flag(
        parser,
        "--max_predictions_per_seq",
        type=int,
        default=defaults.max_predictions_per_seq,
        help="the most masked words of a sample",
    )
    add_flag(parser, "--dupe_factor", type=int, default=defaults.dupe_factor, help="how often to go through the text")
    add_flag(parser, "--masked_lm_prob", type=float, default=defaults.masked_lm_prob, help="the share of masked words")
    add_flag(
        parser,
        "--short_seq_prob",
        type=float,
        default=defaults.short_seq_prob,
        help="the share of samples that are made shorter",
    )


def pair_options(args: argparse.Namespace) -> PairOptions:
    """Return how samples are made, as the flags say."""
    return PairOptions(**{name: getattr(args, name) for name in PairOptions.__dataclass_fields__})


class EnWikiRecipe(Recipe):
    """English Wikipedia for BERT, from files with a sentence on each line and a blank line between documents:
    <in_root>/part-00000-of-00500 and so on, eval.txt, and a vocabulary. Each file is a task with a seed of its own.
    """

    name = "enwiki"
    columns = {name: "bytes" for name in DTYPES}  # noqa: C420  a new one
    defaults = {"compression": "zstd:16", "hashes": ("sha1", "xxh3_64"), "size_limit": "128mb"}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add how samples are made, and how many of them the val split has."""
        add_pair_flags(parser, PairOptions())
        add_flag(parser, "--num_examples_to_pick", type=int, default=10_000, help="samples of the val split")

    def open_split(self, args: argparse.Namespace, split: str) -> PairSource:
        """Make samples of the files of a split."""
        words = WordPieces(args.vocab_file or os.fspath(raw(args, "vocab.txt")), lower=bool(args.do_lower_case))
        documents = DocumentSource(raw(args, _FILES.get(split, split)))
        picked = args.num_examples_to_pick if split == "val" else None
        return PairSource(documents, words, pair_options(args), args.seed, num_picked=picked)


class StreamingEnWiki(StreamingDataset):
    """Samples for BERT: `input_ids`, `token_type_ids`, `attention_mask`, and `labels`, -100 where no word is masked.

    Args:
        next_sentence: Also return `next_sentence_label`: 1 if the second segment is not what follows the first.
        **options: All that `StreamingDataset` takes.
    """

    def __init__(self, *, next_sentence: bool = False, **options: Any) -> None:
        self.next_sentence = next_sentence
        super().__init__(**options)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        """Return one sample as arrays."""
        row = super().get_item(sample_id, *retry, **named)
        stored = {name: np.frombuffer(row[name], dtype) for name, dtype in DTYPES.items() if name in row}
        labels = np.full(len(stored["input_ids"]), _NO_LABEL, np.int64)
        real = stored["masked_lm_weights"] > 0  # the others only fill up
        labels[stored["masked_lm_positions"][real]] = stored["masked_lm_ids"][real]
        sample = {
            "input_ids": stored["input_ids"].astype(np.int32),
            "token_type_ids": stored["segment_ids"].astype(np.int32),
            "attention_mask": stored["input_mask"].astype(np.int32),
            "labels": labels,
        }
        if self.next_sentence:
            sample["next_sentence_label"] = stored["next_sentence_labels"].astype(np.int64)
        return sample


recipe = EnWikiRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
