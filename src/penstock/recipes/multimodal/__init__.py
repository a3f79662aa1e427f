"""Datasets of videos and of images with text: readers and converters. See `docs/recipes.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.recipes.multimodal.webvid import StreamingInsideWebVid as StreamingInsideWebVid
    from penstock.recipes.multimodal.webvid import StreamingOutsideDTWebVid as StreamingOutsideDTWebVid
    from penstock.recipes.multimodal.webvid import StreamingOutsideGIWebVid as StreamingOutsideGIWebVid
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
