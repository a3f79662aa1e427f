"""Which files of a repository on the Hub are a split of a subset: by its own words, and by names."""

from __future__ import annotations

import pytest

from penstock.cli.datasets import as_options
from penstock.errors import ConfigError
from penstock.scan.hub import Subset, choose_files, find_splits, read_subsets

README = """---
license: mit
configs:
- config_name: en
  data_files:
  - split: train
    path: ["en/train/*.parquet"]
  - split: test
    path: en/test.parquet
- config_name: de
  default: true
  data_files: "de/**"
- config_name: fr
  data_dir: french
---
# A dataset
"""


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002-abc.parquet",
                "data/en.dev-00000-of-00001.csv",
            ],
            {
                "train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002-abc.parquet"],
                "en.dev": ["data/en.dev-00000-of-00001.csv"],
            },
        ),
        (["train/a.csv", "test/a.csv", "other.csv"], {"train": ["train/a.csv"], "test": ["test/a.csv"]}),
        (["x/valid-1/a.csv", "x/training/a.csv"], {"validation": ["x/valid-1/a.csv"], "train": ["x/training/a.csv"]}),
        (
            ["my_train_1.csv", "dev.csv", "evaluation-2.csv"],
            {"train": ["my_train_1.csv"], "validation": ["dev.csv"], "test": ["evaluation-2.csv"]},
        ),
        (["trainer.csv", "latest.csv"], {"train": ["trainer.csv", "latest.csv"]}),
        ([], {}),
    ],
)
def test_names_tell_splits(names: list[str], splits: dict[str, list[str]]) -> None:
    assert find_splits(names) == splits


def test_a_repository_describes_its_subsets() -> None:
    subsets = read_subsets(README, None)
    assert [each.name for each in subsets] == ["en", "de", "fr"]
    names = ["en/train/1.parquet", "en/test.parquet", "de/x/1.parquet", "french/train/1.parquet", "french/test.csv"]
    names += ["README.md", ".gitattributes", "de/__pycache__/x.parquet", "dataset_infos.json"]
    assert choose_files(names, subsets, None, None) == ["de/x/1.parquet"]
    assert choose_files(names, subsets, "en", "train") == ["en/train/1.parquet"]
    assert choose_files(names, subsets, "fr", "train") == ["french/train/1.parquet"]
    assert read_subsets(README, "configs: [{config_name: own, data_files: a.csv}]") == [
        Subset("own", {"train": ("a.csv",)})
    ]
    assert read_subsets("# no head", None) == []
    assert choose_files(["en/train/0.parquet", "de/train/0.parquet"], [], "de", None) == ["de/train/0.parquet"]


@pytest.mark.parametrize(
    ("subset", "split", "match"),
    [
        ("en", None, "subset 'en' has several splits: pass split=, one of test, train"),
        ("en", "dev", "subset 'en' has no split 'dev': it has test, train"),
        ("it", None, "no subset 'it': the repository has de, en, fr"),
        ("de", None, "subset 'de' has no files in a format"),
    ],
)
def test_what_a_repository_does_not_have(subset: str, split: str | None, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        choose_files(["en/train/1.parquet", "en/test.parquet"], read_subsets(README, None), subset, split)


def test_commands_name_options_as_one_types_them() -> None:
    with pytest.raises(ConfigError, match="several subsets: pass subset=, one of de, en") as caught:
        choose_files(["de/1.parquet", "en/1.parquet"], [Subset("en", {}), Subset("de", {})], None, None)
    assert as_options(str(caught.value)) == "the repository has several subsets: pass --subset, one of de, en"
    assert as_options("there is no split='x' and a_split= stays") == "there is no split='x' and a_split= stays"


@pytest.mark.parametrize(
    "text", ["---\nconfigs: [1]\n---\n", "---\nconfigs: [{data_files: {train: 3}}]\n---\n", "---\n a: : b\n---\n"]
)
def test_what_makes_no_sense_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"of the repository|not valid YAML"):
        read_subsets(text, None)
