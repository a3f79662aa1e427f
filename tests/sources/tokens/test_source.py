"""Tokenizing: many texts at once, long ones as asked for, special tokens, and hashes of what a tokenizer does."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from penstock import (
    MemoryShardedSource,
    PackedShardedSource,
    TokenizedShardedSource,
    TokenizerConfig,
    TokenizerManager,
    TransformError,
    tokenizer_hash,
)
from penstock.errors import ConfigError, DataError, StoreError
from tests.sources.cutting import check_cut_anywhere

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [f"w{number}" for number in range(50)]


def train(extra: list[str] | None = None) -> Any:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<s>", "</s>", *(extra or [])])
    tokenizer.train_from_iterator([" ".join(WORDS), "a"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return tokenizer


TOKENIZER = train()
IDS = {word: TOKENIZER.token_to_id(word) for word in WORDS}


def texts(*lengths: int) -> MemoryShardedSource:
    samples = [{"text": " ".join(WORDS[:length]), "id": number} for number, length in enumerate(lengths)]
    return MemoryShardedSource(samples, fingerprint="texts")


def tokenized(source: Any, **config: Any) -> TokenizedShardedSource:
    return TokenizedShardedSource(source, TOKENIZER, TokenizerConfig("words", **config), additional_fields=["id"])


def ids(sample: dict[str, Any]) -> list[int]:
    return [int(token) for token in sample["input_ids"]]


def test_text_becomes_tokens_with_the_special_ones_around_it() -> None:
    first, second = tokenized(texts(3, 0))
    assert ids(first) == [2, IDS["w0"], IDS["w1"], IDS["w2"], 3]
    assert first["input_ids"].dtype == np.int32
    assert first["attention_mask"].tolist() == [1] * 5
    assert first["id"] == 0
    assert ids(second) == [2, 3]
    assert ids(first) == TOKENIZER.encode("w0 w1 w2").ids
    bare = next(iter(tokenized(texts(3), add_special_tokens=False, return_attention_mask=False)))
    assert list(bare) == ["input_ids", "id"]
    assert ids(bare) == [IDS["w0"], IDS["w1"], IDS["w2"]]


def test_long_texts_are_cut_split_dropped_or_left() -> None:
    words = [IDS[word] for word in WORDS]
    assert [ids(each) for each in tokenized(texts(10, 2), max_length=6)] == [[2, *words[:4], 3], [2, *words[:2], 3]]
    assert [each["id"] for each in tokenized(texts(10, 2), max_length=6, overflow="drop")] == [1]
    assert [len(each["input_ids"]) for each in tokenized(texts(10), max_length=6, truncation=False)] == [12]
    split = [ids(each) for each in tokenized(texts(10), max_length=6, overflow="split", stride=1)]
    assert split == [[2, *words[0:4], 3], [2, *words[3:7], 3], [2, *words[6:10], 3]]


@given(length=st.integers(0, 49), max_length=st.integers(4, 20), stride=st.integers(0, 1))
def test_the_parts_of_a_split_text_are_the_text(length: int, max_length: int, stride: int) -> None:
    parts = [
        ids(each)[1:-1] for each in tokenized(texts(length), max_length=max_length, overflow="split", stride=stride)
    ]
    whole = parts[0] + [token for part in parts[1:] for token in part[stride:]]
    assert whole == [IDS[word] for word in WORDS[:length]]
    assert all(len(part) + 2 <= max_length for part in parts)
    assert all(part[stride:] for part in parts[1:])  # none repeats only what the one before had


def test_padding_to_the_full_length() -> None:
    sample = next(iter(tokenized(texts(2), max_length=6, padding=True)))
    assert ids(sample) == [2, IDS["w0"], IDS["w1"], 3, 1, 1]
    assert sample["attention_mask"].tolist() == [1, 1, 1, 1, 0, 0]


def test_samples_are_formatted_before_they_are_tokenized() -> None:
    source = MemoryShardedSource([{"q": "w1", "a": "w2"}])
    made = TokenizedShardedSource(
        source,
        TOKENIZER,
        TokenizerConfig("words", add_special_tokens=False),
        content_field="content",
        format_callback=lambda sample: {"joined": f"{sample['q']} {sample['a']}"},
        format_fields={"joined": "content"},
    )
    assert [ids(sample) for sample in made] == [[IDS["w1"], IDS["w2"]]]


def test_lengths_are_known_where_each_text_is_one_sample() -> None:
    assert len(tokenized(texts(1, 2, 3))) == 3
    for overflow in ("split", "drop"):
        with pytest.raises(TypeError):
            len(tokenized(texts(1, 2), overflow=overflow))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cut_anywhere(num_workers: int) -> None:
    source = TokenizedShardedSource(
        texts(*range(40)),
        TOKENIZER,
        TokenizerConfig("words", max_length=8, overflow="split"),
        batch_size=7,
        num_workers=num_workers,
    )
    check_cut_anywhere(source.__iter__, places=range(0, 100, 9))


def test_all_of_a_text_arrives_in_packed_rows() -> None:
    config = TokenizerConfig("words", add_special_tokens=False, truncation=False)
    source = PackedShardedSource(TokenizedShardedSource(texts(*range(30)), TOKENIZER, config), 16, 3)
    tokens = sorted(int(t) for row in source for t in row["input_ids"][row["attention_mask"] == 1] if t != 3)
    assert tokens == sorted(IDS[word] for length in range(30) for word in WORDS[:length])


def test_a_tokenizer_of_the_users_is_left_as_it_is() -> None:
    theirs = train()
    theirs.enable_truncation(3)
    theirs.enable_padding(length=5)
    made = next(iter(TokenizedShardedSource(texts(10), theirs, TokenizerConfig("words"))))
    assert len(made["input_ids"]) == 12
    assert theirs.truncation["max_length"] == 3


def test_tokenizers_are_loaded_from_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    manager = TokenizerManager()
    by_folder = manager.get_tokenizer(str(tmp_path))
    assert manager.get_tokenizer(TokenizerConfig(str(tmp_path))) is by_folder
    by_file = manager.get_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer_hash(by_folder) == tokenizer_hash(by_file) == tokenizer_hash(TOKENIZER)
    assert ids(next(iter(TokenizedShardedSource(texts(1), None, str(tmp_path))))) == [2, IDS["w0"], 3]
    for name in (str(tmp_path / "nowhere"), "./nowhere", "~/nowhere", "nowhere.json"):  # files, all of them
        with pytest.raises(ConfigError, match="there is no tokenizer at"):
            manager.get_tokenizer(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        StoreError, match=r"the tokenizer 'no/where' cannot be loaded.*write a file as ./tokenizer.json"
    ):
        manager.get_tokenizer("no/where")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer"):
        TokenizerManager().get_tokenizer(str(tmp_path))


def test_hashes_follow_the_content_and_not_the_name() -> None:
    assert tokenizer_hash(train()) == tokenizer_hash(TOKENIZER)
    assert tokenizer_hash(train(["<more>"])) != tokenizer_hash(TOKENIZER)
    same = [TokenizedShardedSource(texts(1), TOKENIZER, name).fingerprint for name in ("a", "b")]
    assert same[0] == same[1] is not None
    assert TokenizedShardedSource(texts(1), train(["<more>"]), "a").fingerprint != same[0]
    assert tokenized(texts(1), max_length=9).fingerprint != tokenized(texts(1), max_length=8).fingerprint
    assert tokenizer_hash(object()) is None


def test_it_is_sent_to_processes() -> None:
    source = TokenizedShardedSource(
        texts(3, 4), TOKENIZER, TokenizerConfig("words"), num_workers=1, worker_kind="process"
    )
    samples = source.open_shard("memory:0")
    assert [len(sample["input_ids"]) for sample in samples] == [5, 6]
    samples.close()
    pickle.loads(pickle.dumps(TokenizerConfig("words")))


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (
            {"title": "a"},
            r"row 1 of memory:0: MissingColumnError: the sample has no field 'text' to tokenize: it has title",
        ),
        ({"text": [{"role": "user"}]}, r"row 1 of memory:0: .*'text' is a list, not text: write messages as text"),
        ({"text": None}, r"row 1 of memory:0: .*'text' is a NoneType, not text"),
    ],
)
def test_what_cannot_be_tokenized_names_its_row(sample: dict[str, Any], text: str) -> None:
    source = MemoryShardedSource([{"text": "w1"}, sample])
    with pytest.raises(TransformError, match=text):
        list(TokenizedShardedSource(source, TOKENIZER, "words"))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"max_length": 0}, "max_length=0"),
        ({"overflow": "keep"}, "overflow='keep'"),
        ({"padding": "longest"}, "PadCollator"),
        ({"stride": 4}, "stride= only works with overflow='split'"),
        ({"stride": 9, "overflow": "split", "max_length": 8}, "stride=9 must be below max_length=8"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TokenizerConfig("words", **config)


def test_remote_code_is_not_trusted_unless_asked_for() -> None:
    assert TokenizerConfig("words").trust_remote_code is False


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(TransformError, match="int is not a tokenizer"):
        list(TokenizedShardedSource(texts(1), 3, "words"))
