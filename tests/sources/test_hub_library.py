"""Repositories that penstock leaves to the `datasets` library, with the library itself."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from penstock import LocalDataset, MDSWriter, from_table
from tests.servers.hub import TOKEN, Repo, running_hub
from tests.streaming import private_places

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.datasets

PROGRAM = """
import json, pickle, sys
from penstock import HuggingFaceShardedSource

source = HuggingFaceShardedSource("me/pages", **json.loads(sys.argv[1]))
(name,) = source.shard_names
columns = source.open_shard_at_row(name, row=1)
print(json.dumps({
    "name": name,
    "fingerprint": source.fingerprint,
    "random": source.has_random_rows,
    "texts": [sample["txt"] for sample in source],
    "columns": sorted(next(iter(source))),
    "rest": [sample["txt"] for sample in columns],
    "again": [sample["txt"] for sample in pickle.loads(pickle.dumps(source))],
}))
"""


def tar(*texts: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


def run(endpoint: str, folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    # The library asks the endpoint that the environment names when it is imported.
    environ = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_TOKEN": TOKEN}
    command = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def test_a_repository_of_archives_is_left_to_the_library(tmp_path: Path) -> None:
    with private_places(), running_hub() as hub:
        repo = hub.repos["datasets/me/pages"] = Repo()
        first = repo.commit("main", {"train/a.tar": tar("one", "two"), "test/b.tar": tar("three")})
        repo.commit("main", {"train/a.tar": tar("other")})
        told = []
        for more in ({}, {"streaming": False, "cache_dir": str(tmp_path / "kept")}, {"columns": ["txt"]}):
            done = run(hub.endpoint, tmp_path, revision=first, **more)
            assert done.returncode == 0, done.stderr
            told.append(json.loads(done.stdout.splitlines()[-1]))
        for each in told:
            assert (each["name"], each["texts"], each["rest"]) == ("me/pages:train:0", ["one", "two"], ["two"])
            assert each["again"] == each["texts"]
        assert [each["random"] for each in told] == [False, True, False]
        assert told[0]["fingerprint"] == told[1]["fingerprint"] != told[2]["fingerprint"]
        assert told[2]["columns"] == ["txt"]
        assert list((tmp_path / "kept").iterdir())

        wrong = run(hub.endpoint, tmp_path, storage_options={"endpoint": hub.elsewhere})
        assert "set the environment variable HF_ENDPOINT to http://localhost" in wrong.stderr
        assert TOKEN not in wrong.stderr


def test_samples_become_frames_of_pandas_and_come_back(tmp_path: Path) -> None:
    import pandas as pd

    with MDSWriter(out=tmp_path, columns={"id": "int", "text": "str"}) as writer:
        for number in range(300):
            writer.write({"id": number, "text": f"row {number}"})
    frame = LocalDataset(tmp_path).to_pandas(slice(280))
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["id"]) == list(range(280))
    assert [sample["text"] for sample in from_table(frame)] == [f"row {number}" for number in range(280)]
