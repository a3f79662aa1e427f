"""Documents packed into rows of one length. See `docs/packing.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.sources.pack.packers import FirstFitPacker as FirstFitPacker
    from penstock.sources.pack.packers import GreedyPacker as GreedyPacker
    from penstock.sources.pack.packers import PackedSequence as PackedSequence
    from penstock.sources.pack.packers import PoolPacker as PoolPacker
    from penstock.sources.pack.rows import join_cu_seqlens as join_cu_seqlens
    from penstock.sources.pack.source import PackedShardedSource as PackedShardedSource
    from penstock.sources.pack.source import PackStats as PackStats
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
