"""A dataset of text that is tokenized as it is read, many samples at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data.dataset import StreamingDataset
from penstock.errors import ConfigError
from penstock.reading.transforms import UnreadableSample, make_each
from penstock.sources.tokens.source import TokenizeTransform
from penstock.sources.tokens.tokenizers import TokenizerConfig, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.order.keys import UInt64Array
    from penstock.types import Sample


class TokenizedDataset(StreamingDataset):
    """Samples of text as tokens of one length: `input_ids` and `attention_mask`, arrays of int64.

    Args:
        tokenizer_name: A `tokenizer.json`, a folder with one, or a name on the Hugging Face Hub.
        max_seq_len: How many tokens a sample has.
        group_method: `"truncate"`: each text is a sample, cut or padded.
        keep_columns: Columns to return beside the tokens.
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
        if group_method not in ("truncate",):
            raise ConfigError(f"group_method={group_method!r} is unknown: use 'truncate'")
        self.tokenizer_name, self.max_seq_len, self.group_method = tokenizer_name, max_seq_len, group_method
        config = TokenizerConfig(tokenizer_name, max_length=max_seq_len, padding=True)
        self.tokenizer = load_tokenizer(config)
        if getattr(self.tokenizer, "pad_token", "") is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._tokenize = TokenizeTransform(self.tokenizer, config, self.text_column, keep_columns)
        self._has_types = "token_type_ids" in getattr(self.tokenizer, "model_input_names", ())
        super().__init__(**options)

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
        for tokens in self._tokenize(samples):
            row = {name: value if name not in _TOKENS else value.astype(np.int64) for name, value in tokens.items()}
            if self._has_types:
                row["token_type_ids"] = np.zeros(self.max_seq_len, np.int64)
            made.append(row)
        return made


_TOKENS = ("input_ids", "attention_mask")
