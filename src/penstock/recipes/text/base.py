"""A dataset of text that is tokenized as it is read, many samples at once."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data.dataset import StreamingDataset
from penstock.errors import ConfigError
from penstock.order.weights import StreamWeight
from penstock.reading.transforms import UnreadableSample, make_each
from penstock.sources.pack.source import PackedShardedSource
from penstock.sources.tokens.source import TokenizedShardedSource, TokenizeTransform
from penstock.sources.tokens.tokenizers import BatchEncoder, TokenizerConfig, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.data.stream import DatasetSettings, Stream
    from penstock.order.keys import UInt64Array
    from penstock.types import Sample


class TokenizedDataset(StreamingDataset):
    """Samples of text as tokens of one length: `input_ids` and `attention_mask`, arrays of int64.

    Args:
        tokenizer_name: A `tokenizer.json`, a folder with one, or a name on the Hugging Face Hub.
        max_seq_len: How many tokens a sample has.
        group_method: `"truncate"`: each text is a sample, cut or padded. `"concat"`: texts are laid end to end, each
            with the end-of-text token of the tokenizer if it has one, and cut; this is done once on each node, and
            written to its cache.
        keep_columns: Columns to return beside the tokens; only with `"truncate"`.
        **options: All that `StreamingDataset` takes.
    """

    text_column = "text"

    def __init__(
        self,
        *,
        tokenizer_name: str,
        max_seq_len: int,
        group_method: str,
        keep_columns: Sequence[str] = (),
        **options: Any,
    ) -> None:
        if group_method not in ("truncate", "concat"):
            raise ConfigError(f"group_method={group_method!r} is unknown: use 'truncate' or 'concat'")
        if keep_columns and group_method == "concat":
            raise ConfigError("keep_columns= needs group_method='truncate': a row of 'concat' is made of several texts")
        self.tokenizer_name, self.max_seq_len, self.group_method = tokenizer_name, max_seq_len, group_method
        config = TokenizerConfig(tokenizer_name, max_length=max_seq_len, padding=True)
        self.tokenizer = load_tokenizer(config)
        if getattr(self.tokenizer, "pad_token", "") is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._tokenize = TokenizeTransform(self.tokenizer, config, self.text_column, keep_columns)
        self._joined: list[Stream] = []  # streams whose texts are laid end to end already
        self._has_types = "token_type_ids" in getattr(self.tokenizer, "model_input_names", ())
        super().__init__(**options)

    def _open(self, settings: DatasetSettings, batch_size: int | None) -> None:
        """Open the streams; those whose texts are laid end to end are read from what was made of them."""
        if self.group_method == "concat":
            for stream in self.streams:
                stream.source = stream.source if stream in self._joined else self._join(stream)
            self._joined = list(self.streams)
        super()._open(settings, batch_size)

    def _join(self, stream: Stream) -> PackedShardedSource:
        """Return the texts of a stream end to end, cut into rows."""
        texts = copy(stream)
        texts.weight, texts.proportion, texts.repeat, texts.choose = StreamWeight.of(), None, None, None
        stream.sample_transform = None  # it is for the texts
        config = TokenizerConfig(self.tokenizer_name, truncation=False, add_special_tokens=False)
        documents = TokenizedShardedSource(
            StreamingDataset(streams=[texts]), self.tokenizer, config, content_field=self.text_column
        )
        end, pad = getattr(self.tokenizer, "eos_token_id", None), BatchEncoder(self.tokenizer).pad_id
        return PackedShardedSource(documents, self.max_seq_len, end, pad, include_segment_ids=False, shuffle=False)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        """Return the tokens of one text."""
        return self._tokens_of([super().get_item(sample_id, *retry, **named)])[0]

    def _call_overrides(
        self, ids: list[int], samples: list[Any], keys: UInt64Array | None, *, skips: bool, seeds_globals: bool
    ) -> list[Any]:
        """Tokenize all texts that were read together; those that could not be read stay gaps."""
        if type(self).get_item is not TokenizedDataset.get_item:
            return super()._call_overrides(ids, samples, keys, skips=skips, seeds_globals=seeds_globals)
        if self._transforms is not None:
            make = self._transforms.apply
            samples = make_each(make, ids, samples, keys, skips=skips, seeds_globals=seeds_globals)
        texts = iter(self._tokens_of([each for each in samples if not isinstance(each, UnreadableSample)]))
        return [each if isinstance(each, UnreadableSample) else next(texts) for each in samples]

    def _tokens_of(self, samples: list[Sample]) -> list[Sample]:
        made = []
        if self.group_method == "concat":
            rows: Iterable[Sample] = ({name: sample[name] for name in _TOKENS} for sample in samples)
        else:
            rows = self._tokenize(samples)
        for tokens in rows:
            row = {name: value if name not in _TOKENS else value.astype(np.int64) for name, value in tokens.items()}
            if self._has_types:
                row["token_type_ids"] = np.zeros(self.max_seq_len, np.int64)
            made.append(row)
        return made


_TOKENS = ("input_ids", "attention_mask")
