"""A byte order mark at the beginning of a file of text belongs to no row, from sources as in place."""

from __future__ import annotations

import bz2
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock import CsvShardedSource, JsonShardedSource, StreamingDataset, TextShardedSource
from penstock.errors import CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock import ShardedSource

MARK = b"\xef\xbb\xbf"
ROWS = [{"id": number, "text": f"row\n{number}"} for number in range(5)]
CSV = '"id","te\nxt"\n' + "".join(f'{row["id"]},"{row["text"]}"\n' for row in ROWS)
KINDS: dict[str, tuple[Callable[..., ShardedSource], str, list[Any]]] = {
    "csv": (CsvShardedSource, CSV, [{"id": str(row["id"]), "te\nxt": row["text"]} for row in ROWS]),
    "jsonl": (JsonShardedSource, "".join(json.dumps(row) + "\n" for row in ROWS), ROWS),
    "json": (JsonShardedSource, json.dumps(ROWS, indent=1), ROWS),
    "txt": (TextShardedSource, "a\n\nb\n", [{"text": text} for text in ("a", "", "b")]),
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: b"".join(gzip.compress(data[at : at + 1]) for at in range(6)) + gzip.compress(data[6:]),
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", PACKED)
def test_a_byte_order_mark_is_no_part_of_the_first_row(kind: str, packed: str, tmp_path: Path) -> None:
    make, text, expected = KINDS[kind]
    path = tmp_path / f"a.{kind}{packed}"
    path.write_bytes(PACKED[packed](MARK + text.encode()))
    source = make(path)
    assert list(source) == expected
    for row in range(len(expected)):
        samples = source.open_shard_at_row(str(path), row)
        before = samples.state_dict()
        first = next(samples)
        after = samples.state_dict()
        samples.load_state_dict(before)
        assert first == expected[row]
        assert list(samples) == expected[row:] == list(samples_after(source, path, before))
        assert list(samples_after(source, path, after)) == expected[row + 1 :]
    for cut in source.shard_cuts(str(path), 10):  # type: ignore[attr-defined]
        assert list(samples_after(source, path, cut)) == expected[cut["row"] :]


def samples_after(source: ShardedSource, path: Path, state: dict[str, Any]) -> Any:
    samples = source.open_shard(str(path))
    samples.load_state_dict(state)
    return samples


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
def test_a_stream_in_place_gives_the_same(kind: str, tmp_path: Path) -> None:
    make, text, expected = KINDS[kind]
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MARK + text.encode())
    with StreamingDataset(remote=str(path), local=str(tmp_path / "cache"), batch_size=1) as dataset:
        assert list(dataset) == expected == list(make(path))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
def test_a_file_in_utf16_is_said_to_be_one(kind: str, tmp_path: Path) -> None:
    make, text, _ = KINDS[kind]
    path = tmp_path / f"a.{kind}"
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(CorruptShardError, match=rf"a\.{kind} is encoded as UTF-16: convert it to UTF-8"):
        list(make(path))


def test_a_file_with_a_mark_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(MARK)
    assert list(TextShardedSource(path)) == []


def test_a_state_of_the_first_row_from_before_marks_were_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(MARK + b"a\nb\n")
    for state in ({"row": 0}, {"row": 0, "byte": 0, "line": 0}, {"row": 0, "byte": 3, "line": 0}):
        assert [each["text"] for each in samples_after(TextShardedSource(path), path, state)] == ["a", "b"]
