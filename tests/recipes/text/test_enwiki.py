"""English Wikipedia for BERT: samples whose masks can be undone, labels that honour the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.publish.writer import MDSWriter
from penstock.recipes.text.enwiki import StreamingEnWiki, recipe
from penstock.recipes.text.pretraining import DTYPES, PairOptions, PairSource, WordPieces
from penstock.testing import RecipeContract
from penstock.testing.recipes import bytes_of, read_rows
from tests.recipes.text.raw import TOKENS, write_wiki

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.types import Sample

SMALL: dict[str, Any] = {
    "max_seq_length": 32,
    "max_predictions_per_seq": 5,
    "dupe_factor": 2,
    "num_examples_to_pick": 8,
    "short_seq_prob": 0.3,
}


class TestEnWiki(RecipeContract):
    """The contract, on three parts; the rows are those of the files, each made by itself."""

    recipe = recipe
    flags = SMALL

    def make_raw(self, folder: Path) -> Mapping[str, Sequence[Sample]]:
        """Make parts, eval.txt and a vocabulary."""
        write_wiki(folder)
        args = recipe.parser().parse_args(["--in_root", str(folder), "--out_root", "nowhere"])
        for name, value in SMALL.items():
            setattr(args, name, value)
        return {split: [*recipe.open_split(args, split)] for split in ("train", "val")}

    def may_lack(self, path: Path) -> bool:
        """Any part may be left out."""
        return path.name.startswith("part")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_wiki(tmp_path / "raw")
    recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", workers=1, progress_bar=0, **SMALL)
    return tmp_path / "out"


def test_samples_are_pairs_of_segments_with_masked_words(made: Path) -> None:
    rows = read_rows(made / "train")
    assert len(read_rows(made / "val")) == 8
    kinds = set()
    for row in rows:
        arrays = {name: np.frombuffer(row[name], dtype) for name, dtype in DTYPES.items()}
        length = int(arrays["input_mask"].sum())
        ids, segments = arrays["input_ids"][:length], arrays["segment_ids"][:length]
        num_first = int((segments == 0).sum())
        assert (ids[0], ids[num_first - 1], ids[-1]) == (2, 3, 3)
        assert not arrays["input_ids"][length:].any()
        num_masked = int(arrays["masked_lm_weights"].sum())
        assert num_masked == min(5, max(1, round(length * 0.15)))
        positions = arrays["masked_lm_positions"]
        assert (np.diff(positions[:num_masked]) > 0).all()
        assert not {0, num_first - 1, length - 1} & {*positions[:num_masked].tolist()}
        assert not positions[num_masked:].any()
        kinds.add(int(arrays["next_sentence_labels"][0]))
    assert kinds == {0, 1}


def test_the_seed_changes_samples_and_other_files_do_not(made: Path, tmp_path: Path) -> None:
    raw, given = tmp_path / "raw", {"workers": 1, "progress_bar": 0, "splits": "train", **SMALL}
    recipe.convert(in_root=raw, out_root=tmp_path / "seed", seed=1, **given)
    assert bytes_of(tmp_path / "seed/train/000000") != bytes_of(made / "train/000000")
    (raw / "part-00001-of-00500").unlink()
    recipe.convert(in_root=raw, out_root=tmp_path / "fewer", **given)
    first, fewer = (read_rows(folder / "train") for folder in (made, tmp_path / "fewer"))
    assert len(fewer) < len(first)
    assert all(row in first for row in fewer)


def test_labels_honour_the_weights(tmp_path: Path) -> None:
    arrays = {
        "input_ids": [2, 4, 6, 3, 4, 3, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0],
        "masked_lm_positions": [1, 4, 0, 0, 0],
        "masked_lm_ids": [5, 7, 0, 0, 0],
        "masked_lm_weights": [1, 1, 0, 0, 0],
        "next_sentence_labels": [1],
    }
    row = {name: np.array(values, DTYPES[name]).tobytes() for name, values in arrays.items()}
    with MDSWriter(out=str(tmp_path), columns=dict.fromkeys(row, "bytes")) as writer:
        writer.write(row)
    sample = StreamingEnWiki(local=str(tmp_path), batch_size=1)[0]
    assert sample["labels"].tolist() == [-100, 5, -100, -100, 7, -100, -100, -100]
    assert sample["labels"].dtype == np.int64
    assert sample["token_type_ids"].tolist() == arrays["segment_ids"]
    assert sample["attention_mask"].tolist() == arrays["input_mask"]
    assert sample["input_ids"].dtype == np.int32
    assert "next_sentence_label" not in sample
    both = StreamingEnWiki(local=str(tmp_path), batch_size=1, next_sentence=True)[0]
    assert both["next_sentence_label"].tolist() == [1]


def test_words_are_cut_as_in_bert(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*TOKENS, "the", "é"]))
    words = WordPieces(str(tmp_path / "vocab.txt"))
    names = list(words.ids)
    texts = ["The\tá\x00b.", "[MASK] 中c", "a" * 201, "a" * 200, ""]
    cut = [[names[token] for token in ids] for ids in words.encode(texts)]
    assert cut[0] == ["the", "a", "##b", "."]
    assert cut[1] == ["[UNK]", "m", "##a", "##s", "##k", "[UNK]", "[UNK]", "c"]
    assert cut[2:] == [["[UNK]"], ["a", *["##a"] * 199], []]
    assert words.ids["é"] == len(TOKENS)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(ConfigError, match=r"vocab\.txt.*lacks \[CLS\]"):
        WordPieces(str(tmp_path / "vocab.txt"))


def test_options_change_the_fingerprint(tmp_path: Path) -> None:
    from penstock.recipes.text.documents import DocumentSource

    write_wiki(tmp_path)
    documents, words = DocumentSource(str(tmp_path / "part-*")), WordPieces(str(tmp_path / "vocab.txt"))
    sources = [
        PairSource(documents, words, PairOptions(), 0),
        PairSource(documents, words, PairOptions(), 1),
        PairSource(documents, words, PairOptions(dupe_factor=2), 0),
        PairSource(documents, words, PairOptions(), 0, is_one_unit=True),
        PairSource(documents, words, PairOptions(), 0, num_picked=3),
    ]
    assert len({source.fingerprint for source in sources}) == len(sources)
