"""English Wikipedia as text: sentences with the borders of their documents, or whole documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.recipes.text.enwiki_text import recipe
from penstock.testing import RecipeContract, write_lines
from penstock.testing.recipes import read_rows
from tests.recipes.text.raw import write_wiki

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.types import Sample


def sentences(files: Mapping[str, list[list[str]]], prefix: str) -> list[Sample]:
    return [
        {"text": line, "doc_id": f"{name}:{number}", "line": at}
        for name, documents in files.items()
        if name.startswith(prefix)
        for number, document in enumerate(documents)
        for at, line in enumerate(document)
    ]


class TestEnWikiText(RecipeContract):
    """The contract, on three parts."""

    recipe = recipe

    def make_raw(self, folder: Path) -> Mapping[str, Sequence[Sample]]:
        """Make parts, eval.txt and a vocabulary that nothing reads."""
        files = write_wiki(folder)
        (folder / "vocab.txt").unlink()
        return {"train": sentences(files, "part"), "val": sentences(files, "eval")}

    def may_lack(self, path: Path) -> bool:
        """Any part may be left out."""
        return path.name.startswith("part")


def test_whole_documents_without_what_is_blank(tmp_path: Path) -> None:
    write_lines(tmp_path / "raw/eval.txt", ["", " a b ", "c", " ", "", "d"])
    given = {"in_root": tmp_path / "raw", "out_root": tmp_path / "out", "splits": "val", "progress_bar": 0}
    recipe.convert(**given, unit="document")
    expected = [{"text": "a b\nc", "doc_id": "eval.txt:0"}, {"text": "d", "doc_id": "eval.txt:1"}]
    assert read_rows(tmp_path / "out/val") == expected
