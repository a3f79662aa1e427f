"""Where the fetcher and its clients meet, as the environment says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cache.kit import fetcher_pids, wait_until
from tests.streaming import write_samples

CODE = """
import sys
from penstock import StreamingDataset
with StreamingDataset(remote=sys.argv[1], batch_size=4) as dataset:
    print(len(list(dataset)))
"""


def test_relative_folders_in_the_environment(tmp_path: Path) -> None:
    """The fetcher stands in the root of the system; it and its clients meet all the same."""
    write_samples(tmp_path / "remote", 20, compression="zstd")
    with tempfile.TemporaryDirectory(prefix="pst-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(tmp_path / "remote")],
            cwd=folder,
            env=os.environ | {"PENSTOCK_RUNTIME_DIR": "run", "PENSTOCK_CACHE_DIR": "cache"},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == "20\n"
        assert any(Path(folder, "cache").iterdir())
        wait_until(lambda: not fetcher_pids(Path(folder, "run")))
