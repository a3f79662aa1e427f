"""`penstock head`: samples as lines of JSON that people and programs can read."""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from penstock import MDSWriter
from penstock.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def head(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main(["head", *map(str, arguments)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_values_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = BytesIO()
    Image.new("RGB", (8, 6)).save(picture, "PNG")
    columns = {"n": "int", "tokens": "ndarray", "small": "ndarray", "table": "ndarray", "image": "png", "raw": "bytes"}
    with MDSWriter(out=tmp_path, columns={**columns, "half": "float16", "data": "json", "text": "str"}) as writer:
        writer.write(
            {
                "n": 7,
                "tokens": np.arange(500),
                "small": np.array([[1, 2], [3, 4]]),
                "table": np.zeros((30, 40), np.float32),
                "image": picture.getvalue(),
                "raw": b"\0\1\2",
                "half": np.float16("nan"),
                "data": {"list": [1, "a", None], "deep": {"x": 0.5}},
                "text": "ü" * 300,
            }
        )
    (sample,) = head(capsys, tmp_path)
    assert sample["n"] == 7
    assert sample["tokens"] == [*range(16), "… (500 items)"]
    assert sample["small"] == [[1, 2], [3, 4]]
    assert sample["table"] == "float32 array of shape (30, 40)"
    assert sample["image"] == f"PNG image, {len(picture.getvalue())} B"
    assert sample["raw"] == "3 bytes"
    assert sample["half"] == "nan"
    assert sample["data"] == {"list": [1, "a", None], "deep": {"x": 0.5}}
    assert sample["text"] == "ü" * 200 + "… (300 characters)"
    (whole,) = head(capsys, tmp_path, "--full", "--columns", "tokens", "table", "text")
    assert whole == {"tokens": list(range(500)), "table": np.zeros((30, 40)).tolist(), "text": "ü" * 300}


def test_lists_of_files_read_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: dict[str, list[Any]] = {"ids": [[0, 1], [], None], "names": [["a", None], [], ["b"]]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    assert head(capsys, tmp_path) == [
        {"ids": ids, "names": names} for ids, names in zip(rows["ids"], rows["names"], strict=True)
    ]
