"""Tokens made once and written to files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from penstock import (
    JsonShardedSource,
    ParquetShardedSource,
    StreamingDataset,
    TokenizerConfig,
    TokenizeTransform,
    pretokenize,
    tokenize_and_save,
)
from penstock.errors import ConfigError, OutputExistsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Files of text with one word more each, and a tokenizer that gives the word n the number n."""
    lines = [json.dumps({"id": n, "text": " ".join(f"w{word}" for word in range(1, n % 20 + 2))}) for n in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:50]))
    (tmp_path / "b.jsonl").write_text("\n".join(lines[50:]))
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def tokenizer() -> Any:
    made = Tokenizer(models.WordLevel({"<unk>": 0, **{f"w{n}": n for n in range(1, 30)}}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def expected(most: int = 20) -> list[list[int]]:
    return [list(range(1, min(n % 20 + 1, most) + 1)) for n in range(100)]


@pytest.mark.parametrize("kind", ["path", "object", "config"])
def test_files_of_text_become_files_of_tokens(texts: Path, kind: str) -> None:
    given: Any = f"{texts}/tokenizer.json"
    if kind == "object":
        given = tokenizer()
    if kind == "config":
        given = TokenizerConfig(given, max_length=6, return_attention_mask=False)
    out = texts / "out"
    stats = tokenize_and_save(
        f"{texts}/*.jsonl", given, out, max_length=6, additional_fields=["id"], num_shards=3, num_workers=2
    )
    assert (stats.num_examples, stats.num_shards) == (100, 3)
    rows = list(ParquetShardedSource(str(out)))
    assert [list(row["input_ids"]) for row in rows] == expected(6)
    assert [row["id"] for row in rows] == list(range(100))
    assert ("attention_mask" in rows[0]) == (kind != "config")
    with pytest.raises(OutputExistsError):
        tokenize_and_save(f"{texts}/*.jsonl", given, out)
    assert tokenize_and_save(f"{texts}/*.jsonl", given, out, overwrite=True).num_shards == 1


def test_tokens_for_a_streaming_dataset(texts: Path) -> None:
    tokenize_and_save(f"{texts}/*.jsonl", f"{texts}/tokenizer.json", texts / "mds", "mds", compression="zstd")
    rows = list(StreamingDataset(local=str(texts / "mds"), shuffle=False))
    assert [row["input_ids"].tolist() for row in rows] == expected()
    assert rows[0]["input_ids"].dtype == "int32"


@pytest.mark.parametrize("num_proc", [None, 2])
def test_any_transform(texts: Path, num_proc: int | None) -> None:
    source = JsonShardedSource(f"{texts}/*.jsonl")
    transform = TokenizeTransform(tokenizer(), TokenizerConfig("given", max_length=4), batch_size=10)
    stats = pretokenize(source, transform, texts / "out", "jsonl", num_proc=num_proc)
    assert stats.num_examples == 100
    assert [row["input_ids"] for row in JsonShardedSource(str(texts / "out"))] == expected(4)
    assert pretokenize(source, transform, texts / "out", "jsonl", num_proc=num_proc, resume=True) == stats
    with pytest.raises(ConfigError, match="num_proc=-1"):
        pretokenize(source, transform, texts / "x", num_proc=-1)
