"""One shard as plain values."""

from __future__ import annotations

import pytest

from penstock.errors import BadIndexError
from penstock.index.shards import Column, FileInfo, IndexedShard, ObjectSpan, Part, ShardLayout

LAYOUT = ShardLayout(format="mds", columns=(Column("x", "int", 8),))


def test_the_first_part_names_the_shard_and_the_packed_file_is_fetched() -> None:
    raw, packed = FileInfo("a.mds", 100), FileInfo("a.mds.zstd", 40)
    shard = IndexedShard(LAYOUT, 3, (Part(raw, packed), Part(FileInfo("a.meta", 5, is_exact=False))))
    assert shard.name == "a.mds"
    assert [part.stored.basename for part in shard.parts] == ["a.mds.zstd", "a.meta"]
    assert [part.stored.known_bytes for part in shard.parts] == [40, None]


def test_renaming_moves_every_file() -> None:
    span = ObjectSpan("all.tar", 512, 40)
    shard = IndexedShard(LAYOUT, 3, (Part(FileInfo("a", 100), FileInfo("a.zstd", 40), span),))
    moved = shard.renamed("down/{}".format)
    assert moved == IndexedShard(
        LAYOUT,
        3,
        (Part(FileInfo("down/a", 100), FileInfo("down/a.zstd", 40), ObjectSpan("down/all.tar", 512, 40)),),
    )
    assert shard.name == "a"


@pytest.mark.parametrize("span", [ObjectSpan("all.tar", -1, 10), ObjectSpan("all.tar", 0, 11)])
def test_a_span_that_is_not_the_file(span: ObjectSpan) -> None:
    with pytest.raises(BadIndexError, match="a of 10 bytes cannot be"):
        Part(FileInfo("a", 10), span=span)
