"""`penstock stats`: what it prints, of shards and of files of others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock import MDSWriter
from penstock.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_it_prints_what_is_in_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MDSWriter(out=tmp_path / "data", columns={"id": "int", "text": "str"}) as writer:
        for number in range(300):
            writer.write({"id": number, "text": "abc"})
    assert main(["stats", str(tmp_path / "data"), "--full"]) == 0
    out = capsys.readouterr().out
    assert "300 samples, all of them read, 0 seen before" in out
    assert "text: str; length 3 to 3, mean 3; 299 seen before" in out
    assert main(["stats", str(tmp_path / "data"), "--sample", "50", "--columns", "id", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_read"] == 50
    assert list(found["columns"]) == ["id"]


def test_it_reads_files_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": null}\n')
    assert main(["stats", str(tmp_path / "rows.jsonl")]) == 0
    assert "a: int; values 1 to 1, mean 1; 1 null" in capsys.readouterr().out


def test_a_sample_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    assert main(["stats", str(tmp_path / "rows.jsonl"), "--sample", "0"]) == 2
    assert "sample=0 is too small: use 1 or more" in capsys.readouterr().err
