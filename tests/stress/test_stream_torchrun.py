"""Real jobs under torchrun over text that is filtered, tokenized, mixed, packed and shuffled: every token once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Report = dict[str, Any]
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of lines in which each word comes once."""
    folder = tmp_path_factory.mktemp("text")
    number = 0
    for name, num_files in (("a", 7), ("b", 4)):
        for file in range(num_files):
            lines = []
            for _ in range(40):
                number += 1
                words = [f"w{number}_{place}" for place in range(number % 7)]
                lines.append(json.dumps({"number": number, "text": " ".join(words)}))
            (folder / f"{name}{file}.jsonl").write_text("\n".join(lines) + "\n")
    words = [f"w{n}_{place}" for n in range(number + 1) for place in range(n % 7)]
    vocab = {"<unk>": 0, "</s>": 1, **{word: 2 + n for n, word in enumerate(words)}}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokens.json").write_text(json.dumps([vocab[word] for word in words if int(word[1:].split("_")[0]) % 3]))
    return folder


def run(folder: Path, out: Path, num_ranks: int, state: Report | None, **settings: Any) -> list[Report]:
    """Return what each rank of a job wrote down."""
    out.mkdir()
    given = {"uneven": "allow", "stop": None, "killed_at": None, "note_every_s": 0.0, "batch_size": 12 // num_ranks}
    told = json.dumps({"folder": str(folder), "out": str(out), "state": state, **given, **settings})
    program = str(Path(__file__).with_name("stream_rank.py"))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", program, told],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode == 0) == (settings.get("killed_at") is None), done.stderr[-4000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def tokens(reports: list[Report], num_batches: int | None = None) -> list[int]:
    return list(chain.from_iterable(chain.from_iterable(each["batches"][:num_batches] for each in reports)))


def test_three_ranks_then_two_then_one(folder: Path, tmp_path: Path) -> None:
    three = run(folder, tmp_path / "3", 3, None, stop=3)
    assert len({json.dumps(each["state"]["position"]["dealt"]) for each in three}) == 1
    two = run(folder, tmp_path / "2", 2, three[1]["state"], stop=2)
    one = run(folder, tmp_path / "1", 1, two[0]["state"])
    got = tokens(three) + tokens(two) + tokens(one)
    assert sorted(got) == json.loads((folder / "tokens.json").read_text())


def test_equally_many_batches_for_all(folder: Path, tmp_path: Path) -> None:
    three = run(folder, tmp_path / "3", 3, None, stop=3, uneven="pad")
    assert three[0]["state"] == three[1]["state"] == three[2]["state"]
    two = run(folder, tmp_path / "2", 2, three[2]["state"], uneven="pad")
    assert len({len(each["batches"]) for each in two}) == 1
    assert set(tokens(three) + tokens(two)) == set(json.loads((folder / "tokens.json").read_text()))


@pytest.mark.parametrize("note_every_s", [0.0, 60.0])
def test_rank_0_is_killed_between_notes(folder: Path, tmp_path: Path, note_every_s: float) -> None:
    three = run(folder, tmp_path / "3", 3, None, stop=9, killed_at=4, note_every_s=note_every_s)
    one = run(folder, tmp_path / "1", 1, three[2]["states"][3])
    got = tokens(three, 4) + tokens(one)
    assert sorted(got) == json.loads((folder / "tokens.json").read_text())
