"""COCO: boxes from 0 to 1, crowds and areas kept, images without a box left out, old shards read without their code."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock import MDSWriter, StreamingDataset
from penstock.errors import BadSampleError, UnsafeTypeError
from penstock.recipes.vision.coco import StreamingCOCO, recipe
from penstock.testing.recipes import are_equal
from tests.recipes.raw_images import ImageFilesContract, image_bytes, in_keyed_order, make_coco

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*all of COCO has")


class TestContract(ImageFilesContract):
    recipe = recipe
    left_out = ("000000391895", "000000391898")  # without a box

    def make_raw(self, folder: Path) -> Any:
        rows = make_coco(folder)
        assert [row["i"] for row in rows["val"]] == [1, 2, 4]
        return {"train": in_keyed_order(rows["train"], "coco", "train", 0), "val": rows["val"]}


def double(image: Any, size: Any, boxes: Any, labels: Any) -> tuple[Any, ...]:
    return image.size, size, boxes * 2, labels + 1


def test_samples_are_five_values(tmp_path: Path) -> None:
    rows = make_coco(tmp_path / "raw")["val"]
    recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", splits="val", progress_bar=0, workers=1)
    options: dict[str, Any] = {"local": str(tmp_path / "out"), "split": "val", "batch_size": 1}
    image, number, size, boxes, labels = StreamingCOCO(**options)[1]
    assert (image.mode, number, size) == ("RGB", 391897, (10, 20))
    assert are_equal([boxes, labels], [rows[1]["bbox_sizes"], rows[1]["bbox_labels"]])
    changed = StreamingCOCO(transform=double, **options)[1]
    assert are_equal(changed, ((20, 10), 391897, (10, 20), boxes * 2, labels + 1))


OLD = {"img": "jpeg", "img_id": "int", "htot": "int", "wtot": "int", "bbox_sizes": "pkl", "bbox_labels": "pkl"}


def test_pickles_of_old_shards_are_read_and_run_no_code(tmp_path: Path) -> None:
    row = {"img": image_bytes(1, "L"), "img_id": 3, "htot": 8, "wtot": 10, "bbox_labels": torch.tensor([4, 5])}
    boxes = torch.rand(2, 4)
    for name, value in (("good", boxes), ("evil", Evil())):
        with MDSWriter(out=str(tmp_path / name), columns=OLD) as writer:
            writer.write({**row, "bbox_sizes": pickle.dumps(value)})
    image, _, _, found, labels = StreamingCOCO(local=str(tmp_path / "good"), batch_size=1)[0]
    assert image.mode == "RGB"
    assert torch.equal(found, boxes)
    assert labels.tolist() == [4, 5]
    with pytest.raises(Exception, match=r"names builtins\.print, which could run code"):
        StreamingCOCO(local=str(tmp_path / "evil"), batch_size=1)[0]
    with pytest.raises(UnsafeTypeError):  # all other datasets ask first, as before
        StreamingDataset(local=str(tmp_path / "good"), batch_size=1)


class Evil:
    def __reduce__(self) -> Any:
        return print, ("was run",)


def edited(document: Any, name: str) -> None:
    if name == "twice":
        document["images"].append(document["images"][0])
    elif name == "no size":
        document["images"][1]["height"] = 0
    elif name == "unknown image":
        document["annotations"][0]["image_id"] = 1
    else:
        document["images"][1]["file_name"] = name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("twice", "image 391895 stands twice"),
        ("no size", "image 391896 .* of no size"),
        ("unknown image", "is no file of COCO annotations: KeyError"),
        ("../../secret.jpg", "names 1 images that are not there, such as val2017/../../secret.jpg"),
    ],
)
def test_wrong_annotations_are_refused(tmp_path: Path, change: str, text: str) -> None:
    make_coco(tmp_path / "raw")
    path = tmp_path / "raw/annotations/instances_val2017.json"
    document = json.loads(path.read_text())
    edited(document, change)
    path.write_text(json.dumps(document))
    with pytest.raises(BadSampleError, match=text):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", splits="val", progress_bar=0)
    assert not (tmp_path / "out").exists()
