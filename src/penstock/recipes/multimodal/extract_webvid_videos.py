"""WebVid: take the videos out of the shards, to a file each beside them."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.cache.proxied import open_proxied
from penstock.conversion.inputs import TableSource
from penstock.data.dataset import StreamingDataset
from penstock.errors import BadSampleError
from penstock.recipes.base import Recipe, add_flag, add_writing_flags, run_module
from penstock.sources.transforms import MapTransform

if TYPE_CHECKING:
    import argparse

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample


def extract_video(place: str, row: Sample) -> Sample:
    """Write the video of a row to a file of its number, which appears whole or not at all."""
    number, content = row["row"], row["content"]
    name = f"{number // 1000:03}/{number % 1000:03}.mp4"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video.mp4")
        path.write_bytes(content)
        open_proxied(place).upload(path, name)
    return {**row, "content_path": name, "content_size": len(content)}


class ExtractWebVidVideosRecipe(Recipe):
    """WebVid with its videos taken out of the shards: video i becomes <out_mp4>/<i // 1000>/<i % 1000>.mp4.

    The new dataset has the column `content_path` instead of `content`, and `content_size`.
    """

    name = "extract_webvid_videos"
    splits = ("",)
    defaults: ClassVar[ConvertOptions] = {
        "compression": "zstd:16",
        "hashes": ("sha1", "xxh3_64"),
        "size_limit": 1 << 25,
    }

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add flags of its own in place of those of raw files."""
        add_flag(parser, "--in", dest="in_root", required=True, help="the folder or URL of the dataset with videos")
        add_flag(parser, "--out_mds", dest="out_root", required=True, help="the folder or URL of the new dataset")
        add_flag(parser, "--out_mp4", required=True, help="the folder or URL of the videos")
        add_writing_flags(parser, self.defaults)
        parser.set_defaults(splits=self.splits)

    def options(self, args: argparse.Namespace) -> ConvertOptions:
        """Return the columns of the dataset, but for the videos."""
        encodings = {column.name: column.encoding for column in _open(args)[1]}
        if encodings.pop("content", None) is None:
            raise BadSampleError(f"{args.in_root} has no column 'content' with videos")
        columns = {**encodings, "content_path": "str", "content_size": "int"}
        return {"columns": columns, "transform": MapTransform(partial(extract_video, os.fspath(args.out_mp4)))}

    def open_split(self, args: argparse.Namespace, split: str) -> Any:  # noqa: ARG002  there is but one
        """Open the rows of the dataset, in their order."""
        dataset, _ = _open(args)
        told = dataset.as_source().fingerprint or ""
        num_bytes = int(dataset._opened.source.sizes.sum())
        return TableSource(dataset, dataset.num_samples, _read, told, num_bytes)


def _open(args: argparse.Namespace) -> tuple[StreamingDataset, Any]:
    dataset = StreamingDataset(remote=os.fspath(args.in_root), shuffle=False)
    files = dataset._opened.streams[0].files
    if files is None or not files.index.shards:
        raise BadSampleError(f"{args.in_root} is no dataset of shards")
    return dataset, files.index.shards[0].layout.columns


def _read(dataset: StreamingDataset, begin: int, end: int) -> list[Sample]:
    return [{**sample, "row": number} for number, sample in enumerate(dataset[begin:end], begin)]


recipe = ExtractWebVidVideosRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
