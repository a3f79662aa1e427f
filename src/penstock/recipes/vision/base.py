"""Images with a class each: what their datasets share, and the converter of any dataset of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.conversion.converting import convert
from penstock.data.dataset import StreamingDataset
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.recipes.raw_files import keyed_records
from penstock.sources.code_digest import digest_code
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.conversion.plan import ConvertReport
    from penstock.types import Sample

IMAGE_CLASS_COLUMNS = {"i": "int", "y": "int", "class_name": "str"}  # beside `x`, the image


def to_tensor(image: Any) -> Any:
    """Make a tensor of an image as torchvision does: channels, height, width; bytes become floats from 0 to 1."""
    torch = require("torch", extra="torch", purpose="images as tensors; pass transform= to make something else of them")
    pixels = np.array(image)
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * 255
    if pixels.dtype == np.uint16:  # which few operations of torch know
        pixels = pixels.astype(np.int32)
    tensor = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1).copy())
    return tensor.to(torch.get_default_dtype()) / 255 if pixels.dtype == np.uint8 else tensor


class StandardTransform:
    """A function of the image and one of its target, called together; images without a function become tensors."""

    def __init__(
        self,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        without: Callable[[Any], Any] | None = to_tensor,
    ) -> None:
        self.transform, self.target_transform, self._of_image = transform, target_transform, transform or without

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return what both functions make of an image and its target."""
        x = x if self._of_image is None else self._of_image(x)
        return x, y if self.target_transform is None else self.target_transform(y)


def to_mode(image: Any, mode: str | None) -> Any:
    """Return an image in a mode of Pillow, such as RGB; None: as it is."""
    return image if mode is None or image.mode == mode else image.convert(mode)


class StreamingVisionDataset(StreamingDataset):
    """Images with a target each: samples are pairs `(x, y)`.

    Args:
        transforms: A function of image and target that returns both.
        transform: A function of the image alone; without any of these, images become tensors.
        target_transform: A function of the target alone.
        image_mode: Turn images to this mode of Pillow first: with `"RGB"`, gray and CMYK images have three channels.
        **options: All that `StreamingDataset` takes.
    """

    without_transform: Callable[[Any], Any] | None = staticmethod(to_tensor)  # what becomes of images

    def __init__(
        self,
        *,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        image_mode: str | None = None,
        **options: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ConfigError("pass either transforms=, or transform= and target_transform=, not both kinds")
        self.transforms = transforms or StandardTransform(transform, target_transform, self.without_transform)
        self.target_transform, self.image_mode = target_transform, image_mode
        super().__init__(**options)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        """Return an image and its target."""
        return self.transforms(*self.pair_of(super().get_item(sample_id, *retry, **named)))

    def pair_of(self, sample: Sample) -> tuple[Any, Any]:
        """Return the image and the target of a sample."""
        return to_mode(sample["x"], self.image_mode), sample["y"]


# --- Writing ---


class _Pairs:
    """The pairs of a dataset of images, as records."""

    def __init__(self, dataset: Any, class_names: Sequence[str] | None) -> None:
        self._dataset, self._class_names = dataset, class_names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Sample:
        x, y = self._dataset[number]
        names = self._class_names
        return {"x": x, "y": int(y), **({} if names is None else {"class_name": names[int(y)]})}


def convert_image_class_dataset(
    dataset: Any,
    out_root: str,
    split: str | None = None,
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int | str = 1 << 24,
    progress_bar: bool = True,
    leave: bool = False,  # noqa: ARG001  whether the line of progress stays
    encoding: str = "pil",
    *,
    seed: int = 0,
    workers: int = 1,
) -> ConvertReport:
    """Convert any dataset that gives an image and the number of its class by its number, such as those of torchvision.

    Rows are in an order that `seed` decides; column `i` is the number in the dataset. If the dataset has `classes`,
    the names of these are kept as `class_name`. If all of it can be pickled, a conversion that was interrupted goes on.
    """
    names = getattr(dataset, "classes", None)
    columns = {"i": "int", "x": encoding, "y": "int", **({} if names is None else {"class_name": "str"})}
    digest = digest_code(type(dataset).__name__, dataset).digest
    rows = keyed_records(_Pairs(dataset, names), (split or "", seed), digest, len(dataset) << 12)
    return convert(
        rows,
        join_url(str(out_root), split) if split else str(out_root),
        columns=columns,
        workers=workers,
        resume=bool(digest),
        compression=compression or None,
        hashes=tuple(hashes or ()),
        size_limit=size_limit,
        progress=progress_bar,
    )


def image_of(pixels: Any) -> Any:
    """Return an array of pixels as an image."""
    return require("PIL.Image", extra="images", purpose="images").fromarray(pixels)
