"""The Pile: 22 sets of English text, each sample with the name of its set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import BadSampleError
from penstock.recipes.base import Recipe, raw, run_module
from penstock.recipes.text.base import TokenizedDataset
from penstock.sources.files.text_sources import JsonShardedSource

if TYPE_CHECKING:
    import argparse

    from penstock.types import Sample


def flatten(row: Sample) -> dict[str, Any]:
    """Take the name of the set out of what is said about a text."""
    meta = row.get("meta")
    if not isinstance(row.get("text"), str) or not isinstance(meta, dict) or "pile_set_name" not in meta:
        raise BadSampleError(
            'a row of the Pile is {"text": …, "meta": {"pile_set_name": …}}: this one has no such keys'
        )
    return {"text": row["text"], "pile_set_name": meta["pile_set_name"]}


class PileRecipe(Recipe):
    """The Pile, from its files of JSON lines: <in_root>/train/*.jsonl, val.jsonl and test.jsonl, plain, .zst or .gz."""

    name = "pile"
    splits = ("train", "val", "test")
    columns = {"text": "str", "pile_set_name": "str"}
    transform = flatten
    defaults = {"compression": "zstd:16", "hashes": ("sha1", "xxh64"), "size_limit": "128mb"}

    def open_split(self, args: argparse.Namespace, split: str) -> JsonShardedSource:
        """Open the files of a split, compressed or not."""
        return JsonShardedSource(raw(args, f"{'train/*' if split == 'train' else split}.jsonl*"))


class StreamingPile(TokenizedDataset):
    """The Pile, tokenized as it is read."""


recipe = PileRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
