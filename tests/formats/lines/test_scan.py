"""Compressed files of lines are cut into shards where frames begin, wherever rows end."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamingDataset
from penstock.codecs.compress import reading_codec
from penstock.formats.base import ReadOptions
from penstock.formats.files import get_file_format
from penstock.formats.lines import scan as lines_scan
from penstock.index.catalog import parse_index
from penstock.scan import objects
from penstock.scan.make_index import Scan
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.index.model import IndexedShard
    from penstock.types import Sample

SUFFIXES = {"gz": "gz", "bz2": "bz2", "zstd": "zst"}


def compress(data: bytes, codec: str) -> bytes:
    if codec == "gz":
        return gzip.compress(data)
    return bz2.compress(data) if codec == "bz2" else reading_codec(codec).compress(data)


def index_of(folder: Path) -> list[IndexedShard]:
    store = LocalStore(folder)
    data = Scan(store=store, url=str(folder)).make_index(list(store.list("")), {})
    return list(parse_index(data, "here").shards)


def read(folder: Path, infos: Sequence[IndexedShard]) -> list[Sample]:
    """Read each shard from its own bytes of the file, as a fetcher does."""
    samples: list[Sample] = []
    for info in infos:
        (part,) = info.parts
        assert part.span is not None
        stored = (folder / part.span.basename).read_bytes()[part.span.offset :][: part.span.num_bytes]
        raw = bytearray(part.raw.num_bytes)
        reading_codec(info.layout.compression or "").decompress_into(stored, raw, "here")
        reader = get_file_format(info.layout.format).open([bytes(raw)], info, ReadOptions())
        samples += reader.read(range(len(reader)))
        reader.close()
    return samples


@given(
    texts=st.lists(st.text("ab\n\"', é", max_size=12), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 600), max_size=8),
    codec=st.sampled_from(sorted(SUFFIXES)),
    span=st.integers(1, 120),
    is_csv=st.booleans(),
)
def test_rows_are_the_same_however_frames_and_shards_are_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cuts: list[int], codec: str, span: int, is_csv: bool
) -> None:
    rows: list[dict[str, Any]] = [{"n": str(number), "x": text} for number, text in enumerate(texts)]
    out = io.StringIO(newline="")
    if is_csv:
        writer = csv.DictWriter(out, ["n", "x"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    content = out.getvalue().encode() or "".join(json.dumps(row) + "\n" for row in rows).encode()
    bounds = [0, *sorted({min(cut, len(content)) for cut in cuts} - {0, len(content)}), len(content)]
    frames = [compress(content[begin:end], codec) for begin, end in pairwise(bounds)]
    folder = tmp_path_factory.mktemp("frames")
    (folder / f"a.{'csv' if is_csv else 'jsonl'}.{SUFFIXES[codec]}").write_bytes(b"".join(frames))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_FRAME_BYTES", 1)
        patch.setattr(lines_scan, "SPAN_BYTES", span)
        patch.setattr(lines_scan, "_SMALLEST_SPAN_BYTES", span // 8)
        infos = index_of(folder)
    assert read(folder, infos) == rows
    assert sum(info.num_samples for info in infos) == len(rows)
    if len(frames) > 1 and span == 1 and not is_csv:
        begins = {content.rfind(b"\n", 0, bound) + 1 for bound in bounds[1:-1]}
        assert len(infos) >= min(2, len(begins - {0}))


def test_a_file_of_many_frames_is_many_shards_of_a_dataset(tmp_path: Path) -> None:
    lines = [json.dumps({"n": number, "x": "some text " * 400}).encode() + b"\n" for number in range(20_000)]
    content, size = b"".join(lines), 5_000_001  # so that hardly any row ends with a frame
    frames = [compress(content[at : at + size], "zstd") for at in range(0, len(content), size)]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl.zst").write_bytes(b"".join(frames))
    infos = index_of(folder)
    assert len(infos) == 3
    assert all(32 << 20 <= info.parts[0].raw.num_bytes <= 45 << 20 for info in infos[:2])
    with StreamingDataset(remote=folder, local=tmp_path / "cache", shuffle=True, batch_size=100) as dataset:
        assert len(dataset) == len(lines)
        assert sorted(sample["n"] for sample in dataset) == list(range(len(lines)))
        assert dataset[19_999]["n"] == 19_999
