"""Pretraining samples of BERT: pairs of segments with masked words, as the scripts of BERT draw them.

Tokens are numbers from the beginning. For the same seed, vocabulary and files, all draws are those of these scripts.
"""

from __future__ import annotations

import random
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import ConfigError, EmptyDatasetError
from penstock.extras import require
from penstock.order.keys import hash_key
from penstock.sources.base import ShardedSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.recipes.text.documents import DocumentSource
    from penstock.types import Sample

_UNKNOWN = "[UNK]"
_LONGEST_WORD = 200
_TEXTS_AT_ONCE = 1024
_DRAWS = 10  # of another document
INTEGERS, FLOATS = "<i4", "<f4"
# The columns of a sample, each the bytes of an array.
DTYPES = {
    "input_ids": INTEGERS,
    "input_mask": INTEGERS,
    "segment_ids": INTEGERS,
    "masked_lm_positions": INTEGERS,
    "masked_lm_ids": INTEGERS,
    "masked_lm_weights": FLOATS,
    "next_sentence_labels": INTEGERS,
}


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How pairs of segments are made."""

    max_seq_length: int = 512
    max_predictions_per_seq: int = 76
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1


class WordPieces:
    """A vocabulary of BERT, a token on each line, and the numbers of the tokens of texts."""

    def __init__(self, vocab_file: str, *, lower: bool = True) -> None:
        try:
            lines = Path(vocab_file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{vocab_file} cannot be read as a vocabulary, a token on each line: {error}") from error
        self.ids: dict[str, int] = {}
        for line in lines:
            self.ids.setdefault(line.strip(), len(self.ids))
        lacking = [token for token in ("[PAD]", _UNKNOWN, "[CLS]", "[SEP]", "[MASK]") if token not in self.ids]
        if lacking:
            raise ConfigError(f"{vocab_file} is no vocabulary of BERT: it lacks {', '.join(lacking)}")
        self._lower = lower
        self._tokenizer: Any = None

    @property
    def fingerprint(self) -> str:
        """A hash of all tokens."""
        return f"{hash_key(*self.ids, self._lower):016x}"

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text."""
        if self._tokenizer is None:
            self._tokenizer = self._make()
        return [each.ids for each in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _make(self) -> Any:
        library = require("tokenizers", extra="text", purpose="cutting words into pieces")
        from tokenizers import models, normalizers, pre_tokenizers

        model = models.WordPiece(self.ids, unk_token=_UNKNOWN, max_input_chars_per_word=_LONGEST_WORD)
        tokenizer = library.Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=self._lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokenizer": None}


class Pair(NamedTuple):
    """Two segments, some of whose tokens are masked."""

    tokens: list[int]
    num_first: int  # tokens of the first segment, with those that stand around it
    is_random_next: bool
    positions: list[int]
    masked: list[int]  # the tokens that stood there


class PairMaker:
    """Makes pairs of documents, each a list of sentences of tokens; every choice is drawn from `numbers`."""

    def __init__(self, ids: dict[str, int], options: PairOptions, numbers: random.Random) -> None:
        self._cls, self._sep, self._mask = ids["[CLS]"], ids["[SEP]"], ids["[MASK]"]
        self._num_words, self._options, self._numbers = len(ids), options, numbers

    def make(self, documents: list[list[list[int]]]) -> list[Pair]:
        """Return the pairs of all documents, each of which is gone through several times, in random order."""
        self._numbers.shuffle(documents)
        pairs: list[Pair] = []
        for _ in range(self._options.dupe_factor):
            for number in range(len(documents)):
                pairs += self._of_document(documents, number)
        self._numbers.shuffle(pairs)
        return pairs

    def _of_document(self, documents: list[list[list[int]]], number: int) -> Iterator[Pair]:
        document, most = documents[number], self._options.max_seq_length - 3
        is_short = self._numbers.random() < self._options.short_seq_prob
        wanted = self._numbers.randint(2, most) if is_short else most
        chunk: list[list[int]] = []
        at = 0
        while at < len(document):
            chunk.append(document[at])
            if at == len(document) - 1 or sum(map(len, chunk)) >= wanted:
                end = self._numbers.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                first = [token for sentence in chunk[:end] for token in sentence]
                is_random = len(chunk) == 1 or self._numbers.random() < 0.5
                if is_random:
                    second = self._random_next(documents, number, wanted - len(first))
                    at -= len(chunk) - end  # the sentences that were not used come again
                else:
                    second = [token for sentence in chunk[end:] for token in sentence]
                self._shorten(first, second, most)
                yield self._masked(first, second, is_random_next=is_random)
                chunk = []
            at += 1

    def _random_next(self, documents: list[list[list[int]]], number: int, wanted: int) -> list[int]:
        for _ in range(_DRAWS):
            other = self._numbers.randint(0, len(documents) - 1)
            if other != number:
                break
        document, tokens = documents[other], []
        for sentence in document[self._numbers.randint(0, len(document) - 1) :]:
            tokens += sentence
            if len(tokens) >= wanted:
                break
        return tokens

    def _shorten(self, first: list[int], second: list[int], most: int) -> None:
        """Cut the longer of two segments token by token, at either end."""
        while len(first) + len(second) > most:
            longer = first if len(first) > len(second) else second
            if self._numbers.random() < 0.5:
                del longer[0]
            else:
                longer.pop()

    def _masked(self, first: list[int], second: list[int], *, is_random_next: bool) -> Pair:
        tokens = [self._cls, *first, self._sep, *second, self._sep]
        num_first = len(first) + 2
        candidates = [at for at in range(1, len(tokens) - 1) if at != num_first - 1]
        self._numbers.shuffle(candidates)
        share = round(len(tokens) * self._options.masked_lm_prob)
        positions = candidates[: min(self._options.max_predictions_per_seq, max(1, share))]
        output = list(tokens)
        for at in positions:
            if self._numbers.random() < 0.8:
                output[at] = self._mask
            elif self._numbers.random() >= 0.5:
                output[at] = self._numbers.randint(0, self._num_words - 1)
        positions.sort()
        return Pair(output, num_first, is_random_next, positions, [tokens[at] for at in positions])


def as_arrays(pair: Pair, options: PairOptions) -> dict[str, Any]:
    """Return the seven arrays of a sample, padded with zeros."""
    length, num_masked = len(pair.tokens), len(pair.positions)
    sizes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), options.max_seq_length)
    arrays = {name: np.zeros(sizes.get(name, options.max_predictions_per_seq), DTYPES[name]) for name in DTYPES}
    arrays["input_ids"][:length] = pair.tokens
    arrays["input_mask"][:length] = 1
    arrays["segment_ids"][pair.num_first : length] = 1
    arrays["masked_lm_positions"][:num_masked] = pair.positions
    arrays["masked_lm_ids"][:num_masked] = pair.masked
    arrays["masked_lm_weights"][:num_masked] = 1
    return {**arrays, "next_sentence_labels": np.array([pair.is_random_next], INTEGERS)}


