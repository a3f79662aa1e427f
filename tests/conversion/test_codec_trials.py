"""Codecs are tried on the user's data, and the smallest that reads quickly enough is advised."""

from __future__ import annotations

import pytest

from penstock import MemoryShardedSource
from penstock.conversion.codec_trials import CodecTrial, advised, try_codecs
from penstock.errors import EmptyDatasetError


def test_each_way_is_written_and_read() -> None:
    source = MemoryShardedSource([{"id": number, "text": "some words " * 50} for number in range(500)])
    trials = try_codecs(source, compressions=(None, "zstd:1", "gz:6"), size_limits=("64kb", "1mb"))
    assert [(each.compression, each.size_limit) for each in trials] == [
        (codec, limit) for codec in (None, "zstd:1", "gz:6") for limit in ("64kb", "1mb")
    ]
    assert all(each.part == 1 for each in trials[:2])
    assert all(0 < each.part < 0.3 for each in trials[2:])
    assert all(each.write_rate > 0 and each.read_rate > 0 for each in trials)
    assert sum(each.is_advised for each in trials) == 1
    with pytest.raises(EmptyDatasetError):
        try_codecs(MemoryShardedSource([]))


def trial(compression: str | None, part: float, read_rate: float) -> CodecTrial:
    return CodecTrial(compression, "64mb", 1, part, 1.0, read_rate)


def test_a_slow_codec_has_to_be_worth_it() -> None:
    trials = [trial(None, 1.0, 100), trial("zstd", 0.4, 60), trial("gz", 0.3, 20), trial("lz4", 0.6, 90)]
    assert [each.compression for each in advised(trials) if each.is_advised] == ["zstd"]
    assert [each.compression for each in advised(trials[:1]) if each.is_advised] == [None]
