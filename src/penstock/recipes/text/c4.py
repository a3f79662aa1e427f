"""C4: pages of the Common Crawl, cleaned, each with its URL and when it was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.recipes.base import Recipe, raw, run_module
from penstock.recipes.text.base import TokenizedDataset
from penstock.sources.files.text_sources import JsonShardedSource

if TYPE_CHECKING:
    import argparse

_RAW_NAMES = {"val": "validation"}


class C4Recipe(Recipe):
    """C4, from its files of JSON lines: <in_root>/c4-train.00000-of-01024.json.gz and so on, c4-validation.*.json.gz.

    They may also be read from the Hugging Face Hub: --in_root hf://datasets/allenai/c4/en
    """

    name = "c4"
    columns = {"text": "str", "timestamp": "str", "url": "str"}
    defaults = {"compression": "zstd:7", "hashes": ("sha1", "xxh64"), "size_limit": "128mb"}

    def open_split(self, args: argparse.Namespace, split: str) -> JsonShardedSource:
        """Open the files of a split, compressed or not."""
        return JsonShardedSource(raw(args, f"c4-{_RAW_NAMES.get(split, split)}.*.json*"))


class StreamingC4(TokenizedDataset):
    """C4, tokenized as it is read."""


recipe = C4Recipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
