"""Recipes in real processes: killed midway, gone on with by another number of them; streamed by workers of a loader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError
from penstock.loaders.torch import StreamingDataLoader
from penstock.recipes.text.enwiki import StreamingEnWiki, recipe
from penstock.testing.recipes import bytes_of
from tests.recipes.text.raw import write_wiki

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {"max_seq_length": 32, "max_predictions_per_seq": 5, "num_examples_to_pick": 10}
NUM_PARTS = 9


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_wiki(folder, NUM_PARTS)
    return folder


@pytest.fixture(scope="module")
def whole(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    recipe.convert(in_root=raw, out_root=out, workers=1, progress_bar=0, **SMALL)
    return out


def test_killed_midway_and_begun_again_by_seven_processes(raw: Path, whole: Path, tmp_path: Path) -> None:
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    roots = [f"--in_root={raw}", f"--out_root={tmp_path}/out", "--workers=2"]
    command = [sys.executable, "-m", "penstock", "convert", "--recipe", "enwiki", *roots, *flags]
    job = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    while job.poll() is None and not (tmp_path / "out/train/000001/index.json").exists():
        time.sleep(0.005)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    assert not (tmp_path / "out/val/index.json").exists()
    recipe.convert(in_root=raw, out_root=tmp_path / "out", workers=7, progress_bar=0, **SMALL)
    assert bytes_of(tmp_path / "out") == bytes_of(whole)


def test_samples_are_shuffled_among_workers_of_a_loader(whole: Path) -> None:
    dataset = StreamingEnWiki(local=str(whole / "train"), shuffle=True, batch_size=2)
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=2)
    batches = list(loader)
    ids = [tuple(row) for batch in batches for row in batch["input_ids"].tolist()]
    labels = {tuple(row) for batch in batches for row in batch["labels"].tolist()}
    stored = [dataset[number] for number in range(dataset.num_samples)]
    assert sorted({*ids}) == sorted({tuple(sample["input_ids"].tolist()) for sample in stored})
    assert ids[: len(stored)] != [tuple(sample["input_ids"].tolist()) for sample in stored]
    assert labels == {tuple(sample["labels"].tolist()) for sample in stored}


def test_a_place_that_refuses_is_one_clear_error(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the folder of the splits should be")
    with pytest.raises(PenstockError, match="out"):
        recipe.convert(in_root=raw, out_root=tmp_path / "out", workers=1, progress_bar=0, **SMALL)


def test_a_full_disk_is_one_clear_error(raw: Path, tmp_path: Path) -> None:
    """A limit of the size of files stands for it: the system refuses writing in the same way."""
    code = (
        "import resource, signal, sys\n"
        "from penstock.recipes.text.enwiki_text import recipe, run_module\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        "run_module('enwiki_text')\n"
    )
    roots = [f"--in_root={raw}", f"--out_root={tmp_path}/out", "--workers=1", "--compression="]
    done = subprocess.run([sys.executable, "-c", code, *roots], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not [*tmp_path.glob("out/*/index.json")]
