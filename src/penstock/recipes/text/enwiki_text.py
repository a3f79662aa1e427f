"""English Wikipedia as plain text: its sentences, or whole documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.recipes.base import Recipe, raw, run_module
from penstock.recipes.text.documents import DocumentSource

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample

_FILES = {"train": "part-*", "val": "eval.txt"}


def sentences_of(document: Sample) -> Iterator[dict[str, Any]]:
    """Yield each sentence with its document and its number in it."""
    for number, line in enumerate(document["lines"]):
        yield {"text": line, "doc_id": document["doc_id"], "line": number}


def whole(document: Sample) -> dict[str, Any]:
    """Return a document as one text."""
    return {"text": "\n".join(document["lines"]), "doc_id": document["doc_id"]}


class EnWikiTextRecipe(Recipe):
    """English Wikipedia as text, from files with a sentence on each line and a blank line between documents:
    <in_root>/part-00000-of-00500 and so on, and eval.txt.
    """

    name = "enwiki_text"
    columns = {"text": "str", "doc_id": "str", "line": "int"}
    transform = sentences_of
    defaults = {"compression": "zstd:7", "hashes": ("sha1", "xxh64"), "size_limit": "32mb"}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add what a sample is."""
        parser.add_argument("--unit", choices=("sentence", "document"), default="sentence", help="what a sample is")

    def options(self, args: argparse.Namespace) -> ConvertOptions:
        """Return columns and transform of sentences or of documents."""
        if args.unit == "sentence":
            return super().options(args)
        return {"columns": {"text": "str", "doc_id": "str"}, "transform": whole}

    def open_split(self, args: argparse.Namespace, split: str) -> DocumentSource:
        """Open the documents of a split."""
        return DocumentSource(raw(args, _FILES.get(split, split)))


recipe = EnWikiTextRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
