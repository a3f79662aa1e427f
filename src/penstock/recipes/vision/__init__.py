"""Datasets of images that people know: readers and converters. See `docs/recipes.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.recipes.vision.ade20k import StreamingADE20K as StreamingADE20K
    from penstock.recipes.vision.base import StandardTransform as StandardTransform
    from penstock.recipes.vision.base import StreamingVisionDataset as StreamingVisionDataset
    from penstock.recipes.vision.base import convert_image_class_dataset as convert_image_class_dataset
    from penstock.recipes.vision.cifar10 import StreamingCIFAR10 as StreamingCIFAR10
    from penstock.recipes.vision.coco import StreamingCOCO as StreamingCOCO
    from penstock.recipes.vision.imagenet import StreamingImageNet as StreamingImageNet
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
