"""The commands, on files of every format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock import StreamingDataset
from penstock.cli.main import main
from penstock.index.files_json import STORED_NAME
from tests.in_place.kinds import KINDS, Kind

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.servers.nginx import WebServer


def test_looking_at_files(kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kind.write_files(tmp_path / "data", 2)
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_samples"] == 100
    assert main(["head", str(folder), "-n", "3", "--columns", kind.text]) == 0
    assert capsys.readouterr().out.splitlines()[1] == json.dumps({kind.text: "row 1 ü"}, ensure_ascii=False)
    assert main(["verify", str(folder), "--values"]) == 0
    assert "100 samples" in capsys.readouterr().out


def test_indexing_for_everybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = KINDS["jsonl"].write_files(tmp_path / "data", 2)
    assert main(["index", str(folder), "--store", "--out", str(tmp_path / "index")]) == 0
    said = capsys.readouterr().out
    assert "100 samples in 2 shards of 2 files" in said
    assert f"saved as {folder}/{STORED_NAME}" in said
    assert (folder / STORED_NAME).read_bytes() == (tmp_path / "index").read_bytes()
    with StreamingDataset(remote=folder) as dataset:
        assert dataset.num_samples == 100


def test_what_is_wrong_is_said(nginx: WebServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = KINDS["jsonl"].write_files(tmp_path / "data", 1)
    with (folder / "part-0.jsonl").open("a") as file:
        file.write("no JSON\n")
    assert main(["verify", str(folder), "--values"]) == 1
    assert "part-0.jsonl" in capsys.readouterr().out
    assert main(["index", f"{nginx.url}/nothing/*.jsonl"]) == 2
    assert "cannot be listed" in capsys.readouterr().err
