"""Lines that cannot be parsed and are left out: cut after any row, nothing is lost, given twice or miscounted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import CsvShardedSource, JsonShardedSource, StreamingDataset, TextShardedSource
from tests.sources.cutting import check_cut_anywhere
from tests.streaming import private_places

BAD = {"jsonl": (b"{", b"[1]", b"\xff", b'{"n": 1} x'), "csv": (b"1", b"1,2,3", b"\xff,2"), "txt": (b"\xff\xfe",)}
SOURCES = {"jsonl": JsonShardedSource, "csv": CsvShardedSource, "txt": TextShardedSource}


def good(kind: str, number: int) -> bytes:
    return {"jsonl": b'{"n": %d}', "csv": b"%d,x", "txt": b"line %d"}[kind] % number


def content(kind: str, bad: list[int | None], newline: bytes) -> bytes:
    lines = [
        good(kind, number) if which is None else BAD[kind][which % len(BAD[kind])] for number, which in enumerate(bad)
    ]
    return newline.join([*([b"a,b"] if kind == "csv" else []), *lines])


rows = st.lists(st.one_of(st.none(), st.none(), st.integers(0, 3)), max_size=12)


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=25, deadline=None)
@given(files=st.lists(rows, min_size=1, max_size=3), newline=st.sampled_from([b"\n", b"\r\n"]))
def test_a_source_that_skips_lines_is_cut_anywhere(kind: str, files: list[list[int | None]], newline: bytes) -> None:
    files = [[None, *bad] for bad in files]  # empty files are none
    with tempfile.TemporaryDirectory() as folder:
        for number, bad in enumerate(files):
            (Path(folder) / f"{number}.{kind}").write_bytes(content(kind, bad, newline))
        source = SOURCES[kind](folder, on_error="skip")
        given = check_cut_anywhere(source.__iter__)
    assert len(given) == sum(which is None for bad in files for which in bad)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_dataset_that_skips_lines_counts_those_after_the_cut(kind: str, tmp_path: Path) -> None:
    bad: list[int | None] = [row % 4 if row in (3, 4, 9, 17, 29) else None for row in range(30)]
    (tmp_path / f"0.{kind}").write_bytes(content(kind, bad[:16], b"\n"))
    (tmp_path / f"1.{kind}").write_bytes(content(kind, bad[16:], b"\n"))

    def opened() -> StreamingDataset:
        return StreamingDataset(local=str(tmp_path), batch_size=2, shuffle=False, on_error="skip")

    with private_places():
        with opened() as dataset:
            whole = list(dataset)
            assert dataset.stats().skipped == 5
        assert len(whole) == 30
        for cut in range(0, 30, 2):  # whole batches: a gap is filled from its own batch
            with opened() as dataset:
                samples = iter(dataset)
                before = [next(samples) for _ in range(cut)]
                state = json.loads(json.dumps(dataset.state_dict()))
            with opened() as dataset:
                dataset.load_state_dict(state)
                assert before + list(dataset) == whole, cut
                assert dataset.stats().skipped == sum(which is not None for which in bad[cut:])
