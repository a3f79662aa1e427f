"""Only unpacking files needs pyarrow: readers never load it, and without it an error says what to install."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from tests.formats.columnar.test_nodes import write_parquet
from tests.formats.in_place import InPlace, MemoryFile

ROOT = Path(__file__).parents[3]
_READ = """
import pickle, sys
from pathlib import Path

sys.modules["pyarrow"] = None  # importing it fails
from penstock.errors import MissingExtraError
from penstock.formats.base import ReadOptions
from penstock.formats.files import get_file_format
from tests.formats.in_place import InPlace, MemoryFile

data, info, raw = pickle.loads(Path(sys.argv[1]).read_bytes())
reader = get_file_format("parquet").open([raw], info, ReadOptions())
print([sample["x"] for sample in reader.read([2, 0])], reader.read_columns([1])["tokens"].tolist())
try:
    InPlace("parquet", MemoryFile("a.file", data))
except MissingExtraError as error:
    print(error)
"""


def test_unpacked_files_are_read_without_it(tmp_path: Path) -> None:
    data = write_parquet(pa.table({"x": ["a", "b", None], "tokens": [[1, 2], [3, 4], [5, 6]]}))
    file = InPlace("parquet", MemoryFile("a.file", data))
    [info] = file.infos
    path = tmp_path / "shard"
    path.write_bytes(pickle.dumps((data, info, file.raw(info))))
    command = [sys.executable, "-c", _READ, str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    read, error = run.stdout.splitlines()
    assert read == "[None, 'a'] [[3, 4]]"
    assert "run pip install '" in error
    assert "[parquet]'" in error
