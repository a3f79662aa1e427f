"""`PackedShardedSource`: tokenized documents packed into rows of one length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from penstock.blocks.stage import open_at_row
from penstock.errors import ConfigError
from penstock.order.keys import hash_key
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.iterators import ShardsInTurn
from penstock.sources.pack.documents import LongDocuments
from penstock.sources.pack.packer import PackedStage, PackOptions, PackStats, PackStrategy
from penstock.sources.pack.rows import RowOptions
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.blocks.stage import Stage
    from penstock.sources.base import GivesSource

_ROWS_PER_FACTOR = 100
_MOST_TOKENS_OF_GROUP = 1 << 22
_LEAST_ROWS_OF_GROUP = 8


class PackedShardedSource(ShardedSource):
    """Documents of a source, packed into rows of `seq_length` tokens. Every token is in a row or counted as dropped.

    A row has `input_ids`, `segment_ids` (0, 1, … for the documents in it, -1 for padding), `position_ids` (from 0 in
    each document), `attention_mask` and `labels` (the tokens; -100 for padding and for the first token of each
    document). It has one shard. Rows are made in groups, and the state of an iterator is where a group begins.

    Args:
        source: The documents, each with a list or an array of tokens.
        seq_length: Tokens per row.
        eos_token_id: The token that ends a document; added unless it is there already. None adds nothing.
        pad_token_id: The token in the rest of a row that is not full.
        strategy: `"greedy"` lays documents end to end and cuts: no padding, and documents go over the ends of rows.
            `"pool"` puts each document whole into the tightest of a few open rows, and cuts only what fits in none.
            `"first_fit"` never cuts a document that fits in a row: it puts the longest first, each into the row with
            the least space that suffices.
        num_packers: The open rows of `"pool"`.
        include_segment_ids: Give `segment_ids`.
        input_field: Where the tokens are.
        shuffle: Shuffle the rows of each group.
        shuffle_buffer_factor: Size of a group, in hundreds of rows; smaller if rows are long.
        seed: Seeds the shuffling.
        long_documents: What to do with a document that is longer than a row: `"split"` gives it several rows,
            `"truncate"` one, `"drop"` none.
        token_columns: Further fields with a value for each token, and the value for padding: `{"loss_mask": 0}`. At an
            added end of document they repeat the last value. `labels` of documents take the place of the tokens.
        max_segments: The most documents in a row, for `"first_fit"`.
        include_cu_seqlens: Give `cu_seqlens`, where documents begin and end in a row, for kernels of block-diagonal
            attention. `join_cu_seqlens` joins those of a batch.
    """

    def __init__(
        self,
        source: ShardedSource | GivesSource,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        strategy: PackStrategy = "greedy",
        num_packers: int = 4,
        include_segment_ids: bool = True,
        input_field: str = "input_ids",
        shuffle: bool = True,
        shuffle_buffer_factor: int = 10,
        seed: int | None = None,
        *,
        long_documents: LongDocuments = "split",
        token_columns: Mapping[str, Any] | None = None,
        max_segments: int | None = None,
        include_cu_seqlens: bool = False,
    ) -> None:
        for name, value, least in (
            ("seq_length", seq_length, 2),
            ("num_packers", num_packers, 1),
            ("shuffle_buffer_factor", shuffle_buffer_factor, 1),
            ("max_segments", max_segments, 1),
        ):
            check_whole(name, value, least)
        if strategy not in get_args(PackStrategy):
            raise ConfigError(f"strategy={strategy!r} is unknown: use 'greedy', 'pool' or 'first_fit'")
        if long_documents not in get_args(LongDocuments):
            raise ConfigError(f"long_documents={long_documents!r} is unknown: use 'split', 'truncate' or 'drop'")
        if max_segments is not None and strategy != "first_fit":
            raise ConfigError("max_segments= only works with strategy='first_fit'")
        self._source = as_source(source)
        self._input_sources = (self._source,)
        self._options = PackOptions(
            eos_token_id=eos_token_id,
            strategy=strategy,
            num_packers=num_packers,
            seed=int(seed or 0) if shuffle else None,
            group_rows=_rows_of_group(seq_length, shuffle_buffer_factor),
            long_documents=long_documents,
            max_segments=max_segments,
            rows=RowOptions(
                seq_length=seq_length,
                pad_token_id=pad_token_id,
                input_field=input_field,
                pad_values=dict(token_columns or {}),
                has_segment_ids=include_segment_ids,
                has_cu_seqlens=include_cu_seqlens,
            ),
        )
        self._opened: PackedStage | None = None

    @property
    def shard_names(self) -> Sequence[str]:
        """The name of the one shard."""
        return ("packed",)

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the source and of all settings."""
        inner = self._source.order_fingerprint
        return None if inner is None else f"{inner}-packed-{hash_key(repr(self._options)):016x}"

    @property
    def is_endless(self) -> bool:
        """Whether the source never ends."""
        return self._source.is_endless

    def open_stage(self, shard_name: str, row: int = 0) -> Stage:
        """Open the rows at one of them; to get there, all rows before it are packed. A state needs none of them."""
        self._opened = PackedStage(ShardsInTurn(self._source), self._options)
        return open_at_row(self._opened, shard_name, row)

    def stats(self) -> PackStats:
        """Return where the tokens went, for the iterator that was opened last."""
        return PackStats() if self._opened is None else self._opened.stats()

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def _rows_of_group(seq_length: int, factor: int) -> int:
    return min(_ROWS_PER_FACTOR * factor, max(_LEAST_ROWS_OF_GROUP, _MOST_TOKENS_OF_GROUP // seq_length))
