"""The steps one by one: samples as MDS and as TFRecord files, merged, counted, picked and converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError, OutputExistsError
from penstock.recipes.text import enwiki_tools as tools
from penstock.recipes.text.tfrecord import read_records
from penstock.testing.recipes import read_rows
from tests.recipes.text.raw import write_wiki

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_wiki(tmp_path / "raw")
    return tmp_path / "raw"


def made_of(raw: Path, name: str) -> dict[str, Any]:
    return {"input_file": str(raw / name), "vocab_file": str(raw / "vocab.txt"), **SMALL}


def test_groups_are_merged_and_samples_picked(raw: Path, tmp_path: Path) -> None:
    for number in range(2):
        out = tmp_path / f"groups/group-{number:03}"
        given = made_of(raw, f"part-{number:05}-of-00500")
        tools.create_pretraining_data.convert(output_dir=str(out), progress_bar=0, workers=1, **given)
    groups = [read_rows(tmp_path / f"groups/group-{number:03}") for number in range(2)]
    tools.merge_shard_groups.convert(in_root=str(tmp_path / "groups"), out_root=str(tmp_path / "merged"))
    merged = read_rows(tmp_path / "merged")
    assert merged == groups[0] + groups[1]
    assert not (tmp_path / "groups").exists()
    with pytest.raises(OutputExistsError, match="merged exists"):
        tools.merge_shard_groups.convert(in_root=str(tmp_path / "merged"), out_root=str(tmp_path / "merged"))
    for count in (5, 10_000):
        out = tmp_path / f"picked-{count}"
        tools.pick_eval_samples.convert(
            in_root=str(tmp_path / "merged"), out_root=str(out), num_examples_to_pick=count, progress_bar=0
        )
        total = len(merged)
        few = min(count, total)
        assert read_rows(out) == [merged[number * total // few] for number in range(few)]


def test_tfrecords_hold_the_same_samples(raw: Path, tmp_path: Path) -> None:
    given = made_of(raw, "part-*")
    tools.create_pretraining_data.convert(output_dir=str(tmp_path / "mds"), progress_bar=0, workers=1, **given)
    records = tmp_path / "records"
    tools.create_tfrecords.convert(output_file=str(records / "0.tfrecord"), **given)
    tools.tfrecord_to_mds.convert(in_root=str(records), out_root=str(tmp_path / "back"), progress_bar=0, workers=1)
    assert read_rows(tmp_path / "back") == read_rows(tmp_path / "mds")
    total = len(read_rows(tmp_path / "mds"))
    assert tools.count_samples.convert(dataset=str(records))[""] == str(total)
    tools.pick_tfrecords.convert(
        input_tfrecord=str(records / "0.tfrecord"), output_tfrecord=str(tmp_path / "few"), num_examples_to_pick=3
    )
    everything = [*read_records(records / "0.tfrecord")]
    assert [*read_records(tmp_path / "few")] == [everything[number * total // 3] for number in range(3)]


def test_parts_are_made_in_parallel(raw: Path, tmp_path: Path) -> None:
    tools.make_tfrecords_parallel.convert(
        input_pattern=str(raw / "part-%05d-of-00500"),
        output_pattern=str(tmp_path / "%d.tfrecord"),
        vocab_file=str(raw / "vocab.txt"),
        num_shards=2,
        num_cpus=1,
        **SMALL,
    )
    assert sorted(path.name for path in tmp_path.glob("*.tfrecord")) == ["0.tfrecord", "1.tfrecord"]
    given = {"in_root": str(raw), "out_root": str(tmp_path / "out"), "progress_bar": 0, "workers": 1, **SMALL}
    tools.make_train_parallel.convert(in_num_shards=3, **given)
    assert len(read_rows(tmp_path / "out")) > 10
    with pytest.raises(ConfigError, match="part-00003-of-00500 is not in"):
        tools.make_train_parallel.convert(in_num_shards=4, **given)
    with pytest.raises(ConfigError, match="one number"):
        tools.make_train_parallel.convert(in_pattern="part", **given)


def test_a_step_is_run_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools.run_tool(["count_samples", "--dataset", str(tmp_path)])
    assert capsys.readouterr().out == "0\n"
    (tmp_path / "bad").write_bytes(bytes(20))
    with pytest.raises(SystemExit, match=r"^count_samples: .*bad is cut off or damaged at record 0"):
        tools.run_tool(["count_samples", "--dataset", str(tmp_path)])
