"""Images that are decoded at once stay within bounds, however small the files are that they come from."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from penstock import LocalDataset, MDSWriter
from penstock.errors import ColumnValueError, CorruptShardError
from penstock.formats.encodings import decoding
from penstock.formats.encodings.decoding import MAX_PIXELS, DecodeBudget, WorkingMemory

if TYPE_CHECKING:
    from pathlib import Path


def test_one_call_has_a_bound() -> None:
    budget = DecodeBudget(max_bytes=300)
    budget.take(10, 5)
    budget.take(5, 10)
    with pytest.raises(ColumnValueError, match="take more than 300 B when decoded: read fewer samples"):
        budget.take(1, 1)
    with pytest.raises(ColumnValueError, match="more than"):
        DecodeBudget().take(MAX_PIXELS, 2)


def test_threads_share_what_they_may_use() -> None:
    """Twelve of forty bytes each, and never more than a hundred in use; one that is larger than all works alone."""
    memory = WorkingMemory(100)
    lock = threading.Lock()
    used, most = 0, 0

    def work(num_bytes: int) -> None:
        nonlocal used, most
        with memory.use(num_bytes):
            with lock:
                used += num_bytes
                most = max(most, used)
                assert used <= 100 or used == num_bytes
            with lock:
                used -= num_bytes

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [40] * 6 + [500] + [40] * 6))
    assert most == 500
    assert used == 0


def test_a_failure_gives_its_share_back() -> None:
    memory = WorkingMemory(100)
    with pytest.raises(ValueError, match="bad"), memory.use(100):
        raise ValueError("bad")
    with memory.use(100):
        pass


def test_a_forked_process_begins_anew() -> None:
    with decoding._working.use(1 << 40):
        pid = os.fork()
        if pid == 0:
            with decoding._working.use(1 << 40):
                os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def encoded(kind: str) -> bytes:
    out = BytesIO()
    Image.new("L", (200, 100)).save(out, format=kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("png", encoded("PNG")),
        ("jpeg", encoded("JPEG")),
        ("pil", Image.new("1", (200, 100))),
        ("list[jpeg]", [Image.new("L", (200, 100))]),
        ("list[png]", [Image.new("L", (200, 100))]),
        ("jpeg_array", [encoded("JPEG")]),
    ],
)
def test_a_batch_of_large_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, value: Any
) -> None:
    """Sixty thousand bytes each; the bound is lowered, so that it need not be a gigabyte here."""
    with MDSWriter(out=tmp_path, columns={"image": encoding}) as writer:
        for _ in range(8):
            writer.write({"image": value})
    monkeypatch.setattr(decoding, "MAX_DECODED_BYTES", 5 * 60_000)
    dataset = LocalDataset(tmp_path, image_decoder="array")
    assert len(dataset[:5]) == 5
    with pytest.raises(CorruptShardError, match=r"column 'image' holds images that together take more than .*"):
        dataset[:6]
    assert len(LocalDataset(tmp_path, image_decoder="pil")[:]) == 8
    assert len(LocalDataset(tmp_path, image_decoder="raw")[:]) == 8


def test_large_images_are_decoded_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With threads for all of them, but memory for one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(decoding, "_SMALL_BYTES", 0)
    monkeypatch.setattr(decoding, "_working", WorkingMemory(1))
    with MDSWriter(out=tmp_path, columns={"image": "png"}) as writer:
        for _ in range(8):
            writer.write({"image": encoded("PNG")})
    images = LocalDataset(tmp_path, image_decoder="array")[:]
    assert [sample["image"].shape for sample in images] == [(100, 200, 3)] * 8
