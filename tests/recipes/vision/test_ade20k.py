"""ADE20K: pairs by name, without the images that are known to be corrupt; other counts are warned of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import BadSampleError
from penstock.recipes.vision.ade20k import StreamingADE20K, recipe
from tests.recipes.raw_images import ImageFilesContract, in_keyed_order, make_ade20k, stored_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*all of ADE20K has")


class TestContract(ImageFilesContract):
    recipe = recipe
    left_out = ("ADE_train_00001701",)  # known to be corrupt

    def may_lack(self, path: Path) -> bool:
        return False

    def make_raw(self, folder: Path) -> Any:
        rows = make_ade20k(folder)
        assert [len(each) for each in rows.values()] == [5, 6]
        return {"train": keyed(rows["train"]), "val": rows["val"]}


def keyed(rows: list[Any]) -> list[Any]:
    return in_keyed_order(rows, "ade20k", "train", 0)


def twice(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return tuple(each.resize((20, 16)) for each in pair)


def test_pairs_go_through_all_functions(tmp_path: Path) -> None:
    make_ade20k(tmp_path / "raw")
    with pytest.warns(UserWarning, match="training has 5 pairs; all of ADE20K has 20,206"):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", progress_bar=0, workers=1)
    options: dict[str, Any] = {"local": str(tmp_path / "out"), "split": "train", "batch_size": 1}
    x, y = StreamingADE20K(**options)[0]
    assert (x.size, x.mode, y.size, y.mode) == ((10, 8), "RGB", (10, 8), "L")
    functions: dict[str, Any] = {"joint_transform": twice, "transform": np.asarray, "target_transform": np.array}
    x, y = StreamingADE20K(**functions, **options)[0]
    assert (x.shape, y.shape) == ((16, 20, 3), (16, 20))


def test_files_without_a_partner_are_listed(tmp_path: Path) -> None:
    make_ade20k(tmp_path / "raw")
    (tmp_path / "raw/annotations/training/ADE_train_00000002.png").unlink()
    (tmp_path / "raw/images/training/ADE_train_00000003.jpg").unlink()
    with pytest.raises(BadSampleError, match=r"2 files of training have no partner.*02\.jpg.*03\.png"):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", progress_bar=0)
    assert not (tmp_path / "out").exists()
    recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", splits="val", progress_bar=0, workers=1)
    assert len(stored_rows(tmp_path / "out/val")) == 6
