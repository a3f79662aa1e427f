"""Unpacking a row group takes memory for some rows at a time, however large it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_MB = 1 << 20
# In a process of its own: the most memory in use is that of the process so far. The file is written by another one.
_WRITE = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
table = pa.table({"x": ["a text that is the same in all rows, so that it takes no room in the file " * 4] * 1_000_000})
pq.write_table(table, sys.argv[1], row_group_size=len(table))
"""
_UNPACK = """
import sys
from pathlib import Path
import pyarrow as pa
from penstock.arrays_file import ArraysFile
from tests.formats.in_place import InPlace, MemoryFile

file = InPlace("parquet", MemoryFile("a.file", Path(sys.argv[1]).read_bytes()))
[info] = file.infos
raw = file.raw(info)
print(len(raw), pa.default_memory_pool().max_memory(), len(ArraysFile(raw, "raw").about["rows"]))
"""


def test_a_huge_row_group_is_unpacked_in_chunks(tmp_path: Path) -> None:
    path = str(tmp_path / "file.parquet")
    subprocess.run([sys.executable, "-c", _WRITE, path], check=True, timeout=120)
    run = subprocess.run(
        [sys.executable, "-c", _UNPACK, path], cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    num_bytes, most_in_use, num_chunks = map(int, run.stdout.split())
    assert num_bytes > 280 * _MB
    assert num_chunks > 5
    assert most_in_use < 128 * _MB
