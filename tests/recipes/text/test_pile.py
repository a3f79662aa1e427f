"""The Pile: plain and compressed files of JSON lines, the name of the set kept; tokens as the tokenizer has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError, DataError, TransformError
from penstock.recipes.text.pile import StreamingPile, recipe
from penstock.testing import RecipeContract, write_lines
from tests.recipes.readers import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.types import Sample

SETS = ("ArXiv", "Pile-CC")
KEPT = ["pile_set_name"]


def rows_of(split: str, begin: int, end: int) -> list[dict[str, Any]]:
    return [{"text": f"{split} {number}", "meta": {"pile_set_name": SETS[number % 2]}} for number in range(begin, end)]


class TestPile(RecipeContract):
    """The contract, on three files of a train split in three forms."""

    recipe = recipe

    def make_raw(self, folder: Path) -> Mapping[str, Sequence[Sample]]:
        """Make files whose rows have keys that the original refuses."""
        for number, name in enumerate(("00.jsonl", "01.jsonl.zst", "02.jsonl.gz")):
            write_lines(folder / "train" / name, rows_of("train", 30 * number, 30 * number + 30))
        extra = {"id": 1, "text": "val 0", "meta": {"pile_set_name": "ArXiv", "page": 1}}
        write_lines(folder / "val.jsonl", [extra, *rows_of("val", 1, 5)])
        write_lines(folder / "test.jsonl.zst", rows_of("test", 0, 5))
        counts = {"train": 90, "val": 5, "test": 5}
        return {
            split: [{"text": f"{split} {n}", "pile_set_name": SETS[n % 2]} for n in range(count)]
            for split, count in counts.items()
        }

    def may_lack(self, path: Path) -> bool:
        """Any part of the train split may be left out."""
        return path.parent.name == "train"


def test_a_bad_row_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "raw" / "val.jsonl", [*rows_of("val", 0, 3), {"text": "no set"}])
    with pytest.raises(TransformError, match=r"row 3 of .*val\.jsonl.*pile_set_name"):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", splits="val", progress_bar=0)
    assert not (tmp_path / "out" / "val" / "index.json").exists()
    path.write_text(f"{json.dumps(rows_of('val', 0, 1)[0])}\nnothing\n")
    with pytest.raises(DataError, match=r"val\.jsonl, line 2"):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", splits=["val"], progress_bar=0)


def test_texts_are_laid_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    texts = ["abc", "defgh", "ij", "k"]
    rows = [{"text": text, "meta": {"pile_set_name": "ArXiv"}} for text in texts]
    raw = write_lines(tmp_path / "raw" / "val.jsonl", rows).parent
    recipe.convert(in_root=raw, out_root=tmp_path / "out", splits=["val"], progress_bar=0)
    own: dict[str, Any] = {"tokenizer_name": write_tokenizer(tmp_path), "max_seq_len": 4, "group_method": "concat"}

    def opened(**options: Any) -> StreamingPile:
        return StreamingPile(local=str(tmp_path / "out"), split="val", batch_size=1, **options, **own)

    dataset = opened()
    found = [
        [chr(ord("a") + token - 5) for token in sample["input_ids"][sample["attention_mask"] > 0]] for sample in dataset
    ]
    assert ["".join(row) for row in found] == ["abcd", "efgh", "ijk"]
    assert dataset.num_samples == len(dataset) == 3
    assert dataset[2]["attention_mask"].tolist() == [1, 1, 1, 0]
    whole = opened(shuffle=True)
    shuffled = [sample["input_ids"].tolist() for sample in whole]
    assert sorted(shuffled) == sorted(dataset[number]["input_ids"].tolist() for number in range(3))
    rest = opened(shuffle=True)
    rest.load_state_dict({**whole.state_dict(), "epoch": 0, "position": 1})
    assert [sample["input_ids"].tolist() for sample in rest] == shuffled[1:]
    with pytest.raises(ConfigError, match="keep_columns"):
        opened(keep_columns=KEPT)


def test_samples_are_tokens(tmp_path: Path) -> None:
    raw = write_lines(tmp_path / "raw" / "val.jsonl", rows_of("val", 0, 3)).parent
    recipe.convert(in_root=raw, out_root=tmp_path / "out", splits=["val"], progress_bar=0)
    own: dict[str, Any] = {"tokenizer_name": write_tokenizer(tmp_path), "max_seq_len": 5, "group_method": "truncate"}
    dataset = StreamingPile(
        local=str(tmp_path / "out"), split="val", batch_size=2, keep_columns=["pile_set_name"], **own
    )
    sample = dataset[0]
    assert sample["input_ids"].tolist() == [2, *(5 + ord(letter) - ord("a") for letter in "val"), 3]
    assert sample["attention_mask"].tolist() == [1] * 5
    assert [each["pile_set_name"] for each in dataset] == ["ArXiv", "Pile-CC", "ArXiv"]
    longer = StreamingPile(local=str(tmp_path / "out"), split="val", batch_size=2, **{**own, "max_seq_len": 9})
    assert next(iter(longer))["attention_mask"].tolist() == [1] * 7 + [0] * 2
