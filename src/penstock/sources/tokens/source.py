"""Tokenizing: a transform of many texts at once, and a source with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, DataError, MissingColumnError
from penstock.sources.base import TransformedShardedSource
from penstock.sources.tokens.tokenizers import BatchEncoder, TokenizerConfig, load_tokenizer, tokenizer_hash
from penstock.sources.transforms import BatchTransform, ChainedTransform, MapTransform, RenameFields
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from penstock.sources.base import GivesSource, ShardedSource
    from penstock.sources.transforming import WorkerKind
    from penstock.types import Sample


class TokenizeTransform(BatchTransform, written_name="tokens.source.TokenizeTransform/1"):
    """Tokenizes a text field: returns `input_ids`, `attention_mask` if wanted, and the fields to keep.

    Args:
        tokenizer: A tokenizer of the tokenizers library or of transformers; by default the one that the configuration
            names.
        config: How it is used.
        content_field: Where the text is.
        additional_fields: Fields to keep beside the tokens.
        batch_size: How many texts are tokenized at once.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: TokenizerConfig,
        content_field: str = "text",
        additional_fields: Sequence[str] | None = None,
        batch_size: int = 1000,
    ) -> None:
        check_whole("batch_size", batch_size, 1)
        self.batch_size = batch_size
        self._tokenizer = load_tokenizer(config) if tokenizer is None else tokenizer
        self._config, self._content_field = config, content_field
        self._additional_fields = tuple(additional_fields or ())
        self._encoder: BatchEncoder | None = None
        self.keeps_number = config.when_long not in ("split", "drop")

    def __call__(self, samples: list[Sample]) -> Iterator[Sample]:
        """Yield the tokens of each text."""
        if self._encoder is None:
            self._encoder = BatchEncoder(self._tokenizer)
        encoded = self._encoder.encode([self._text(number, sample) for number, sample in enumerate(samples)])
        for number, (sample, tokens) in enumerate(zip(samples, encoded, strict=True)):
            kept = self._kept(number, sample)
            for ids in self._fit(np.array(tokens, np.int32), self._encoder):
                yield {**self._finish(ids, self._encoder), **kept}

    @property
    def tokenizer_hash(self) -> str | None:
        """A hash of what the tokenizer does, or None if its content cannot be read."""
        return tokenizer_hash(self._tokenizer)

    def settings(self) -> Mapping[str, Any] | None:
        """Return everything, with the tokenizer by its content."""
        content = self.tokenizer_hash
        if content is None:
            return None
        config = {name: value for name, value in self._config.to_dict().items() if name != "name_or_path"}
        return {
            "tokenizer": content,
            "config": config,
            "content_field": self._content_field,
            "additional_fields": self._additional_fields,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoder": None}

    def _text(self, number: int, sample: Sample) -> str:
        field = self._content_field
        text = sample.get(field)
        if isinstance(text, str):
            return text
        if field not in sample:
            raise MissingColumnError(
                f"the sample has no field {field!r} to tokenize: it has {', '.join(sample)}", number=number
            )
        hint = ": write messages as text with a chat template first" if isinstance(text, list) else ""
        raise DataError(f"{field!r} is a {type(text).__name__}, not text{hint}", number=number)

    def _kept(self, number: int, sample: Sample) -> Sample:
        try:
            return {name: sample[name] for name in self._additional_fields}
        except KeyError as missing:
            raise MissingColumnError(f"the sample has no field {missing} to keep", number=number) from None

    def _fit(self, ids: npt.NDArray[np.int32], encoder: BatchEncoder) -> Iterable[npt.NDArray[np.int32]]:
        """Cut tokens to the length that is left beside the special ones, as asked for."""
        num_special = len(encoder.before) + len(encoder.after) if self._config.add_special_tokens else 0
        room, when_long = self._config.max_length - num_special, self._config.when_long
        if len(ids) <= room or when_long is None:
            return [ids]
        if room <= self._config.stride:
            raise ConfigError(
                f"max_length={self._config.max_length} leaves no room for text beside {num_special} special tokens"
                " and the stride"
            )
        if when_long == "drop":
            return []
        if when_long == "truncate":
            return [ids[:room]]
        step = room - self._config.stride
        # The last one that begins within what the one before leaves over.
        return [ids[begin : begin + room] for begin in range(0, len(ids) - self._config.stride, step)]

    def _finish(self, ids: npt.NDArray[np.int32], encoder: BatchEncoder) -> Sample:
        config = self._config
        if config.add_special_tokens and (encoder.before or encoder.after):
            ids = np.concatenate([encoder.before, ids, encoder.after]).astype(np.int32)
        length = len(ids)
        if config.padding and length < config.max_length:
            ids = np.concatenate([ids, np.full(config.max_length - length, encoder.pad_id, np.int32)])
        if not config.return_attention_mask:
            return {"input_ids": ids}
        return {"input_ids": ids, "attention_mask": (np.arange(len(ids)) < length).astype(np.int32)}


@checks_making
class TokenizedShardedSource(TransformedShardedSource):
    """A source whose text is tokenized as it is read, many samples at once.

    Samples are `input_ids` (an array), `attention_mask` if the configuration says so, and the additional fields.

    Args:
        source: The source.
        tokenizer: A tokenizer of the tokenizers library or of transformers; None loads what the configuration names.
        tokenizer_config: How it is used; a name or path stands for the defaults.
        content_field: Where the text is.
        additional_fields: Fields to keep beside the tokens.
        format_callback: A function of yours that is applied to samples first.
        format_fields: Fields to rename, after that.
        batch_size: How many texts are tokenized at once.
        num_workers: How many threads or processes tokenize.
        worker_kind: `"thread"`, which suffices for tokenizers that are not written in Python, or `"process"`.
    """

    def __init__(
        self,
        source: ShardedSource | GivesSource,
        tokenizer: Any,
        tokenizer_config: TokenizerConfig | str,
        content_field: str = "text",
        additional_fields: Sequence[str] | None = None,
        format_callback: Callable[[Sample], Sample] | None = None,
        format_fields: Mapping[str, str] | None = None,
        *,
        batch_size: int = 1000,
        num_workers: int = 0,
        worker_kind: WorkerKind = "thread",
    ) -> None:
        config = TokenizerConfig(tokenizer_config) if isinstance(tokenizer_config, str) else tokenizer_config
        steps: list[Any] = [] if format_callback is None else [MapTransform(format_callback)]
        if format_fields:
            steps.append(RenameFields(format_fields))
        steps.append(TokenizeTransform(tokenizer, config, content_field, additional_fields, batch_size))
        super().__init__(source, ChainedTransform(steps), num_workers=num_workers, worker_kind=worker_kind)
