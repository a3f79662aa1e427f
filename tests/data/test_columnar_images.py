"""Images by column: those of one size are one array, and only those of the batch that is taken are decoded."""

from __future__ import annotations

from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from penstock import Encoding, LocalDataset, MDSWriter, StreamingDataset, encodings
from penstock.errors import CorruptShardError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

NUM_SAMPLES, BATCH = 24, 4


def pixels(number: int, height: int = 20, width: int = 30) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def stored(encoding: str, image: Image.Image) -> Any:
    if encoding != "jpeg":
        return image
    out = BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def write(folder: Path, encoding: str, shapes: list[tuple[int, int]], mode: str = "RGB") -> Path:
    with MDSWriter(out=folder, columns={"id": "int", "image": encoding}, size_limit=10_000) as writer:
        for number, shape in enumerate(shapes):
            image = Image.fromarray(pixels(number, *shape)).convert(mode)
            writer.write({"id": number, "image": stored(encoding, image)})
    assert len(list(folder.glob("*.mds"))) > 1
    return folder


@pytest.mark.parametrize(("encoding", "mode"), [("jpeg", "RGB"), ("jpeg", "CMYK"), ("png", "L"), ("pil", "RGB")])
def test_images_of_one_size_are_one_array(tmp_path: Path, encoding: str, mode: str) -> None:
    folder = write(tmp_path / "data", encoding, [(20, 30)] * NUM_SAMPLES, mode)
    by_sample = [each["image"] for each in LocalDataset(local=folder, image_decoder="array")[:]]
    options: dict[str, Any] = {"local": folder, "image_decoder": "array", "batch_size": BATCH, "shuffle": True}
    with StreamingDataset(columnar=True, **options) as dataset:
        batches = list(dataset)
        few = dataset.read_columns([3, 5])["image"]  # of one shard
    assert isinstance(few, np.ndarray)
    assert few.shape == (2, 20, 30, 3)
    assert np.array_equal(few[0], by_sample[3])
    for batch in batches:
        images = batch["image"]
        assert isinstance(images, np.ndarray)
        assert images.shape == (BATCH, 20, 30, 3)
        assert images.dtype == np.uint8
        assert images.flags.writeable
        assert images.flags.c_contiguous
        assert np.array_equal(images, np.stack([by_sample[number] for number in batch["id"]]))


def test_images_of_several_sizes_are_a_list(tmp_path: Path) -> None:
    shapes = [(20, 30), (30, 20)] * (NUM_SAMPLES // 2)
    folder = write(tmp_path / "data", "png", shapes)
    with StreamingDataset(local=folder, image_decoder="array", batch_size=BATCH, columnar=True) as dataset:
        for batch in dataset:
            assert [image.shape[:2] for image in batch["image"]] == [shapes[number] for number in batch["id"]]
            assert np.array_equal(batch["image"][0], pixels(batch["id"][0], *shapes[batch["id"][0]]))


@pytest.mark.parametrize("decoder", ["pil", "raw"])
def test_what_is_no_array_stays_a_list(tmp_path: Path, decoder: Any) -> None:
    folder = write(tmp_path / "data", "png", [(20, 30)] * NUM_SAMPLES)
    with StreamingDataset(local=folder, image_decoder=decoder, batch_size=BATCH, columnar=True) as dataset:
        assert isinstance(next(iter(dataset))["image"], list)


# --- Decoded a batch at a time ------------------------------------------------------------------------------


@encodings.register("test_expanding")
class Expanding(Encoding):
    """Ten bytes that would be a large value, unless the first says that they are none."""

    expands = True
    num_decoded = 0

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        if data[0] == 255:
            raise ValueError("not an image")
        Expanding.num_decoded += 1
        return data


def write_expanding(folder: Path, bad: tuple[int, ...] = ()) -> Path:
    with MDSWriter(out=folder, columns={"id": "int", "x": "test_expanding"}, size_limit=300) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"id": number, "x": bytes([255 if number in bad else number]) * 10})
    return folder


def test_only_the_batch_that_is_taken_is_decoded(tmp_path: Path) -> None:
    folder = write_expanding(tmp_path / "data")
    before = Expanding.num_decoded
    dataset = StreamingDataset(local=folder, batch_size=BATCH, columnar=True, shuffle=True)
    for number, batch in enumerate(dataset, 1):
        assert Expanding.num_decoded - before == number * BATCH
        assert [value[0] for value in batch["x"]] == batch["id"].tolist()


def test_a_value_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    dataset = StreamingDataset(local=write_expanding(tmp_path / "data", (13,)), batch_size=BATCH, columnar=True)
    batches = iter(dataset)
    assert len(list(islice(batches, 3))) == 3  # those before it are fine, though read with it
    with pytest.raises(CorruptShardError, match=r"shard\.\d+\.mds, row \d+: column 'x' cannot be decoded"):
        next(batches)


def test_bad_values_are_skipped_wherever_they_are(tmp_path: Path) -> None:
    folder = write_expanding(tmp_path / "data", (5, 13))
    with StreamingDataset(local=folder, batch_size=BATCH, columnar=True, on_error="skip") as dataset:
        batches = list(dataset)
        assert dataset.stats().skipped == 2
    found = [int(number) for batch in batches for number in batch["id"]]
    assert len(found) == NUM_SAMPLES
    assert set(found) == set(range(NUM_SAMPLES)) - {5, 13}
    for batch in batches:
        assert [value[0] for value in batch["x"]] == batch["id"].tolist()
