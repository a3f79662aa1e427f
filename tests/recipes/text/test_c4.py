"""C4: gzip files of JSON lines, under the names of the Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import DataError
from penstock.recipes.text.c4 import recipe
from penstock.testing import RecipeContract, write_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.types import Sample


def page(split: str, number: int) -> dict[str, str]:
    return {"text": f"{split} {number}\n", "timestamp": "2019-04-25T12:57:54Z", "url": f"https://x.org/{number}"}


class TestC4(RecipeContract):
    """The contract, on two files of each split."""

    recipe = recipe

    def make_raw(self, folder: Path) -> Mapping[str, Sequence[Sample]]:
        """Make two files of three pages for each split."""
        for split in ("train", "validation"):
            for number in range(2):
                rows = [page(split, 3 * number + row) for row in range(3)]
                write_lines(folder / f"c4-{split}.{number:05}-of-00002.json.gz", rows)
        return {"train": [page("train", n) for n in range(6)], "val": [page("validation", n) for n in range(6)]}

    def may_lack(self, path: Path) -> bool:
        """Any file may be left out, for those who want a part of the dataset."""
        return True


def test_a_page_without_a_column_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "raw/c4-validation.00000-of-00001.json.gz", [page("val", 0), {"text": "a", "url": "b"}])
    with pytest.raises(DataError, match=r"row 1 of .*c4-validation.*timestamp"):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", splits="val", progress_bar=0)
