"""`make demo`: a new user's first minute. What it proves holds, and it says nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
PROOFS = ("every sample exactly once", "killed and resumed = never killed", "same global batches on 1, 2 and 4 ranks")


def test_the_demo_proves_what_it_says_without_a_warning(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "always", "XDG_CACHE_HOME": str(tmp_path / "user")}
    environment.pop("PENSTOCK_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, str(DEMO)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    # On a machine that is busy with other things, the sign of life may be seen.
    warnings = [line for line in done.stderr.splitlines() if not line.startswith("penstock has waited ")]
    assert (done.returncode, warnings) == (0, [])
    for proof in PROOFS:
        assert re.search(rf"^  {re.escape(proof)} +yes$", done.stdout, re.MULTILINE), done.stdout
    assert "killed at step 150 (exit code -9)" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["demo-data"]  # nothing stays in the user's cache
