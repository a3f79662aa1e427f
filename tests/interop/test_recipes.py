"""Recipes beside the original: its readers read what ours write, ours what its scripts write; draws are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop.conftest import release_folder
from tests.recipes.readers import write_tokenizer
from tests.recipes.text.raw import write_wiki

from penstock.recipes.table import recipes
from penstock.recipes.text import StreamingEnWiki, StreamingPile
from penstock.recipes.text.documents import DocumentSource
from penstock.recipes.text.pretraining import PairOptions, PairSource, WordPieces
from penstock.testing import write_lines
from penstock.testing.recipes import read_rows

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
SMALL: dict[str, Any] = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 4, "short_seq_prob": 0.3}


def run(python: Path | str, script: str, *arguments: object) -> str:
    command = [str(python), str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/tmp")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read_by_original(python: Path, name: str, folder: Path, scratch: Path, **arguments: Any) -> list[dict[str, Any]]:
    out = scratch / "read.json"
    run(python, "recipes_peer.py", "read", name, json.dumps({"local": str(folder), **arguments}), out)
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


def pile_rows(begin: int, end: int) -> list[dict[str, Any]]:
    words = [chr(ord("a") + number % 26) * (1 + number % 12) for number in range(begin, end)]
    return [{"text": word, "meta": {"pile_set_name": "ArXiv"}} for word in words]


def write_pile(folder: Path) -> Path:
    for number in range(2):
        write_lines(folder / f"train/{number:02}.jsonl", pile_rows(10 * number, 10 * number + 10))
    for split in ("val", "test"):
        write_lines(folder / f"{split}.jsonl", pile_rows(3, 9))
    return folder


def write_whole_tokenizer(folder: Path) -> str:
    """Write a tokenizer that transformers can load, too."""
    write_tokenizer(folder)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_the_original_reads_the_pile_as_we_do(peer_python: Path, tmp_path: Path) -> None:
    raw = write_pile(tmp_path / "raw")
    recipes.get("pile").convert(in_root=raw, out_root=tmp_path / "out", workers=1, progress_bar=0)
    own: dict[str, Any] = {
        "tokenizer_name": write_whole_tokenizer(tmp_path / "words"),
        "max_seq_len": 8,
        "group_method": "truncate",
    }
    theirs = read_by_original(peer_python, "StreamingPile", tmp_path / "out/train", tmp_path, **own)
    ours = StreamingPile(local=str(tmp_path / "out/train"), batch_size=1, **own)
    assert len(theirs) == ours.num_samples == 20
    for sample, row in zip(theirs, (ours[number] for number in range(20)), strict=True):
        assert {name: sample[name] for name in row} == {name: values.tolist() for name, values in row.items()}


def test_we_read_what_the_original_makes_of_the_pile(peer_python: Path, tmp_path: Path) -> None:
    raw = write_pile(tmp_path / "raw")
    flags = ["--in_root", raw, "--out_root", tmp_path / "theirs", "--compression", "zstd:3"]
    run(peer_python, "recipes_peer.py", "convert", "streaming.text.convert.pile", *flags)
    recipes.get("pile").convert(in_root=raw, out_root=tmp_path / "ours", workers=1, progress_bar=0)
    for split in ("train", "val", "test"):
        assert read_rows(tmp_path / "theirs" / split) == read_rows(tmp_path / "ours" / split)


def test_sentences_of_wikipedia_are_those_of_the_original(peer_python: Path, tmp_path: Path) -> None:
    write_wiki(tmp_path / "raw", 500)
    flags = ["--in_root", tmp_path / "raw", "--out_root", tmp_path / "theirs", "--progress_bar", 0]
    run(peer_python, "recipes_peer.py", "convert", "streaming.text.convert.enwiki_text", *flags)
    recipes.get("enwiki_text").convert(in_root=tmp_path / "raw", out_root=tmp_path / "ours", workers=1, progress_bar=0)
    for split in ("train", "val"):
        ours = [{"text": row["text"]} for row in read_rows(tmp_path / "ours" / split)]
        assert read_rows(tmp_path / "theirs" / split) == ours


def test_the_original_reads_samples_for_bert(peer_python: Path, tmp_path: Path) -> None:
    write_wiki(tmp_path / "raw")
    recipes.get("enwiki").convert(
        in_root=tmp_path / "raw", out_root=tmp_path / "out", splits="train", workers=1, progress_bar=0, **SMALL
    )
    theirs = read_by_original(peer_python, "StreamingEnWiki", tmp_path / "out/train", tmp_path)
    ours = StreamingEnWiki(local=str(tmp_path / "out/train"), batch_size=1)
    num_wrong = 0
    for number, sample in enumerate(theirs):
        row = ours[number]
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            assert sample[name] == row[name].tolist()
        different = np.flatnonzero(np.array(sample["labels"]) != row["labels"]).tolist()
        assert different in ([], [0]), "the label of [CLS], which the original sets where nothing is masked"
        num_wrong += bool(different)
    assert num_wrong


@pytest.mark.parametrize("release", ["0.5.0", "0.13.0"])
def test_samples_for_bert_are_drawn_as_by_the_original(release: str, tmp_path: Path) -> None:
    write_wiki(tmp_path, 3)
    files = sorted(tmp_path.glob("part-*"))
    settings = json.dumps({**SMALL, "masked_lm_prob": 0.15, "seed": 12345})
    script = [str(HERE / "original_pretraining.py"), str(release_folder(release)), str(tmp_path / "vocab.txt")]
    command = [sys.executable, *script, settings, *map(str, files)]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    words, documents = WordPieces(str(tmp_path / "vocab.txt")), DocumentSource(str(tmp_path / "part-*"))
    source = PairSource(documents, words, PairOptions(**SMALL), 12345, is_one_unit=True)
    ours = []
    for pair in source._pairs(source.shard_names[0]):
        segments = [0] * pair.num_first + [1] * (len(pair.tokens) - pair.num_first)
        ours.append([pair.tokens, segments, pair.is_random_next, pair.positions, pair.masked])
    assert len(ours) > 50
    assert ours == theirs
