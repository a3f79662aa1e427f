"""`penstock convert`: the commands of the guide run, and wrong ones say how to write them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.cli.convert import load_name, parse_columns, parse_splits, parse_task
from penstock.cli.main import main
from penstock.errors import ConfigError
from tests.test_docs import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path


def test_the_commands_of_the_guide_run(tmp_path: Path) -> None:
    page = ROOT / "docs" / "converting.md"
    (tmp_path / "example.py").write_text(blocks(page, "python")[0].partition("report =")[0])
    subprocess.run([sys.executable, "example.py"], cwd=tmp_path, check=True)
    for command in "".join(blocks(page, "sh")).splitlines():
        subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=tmp_path, check=True)
    assert (tmp_path / "store/train/index.json").exists()
    assert (tmp_path / "store/array/index.json").exists()


def test_reports_and_previews(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"id": number}) for number in range(20)))
    arguments = ["convert", str(tmp_path / "rows.jsonl"), str(tmp_path / "out"), "--splits", "train=0.5,val=0.5"]
    assert main([*arguments, "--dry-run"]) == 0
    assert '{"id": 0}' in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["num_rows"], set(report["splits"])) == (20, {"train", "val"})
    assert main([*arguments, "--split-by", "nothing"]) == 2
    assert "overwrite" in capsys.readouterr().err
    assert main([*arguments, "--split-by", "nothing", "--overwrite"]) == 2
    assert "no column 'nothing'" in capsys.readouterr().err


def test_options_are_read() -> None:
    assert parse_splits("train=0.9,val=0.1") == {"train": 0.9, "val": 0.1}
    assert parse_columns("id=int,text=str") == {"id": "int", "text": "str"}
    assert parse_task("3/64") == (3, 64)
    assert load_name("json:dumps") is json.dumps
    for read, text in ((parse_splits, "train"), (parse_columns, "id"), (parse_task, "4/4"), (load_name, "json:none")):
        with pytest.raises(ConfigError, match=text):
            read(text)