class PairSource(ShardedSource):
    """The pretraining samples of text files, unit by unit: a shard each. Documents meet only those of their own unit.

    Args:
        documents: The files.
        words: The vocabulary.
        options: How pairs are made.
        seed: Of all draws.
        is_one_unit: Take all files together, and draw as the scripts of BERT do; otherwise each file is a unit with
            a seed of its own, so that other files do not change what becomes of it.
        num_picked: Take so many samples of a unit, evenly.
    """

    makes_new_samples = True

    def __init__(
        self,
        documents: DocumentSource,
        words: WordPieces,
        options: PairOptions,
        seed: int,
        *,
        is_one_unit: bool = False,
        num_picked: int | None = None,
    ) -> None:
        self._documents, self._words, self._options, self._seed = documents, words, options, seed
        self._is_one_unit, self._num_picked = is_one_unit, num_picked
        self._made: tuple[str, list[Pair]] | None = None  # of the unit that was read last

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the files, or of the first of them."""
        return self._documents.shard_names[: 1 if self._is_one_unit else None]

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of files, vocabulary and options."""
        told = (self._words.fingerprint, *astuple(self._options), self._seed, self._is_one_unit, self._num_picked)
        return f"{self._documents.fingerprint}-{hash_key(repr(told)):016x}"

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        """Yield the samples of a unit from one on."""
        for pair in self._pairs(shard_name)[row:]:
            arrays = as_arrays(pair, self._options)
            yield {name: array.tobytes() for name, array in arrays.items()}

    def _pairs(self, shard_name: str) -> list[Pair]:
        if self._made is None or self._made[0] != shard_name:
            files = self._documents.shard_names if self._is_one_unit else [shard_name]
            documents = [document for name in files for document in self._tokenized(name)]
            if not documents:
                raise EmptyDatasetError(f"there is no text in {', '.join(files)}")
            name = shard_name.rpartition("/")[2]
            seed = self._seed if self._is_one_unit else hash_key("pretraining", self._seed, name)
            numbers = random.Random(seed)  # noqa: S311
            pairs = PairMaker(self._words.ids, self._options, numbers).make(documents)
            if self._num_picked is not None:
                pairs = [pairs[number] for number in picked(self._num_picked, len(pairs))]
            self._made = shard_name, pairs
        return self._made[1]

    def _tokenized(self, file_name: str) -> Iterator[list[list[int]]]:
        """Yield the sentences of each document as tokens."""
        rows = self._documents.open_shard(file_name)
        while documents := rows.take(_TEXTS_AT_ONCE):
            tokens = iter(self._words.encode([line for document in documents for line in document["lines"]]))
            for document in documents:
                sentences = [each for each in (next(tokens) for _ in document["lines"]) if each]
                if sentences:
                    yield sentences
        rows.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}


def picked(count: int, total: int) -> list[int]:
    """Return so many numbers below a total, evenly and each once; all of them if there are no more."""
    count = min(count, total)
    return [number * total // count for number in range(count)]
