"""What a dataset says of its samples, against counts by hand; and its samples as tables, and back."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

from penstock import LocalDataset, MDSWriter, StreamingDataset, from_table
from penstock.data.summary import choose_runs
from penstock.errors import BadSampleError, ConfigError, MissingExtraError, SampleIndexError

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 1000


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    draw = np.random.default_rng(0)
    tokens = [draw.integers(0, 50, draw.integers(1, 20)).astype(np.int32) for _ in range(COUNT)]
    return [
        {"id": number % 900, "text": "é" * (number % 7), "score": number / 8, "tokens": tokens[number % 900]}
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def folder(rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "all"
    columns = {"id": "int", "text": "str", "score": "float64", "tokens": "ndarray:int32"}
    with MDSWriter(out=out, columns=columns, size_limit="8kb") as writer:
        for row in rows:
            writer.write(row)
    return out


def test_all_samples_are_counted_as_by_hand(folder: Path, rows: list[dict[str, object]]) -> None:
    for dataset in (LocalDataset(folder), StreamingDataset(local=folder)):
        found = dataset.stats_of(sample=None, progress=False)
        assert (found.num_samples, found.num_read) == (COUNT, COUNT)
        assert found.duplicates == 0  # the scores differ
        text, tokens, score = (found.columns[name] for name in ("text", "tokens", "score"))
        assert (text.lengths.least, text.lengths.most) == (0, 6)
        assert text.lengths.mean == pytest.approx(np.mean([number % 7 for number in range(COUNT)]))
        assert text.lengths.below == dict(Counter(int(number % 7).bit_length() for number in range(COUNT)))
        assert (text.duplicates, found.columns["id"].duplicates) == (COUNT - 7, 100)
        assert (score.numbers.count, score.numbers.most) == (COUNT, 999 / 8)
        assert score.numbers.mean == pytest.approx(np.mean([row["score"] for row in rows]))
        assert tokens.values == Counter(int(token) for row in rows for token in row["tokens"])  # type: ignore[attr-defined]
        assert tokens.kinds == {"ndarray": COUNT}
        assert "1,000 samples, all of them read, 0 seen before" in str(found)
        assert json.loads(json.dumps(found.to_dict()))["columns"]["text"]["lengths"]["most"] == 6


def test_same_samples_are_seen_again(folder: Path) -> None:
    found = LocalDataset(folder, columns=["id", "tokens"]).stats_of(sample=None)
    assert found.duplicates == 100


def test_a_sample_of_it_is_of_several_places_and_of_the_size_asked_for(folder: Path) -> None:
    found = LocalDataset(folder).stats_of(["id"], sample=100)
    assert (found.num_read, list(found.columns)) == (100, ["id"])
    runs = choose_runs(10_000, 100, seed=0)
    rows = [row for run in runs for row in run]
    assert len(rows) == len(set(rows)) == 100
    assert len(runs) > 10
    assert rows == sorted(rows)
    assert runs != choose_runs(10_000, 100, seed=1)
    assert choose_runs(50, 100, seed=0) == [range(50)]
    with pytest.raises(ConfigError, match="sample=0 is too small"):
        LocalDataset(folder).stats_of(sample=0)


def test_nulls_missing_values_and_sizes_of_images(tmp_path: Path) -> None:
    lines = [{"a": 1}, {"a": None, "b": "x"}, {"b": "x", "c": [1.5, 2]}, {"c": ["u", "v"]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = StreamingDataset(remote=str(tmp_path / "rows.jsonl")).stats_of()
    a, b, c = (found.columns[name] for name in "abc")
    assert (a.nulls, a.missing, b.missing, b.duplicates, c.missing) == (1, 2, 2, 1, 2)
    assert c.lengths.count == 2
    assert not c.values
    with MDSWriter(out=tmp_path / "images", columns={"image": "png"}) as writer:
        for size in ((4, 3), (4, 3), (8, 6)):
            writer.write({"image": Image.new("RGB", size)})
    for decoder in ("pil", "array"):
        image = LocalDataset(tmp_path / "images", image_decoder=decoder).stats_of().columns["image"]
        assert image.sizes == {(4, 3): 2, (8, 6): 1}
        assert image.duplicates == 1
        assert "sizes 4×3 (2), 8×6 (1)" in str(image)


def test_samples_become_tables_and_tables_samples(folder: Path, rows: list[dict[str, object]]) -> None:
    dataset = LocalDataset(folder)
    table = dataset.to_arrow()
    assert table.num_rows == COUNT
    assert table.column("tokens").to_pylist() == [row["tokens"].tolist() for row in rows]  # type: ignore[attr-defined]
    assert dataset.to_arrow([7, 3]).column("id").to_pylist() == [7, 3]
    assert dataset.to_arrow([]).num_rows == 0
    frame = dataset.to_polars(slice(300))
    assert isinstance(frame, pl.DataFrame)
    assert frame["score"].to_list() == [row["score"] for row in rows[:300]]
    for made in (frame, frame.to_arrow()):
        source = from_table(made)
        assert [sample["id"] for sample in source] == [row["id"] for row in rows[:300]]
        assert len(source) == 300
    with pytest.raises(SampleIndexError, match="sample 1000 is out of range"):
        dataset.to_arrow([1000])
    with pytest.raises(ConfigError, match="list is no table: pass one of pandas, Polars or pyarrow"):
        from_table([1])


def test_columns_with_nulls_at_their_beginning_become_one_table(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"a": None if row < 400 else row}) + "\n" for row in range(600))
    (tmp_path / "rows.jsonl").write_text(lines)
    table = StreamingDataset(remote=str(tmp_path / "rows.jsonl")).to_arrow()
    assert table.column("a").type == pa.int64()
    assert table.column("a").null_count == 400


def test_what_no_table_can_hold_and_a_library_that_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MDSWriter(out=tmp_path / "images", columns={"image": "png"}) as writer:
        writer.write({"image": Image.new("RGB", (4, 3))})
    with pytest.raises(BadSampleError, match="field 'image'"):
        LocalDataset(tmp_path / "images").to_arrow()
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"to_pandas\(\) needs pandas.*\[tables\]'"):
        LocalDataset(folder).to_pandas()


def test_a_notebook_shows_the_first_samples(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"text": "str", "image": "png"}) as writer:
        for number in range(9):
            writer.write({"text": f"<b>{number}</b>" + "x" * 500, "image": Image.new("RGB", (4, 3))})
    shown = LocalDataset(tmp_path)._repr_html_()
    assert shown.count("<tr>") == 6
    assert "&lt;b&gt;4&lt;/b&gt;x" in shown
    assert "<b>" not in shown
    assert "image of 4×3" in shown
