"""WebVid: fetch the videos that a CSV file names, and write them with their captions."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import BadSampleError
from penstock.order.lru import LRU
from penstock.outside_text import Bounded
from penstock.publish.sizes import PROBE_ROWS
from penstock.recipes.base import Recipe, add_flag, add_writing_flags, run_module
from penstock.sources.composite import LimitedShardedSource
from penstock.sources.files.text_sources import CsvShardedSource
from penstock.sources.transforms import BatchTransform, ChainedTransform, MapTransform
from penstock.storage.base import redacted, shown_url
from penstock.threads import call_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from penstock.conversion.converting import ConvertOptions
    from penstock.conversion.plan import ConvertReport
    from penstock.sources.base import ShardedSource
    from penstock.types import Sample

_DURATION = Bounded(r"PT(\d\d)H(\d\d)M(\d\d)S", 32)
_NEEDED = ("videoid", "name", "page_dir", "contentUrl", "duration")
_MOST_BYTES = 1 << 30  # of a video
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")  # one of which an mp4 file begins with
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_TRIES, _PAUSE_S = 3, 0.5


def parse_duration(text: str) -> int:
    """Return the seconds of a duration such as PT00H01M05S."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadSampleError(f"the duration {text!r:.40} is not written as PT00H00M10S")
    hours, minutes, seconds = map(int, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def fetch_video(url: str, timeout: float) -> bytes:
    """Fetch an mp4 file from the web, within so many seconds for each of a few tries."""
    if not url.startswith(("http://", "https://")):
        raise BadSampleError(f"{url!r:.80} is no address of the web")
    for left in reversed(range(_TRIES)):
        try:
            return _fetch_once(url, timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            passing = not isinstance(error, urllib.error.HTTPError) or error.code in _PASSING
            if not (left and passing):
                raise BadSampleError(f"{shown_url(url)}: {redacted(str(error) or type(error).__name__)}") from error
            time.sleep(_PAUSE_S)
    raise AssertionError


def _fetch_once(url: str, timeout: float) -> bytes:
    deadline, data = time.monotonic() + timeout, bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as reply:  # noqa: S310  its scheme was looked at
        while chunk := reply.read1(1 << 20):
            data += chunk
            if time.monotonic() > deadline:
                raise TimeoutError(f"no whole reply within {timeout:g} s")
            if len(data) > _MOST_BYTES:
                raise BadSampleError(f"{shown_url(url)} is longer than {_MOST_BYTES} bytes")
        expected = reply.headers.get("Content-Length")
    if expected is not None and len(data) != int(expected):
        raise TimeoutError(f"the reply ended after {len(data)} of {expected} bytes")
    if data[4:8] not in _BOXES:
        raise BadSampleError(f"{shown_url(url)} is no mp4 file: it begins with {bytes(data[:16])!r}")
    return bytes(data)


class FetchVideos(BatchTransform):
    """Fetches the videos of some rows at once; a row whose video cannot be had gets an error instead."""

    keeps_number = True

    def __init__(self, num_threads: int, timeout: float, batch_size: int) -> None:
        self._num_threads, self._timeout, self.batch_size = num_threads, timeout, batch_size
        # The first rows of a task are read twice, once to learn their size.
        self._fetched: LRU[Sample] = LRU(PROBE_ROWS + batch_size)

    def __call__(self, samples: list[Sample]) -> list[Sample]:
        """Return the rows, in their order."""
        return call_all([partial(self._fetch, row) for row in samples], self._num_threads, "penstock-crawl")

    def _fetch(self, row: Sample) -> Sample:
        return self._fetched((row["videoid"], row["contentUrl"]), partial(self._fetch_now, row))

    def _fetch_now(self, row: Sample) -> Sample:
        try:
            row = {"page_idx": "", **row, "duration": parse_duration(row["duration"])}
            return {**row, "content": fetch_video(row["contentUrl"], self._timeout)}
        except BadSampleError as error:
            return {**row, "error": str(error)}

    def settings(self) -> Mapping[str, Any]:
        """Return nothing: the same videos come however they are fetched."""
        return {}


def refuse_failed(row: Sample) -> Sample:
    """Raise what was wrong with a video."""
    if "error" in row:
        raise BadSampleError(f"video {row['videoid']}: {row['error']}")
    return row


def open_rows(path: str) -> CsvShardedSource:
    """Open the rows of the CSV file, which must have the columns that are needed."""
    rows = CsvShardedSource(path)
    with_first = next(iter(rows), {})
    if missing := [name for name in _NEEDED if name not in with_first]:
        raise BadSampleError(
            f"{shown_url(path)} has no column {missing[0]!r}: it has {', '.join(with_first) or 'none'}"
        )
    return rows


class CrawlWebVidRecipe(Recipe):
    """WebVid, from a CSV file of videos: fetches them, and writes them in the order of the file.

    Videos that cannot be had, or that are no mp4 files, are left out and listed in <out_root>/_rejected/, unless
    --on_error is `raise`. A crawl that was stopped goes on where it was.
    """

    name = "crawl_webvid"
    splits = ("",)
    columns: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("videoid", "name", "page_idx", "page_dir", "contentUrl"), "str"),
        "duration": "int",
        "content": "bytes",
    }
    batch_size = 64  # rows whose videos are fetched at a time

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add flags of its own in place of those of raw files."""
        self.add_places(parser)
        add_flag(parser, "--num_procs", type=int, default=64, help="how many videos are fetched at a time")
        add_flag(parser, "--limit", type=int, default=-1, help="how many videos; -1 or 0: all")
        add_flag(parser, "--timeout", type=float, default=60.0, help="seconds that a video may take")
        add_writing_flags(parser, self.defaults)
        parser.set_defaults(on_error="skip", splits=self.splits)

    def add_places(self, parser: argparse.ArgumentParser) -> None:
        """Add where from and where to."""
        add_flag(parser, "--in", dest="in_root", required=True, help="the CSV file")
        add_flag(parser, "--out_root", required=True, help="the folder or URL of the dataset")

    def options(self, args: argparse.Namespace) -> ConvertOptions:
        """Fetch videos in each task with its share of the threads."""
        threads = max(1, args.num_procs // (args.workers or 1))
        fetch = FetchVideos(threads, args.timeout, self.batch_size)
        transform = ChainedTransform([fetch, MapTransform(refuse_failed)])
        return {"columns": self.columns, "transform": transform, "task_size": "256kb"}

    def open_split(self, args: argparse.Namespace, split: str) -> ShardedSource:
        """Open the rows of a subset, or all."""
        rows: ShardedSource = open_rows(str(args.in_root))
        rows = rows.filter(partial(_is_named, split)) if split else rows
        return rows if args.limit in (-1, 0) else LimitedShardedSource(rows, args.limit)

    def run(self, args: argparse.Namespace) -> Mapping[str, ConvertReport]:
        """Crawl."""
        args.workers = args.workers or 1  # its threads wait for the network
        return super().run(args)


def _is_named(word: str, row: Sample) -> bool:
    return word in row["name"]


recipe = CrawlWebVidRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
