"""Files appear whole or not at all, are what they seem, and have errors of ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock import LocalDataset, MDSWriter, StreamingDataset
from penstock.errors import ObjectNotFoundError, PenstockError, StoreError
from penstock.files import atomic_write, open_file, read_file

if TYPE_CHECKING:
    from pathlib import Path

SWAPPED = """
import os, sys
from pathlib import Path
from penstock.errors import ObjectNotFoundError
from penstock.codecs.unpack import map_file
from penstock.files import open_file
Path.is_file = lambda self: True  # as it was a moment ago
for read in (open_file, map_file):
    try:
        read(Path(sys.argv[1]))
    except ObjectNotFoundError as error:
        print(error)
"""


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    """Also one that was put there after it was looked at."""
    os.mkfifo(tmp_path / "x")
    command = [sys.executable, "-c", SWAPPED, str(tmp_path / "x")]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    assert run.stdout == f"{tmp_path / 'x'} is not a regular file\n" * 2


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("folder", "socket"):
            with pytest.raises(ObjectNotFoundError, match="is not a regular file"):
                open_file(tmp_path / name)
    with pytest.raises(ObjectNotFoundError, match="is missing"):
        open_file(tmp_path / "missing")
    (tmp_path / "file").write_bytes(b"some bytes")
    with open_file(tmp_path / "file") as file:
        assert file.read(4) == b"some"
    assert read_file(tmp_path / "file") == b"some bytes"


@pytest.mark.parametrize("path", [pytest.param("x" * 300, id="name"), pytest.param("x/" * 2100 + "x", id="path")])
def test_paths_that_are_too_long(path: str, tmp_path: Path) -> None:
    here = tmp_path / path
    with pytest.raises(StoreError, match="File name too long"):
        read_file(here)
    with pytest.raises(PenstockError, match="too long"):
        LocalDataset(here)
    with pytest.raises(PenstockError, match="too long"):
        MDSWriter(out=here, columns={"x": "int"})
    with pytest.raises(PenstockError, match="too long"):
        MDSWriter(out=here, columns={"x": "int"}, exist_ok=True)
    with pytest.raises(PenstockError, match="too long"):
        StreamingDataset(local=str(here))
    with pytest.raises(PenstockError, match="too long"):
        StreamingDataset(remote=str(here))
    with pytest.raises(PenstockError, match="too long"):
        LocalDataset(tmp_path, split=path)
    with pytest.raises(PenstockError, match="too long"):
        MDSWriter(out=(here, "memory://long/path"), columns={"x": "int"})
    with MDSWriter(out=tmp_path / "data", columns={"x": "int"}, compression="zstd") as writer:
        writer.write({"x": 1})
    with pytest.raises(PenstockError, match="too long"):
        StreamingDataset(remote=str(tmp_path / "data"), local=str(here))
    with pytest.raises(PenstockError, match="too long"):
        LocalDataset(tmp_path / "data", unpack_dir=here)[0]


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), atomic_write(tmp_path / "x", flush=True) as part:
        part.write_bytes(b"half")
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []
