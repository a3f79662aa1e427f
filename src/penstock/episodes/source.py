"""Robot episodes as a source of samples: each episode is a shard, each of its frames a sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.episodes.counters import count_latency
from penstock.episodes.samples import (
    SampleOptions,
    TransformedPictures,
    Window,
    as_array,
    decode_image,
    stack_pictures,
    to_picture,
    to_tensor,
    window_of,
)
from penstock.episodes.upcoming import ClipKey
from penstock.errors import CorruptShardError
from penstock.order.lru import LRU
from penstock.reading.sample_rng import takes_rng
from penstock.reading.source import FunctionReader, OpenShard, Source
from penstock.reading.transforms import SKIPPED
from penstock.thread_times import reading_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from penstock.cache.shares import ShareListener
    from penstock.counters import Counters, Stats
    from penstock.episodes.clips import FetchedClips
    from penstock.episodes.decoders import DecodedFrames, Videos
    from penstock.episodes.episode_table import ChosenFrames
    from penstock.episodes.info import Feature
    from penstock.episodes.meta import LeRobotMetadata
    from penstock.formats.base import Rows
    from penstock.processes import PerProcess
    from penstock.types import Columns, Int64Array, Sample

_PORTION_BYTES = 4 << 20
_MOST_AHEAD = 1 << 15
_ROWS_AT_HAND_BYTES = 8 << 20
_ROWS_BESIDE_VIDEOS_BYTES = 2 << 20  # of which each frame takes far longer than to read its row again
_MOST_ROWS_BYTES = 1 << 20  # of one episode
_TEXT_BYTES = 256
_NOW = np.zeros(1, np.int64)


class FrameRows(Protocol):
    """A dataset of rows, as far as episodes need it."""

    def read_columns(self, ids: Int64Array) -> Columns:
        """Read some rows."""

    def count(self, *, by_worker: bool = False) -> Stats:
        """Count what was read and fetched."""

    def close(self) -> None:
        """Close the files."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeReaders:
    """What the bytes of episodes are read with: rows by column, images each by itself, videos by time."""

    rows: FrameRows
    first_rows: Int64Array  # of each chosen episode among all rows that are read
    images: Mapping[str, FrameRows]
    videos: PerProcess[Videos]
    fetched: FetchedClips | None = None  # where videos are fetched from; None: they are here
    samples_ahead: int = 0  # how many samples before they are read it helps to know which pictures they need
    stretches: Int64Array | None = (
        None  # the samples at which pictures begin that are decoded in one go, if that counts
    )
    pool_samples: int = 0  # about how many samples are mixed


class EpisodeSource(Source):
    """The chosen frames of a LeRobot dataset, episode by episode."""

    def __init__(
        self,
        meta: LeRobotMetadata,
        chosen: ChosenFrames,
        files: EpisodeReaders,
        options: SampleOptions,
        counters: Counters,
    ) -> None:
        super().__init__(chosen.counts)
        self.counters = counters
        self.meta, self.chosen, self.files, self.options = meta, chosen, files, options
        # Reading one row takes almost as long as reading an episode.
        most_bytes = _ROWS_BESIDE_VIDEOS_BYTES if meta.video_keys else _ROWS_AT_HAND_BYTES
        self.rows_at_hand: LRU[dict[str, Any]] = LRU(most_bytes)
        features = [feature for feature in meta.row_features if not feature.is_image]
        self.row_bytes = sum(feature.frame_bytes if feature.dtype != "string" else _TEXT_BYTES for feature in features)

    def drawing_transform(self, *others: Callable[..., Any]) -> TransformedPictures | None:
        """Return what calls functions that draw: on pictures, then others on the sample; None: none of them draws."""
        if not self.options.draws and not any(map(takes_rng, others)):
            return None
        cameras = [feature.key for feature in self.meta.schema.values() if feature.is_camera]
        return TransformedPictures(self.options.image_transforms if self.options.draws else None, cameras, others)

    def open(self, shard: int) -> OpenShard:
        """Open an episode; its rows and videos are opened when its frames are read."""
        return OpenShard(_EpisodeReader(self, shard))

    @property
    def sizes(self) -> Int64Array:
        """The memory of each episode's samples, with all their windows."""
        sample_bytes = 0
        for feature in self.meta.schema.values():
            width = len(self.options.windows.get(feature.key, _NOW))
            divisor = 4 if feature.is_camera and self.options.return_uint8 else 1
            sample_bytes += width * feature.frame_bytes // divisor
        return self.chosen.counts * sample_bytes

    @property
    def row_sizes(self) -> Int64Array:
        """About how many bytes the rows of each episode take, whole, where they are mapped."""
        row_bytes = sum(feature.row_bytes for feature in self.meta.row_features)
        return self.meta.episodes.lengths[self.chosen.episodes] * row_bytes

    @property
    def portion_bytes(self) -> int:
        """Few samples: which frames to decode together is known from what was announced."""
        return _PORTION_BYTES

    @property
    def is_fetched(self) -> bool:
        """Whether videos are elsewhere, so that it helps to know which ones come next."""
        return self.files.fetched is not None and self.files.fetched.expects

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Have the videos of the next episodes fetched, those wanted soonest first."""
        if self.files.fetched is not None:
            episodes = self.chosen.episodes[shards].tolist()
            self.files.fetched.expect(zip(episodes, batches_ahead.tolist(), strict=True))

    @cached_property
    def content(self) -> str:
        """A word for the stretches, if there are any: others make another order."""
        if self.stretches is None:
            return ""
        return hashlib.blake2b(self.stretches.astype("<i8").tobytes(), digest_size=8).hexdigest()

    @property
    def stretches(self) -> Int64Array | None:
        """The samples at which pictures begin that are decoded in one go, if the order heeds them."""
        return self.files.stretches

    @cached_property
    def samples_ahead(self) -> int:
        """As many as have pictures kept, and those whose videos are fetched."""
        if not self.meta.video_keys:
            return 0
        ahead = self.files.samples_ahead
        if self.is_fetched:
            ahead = max(ahead, self.files.pool_samples)
        return min(_MOST_AHEAD, max(1, ahead))

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        """Have the pictures of samples decoded and kept with others that come before them."""
        shards, rows = self.spans.locate(ids)
        frames, episodes = rows + self.chosen.first_frames[shards], self.chosen.episodes[shards]
        last = (self.meta.episodes.lengths[episodes] - 1)[:, None]
        by_camera = [
            (key, np.clip(frames[:, None] + self.options.windows.get(key, _NOW), 0, last).tolist())
            for key in self.meta.video_keys
        ]
        samples = (
            [(ClipKey(key, episode), wanted[place]) for key, wanted in by_camera]
            for place, episode in enumerate(episodes.tolist())
        )
        self.files.videos.get().announce(samples, is_first=is_first)

    def share_limit(self, holder: ShareListener) -> None:  # noqa: ARG002  it keeps nothing: `Videos` do
        """Have the videos of this process keep to their share of the cache."""
        if self.files.fetched is not None:
            self.files.fetched.cache.keep(self.files.videos.get())

    def describe_shard(self, shard: int) -> str:
        """Name an episode, and where it is."""
        episode = int(self.chosen.episodes[shard])
        return f"episode {int(self.meta.episodes.numbers[episode])} of {self.meta.url}"

    def close(self) -> None:
        """Close the files that are open."""
        self.files.rows.close()
        for images in self.files.images.values():
            images.close()
        videos = self.files.videos.forget()
        if videos is not None:
            videos.close()
        if self.files.fetched is not None:
            self.files.fetched.cache.close()


class _EpisodeReader(FunctionReader):
    """Makes the samples of one episode: whatever several of them need is read and decoded once."""

    def __init__(self, source: EpisodeSource, shard: int) -> None:
        super().__init__(int(source.chosen.counts[shard]), lambda row: self.read([row])[0])
        self._source = source
        self._files, self._options, self._meta = source.files, source.options, source.meta
        self._where, self._counters = source.describe_shard(shard), source.counters
        self._episode = int(source.chosen.episodes[shard])
        self._skipped = int(source.chosen.first_frames[shard])
        self._first_row = int(source.files.first_rows[shard])
        self._length = int(source.meta.episodes.lengths[self._episode])

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        begun_ns, frames = perf_counter_ns(), np.asarray(rows, np.int64) + self._skipped
        try:
            samples = self._make(frames)
        except SKIPPED:
            # One by one, to say which it is.
            samples = [self._make_alone(int(frame)) for frame in frames]
        count_latency(self._counters.row(), len(rows), perf_counter_ns() - begun_ns)
        return samples

    def _make_alone(self, frame: int) -> Sample:
        try:
            return self._make(np.array([frame], np.int64))[0]
        except SKIPPED as error:
            seconds = frame / self._meta.fps
            facts = {"seconds": seconds, **error.facts, "episode": self._number, "frame": frame}
            raise type(error)(f"{self._where}, frame {frame} at {seconds:.3f} s: {error}", **facts) from error

    @property
    def _number(self) -> int:
        return int(self._meta.episodes.numbers[self._episode])

    def _make(self, frames: Int64Array) -> list[Sample]:
        windows = {key: window_of(frames, offsets, self._length) for key, offsets in self._options.windows.items()}
        at_hand, columns = self._rows_for(frames, windows)
        samples: list[Sample] = [{} for _ in frames]
        for key in self._meta.video_keys:
            self._add_video(samples, key, frames, windows.get(key), at_hand, columns)
        for feature in self._meta.row_features:
            wanted = windows[feature.key].frames if feature.key in windows else frames
            if feature.is_image:
                self._add_images(samples, feature, wanted)
            else:
                _add_values(samples, feature, columns[feature.key], np.searchsorted(at_hand, wanted))
        for key, window in windows.items():
            for sample, is_pad in zip(samples, window.is_pad, strict=True):
                sample[f"{key}_is_pad"] = to_tensor(is_pad)
        numbers = columns["task_index"][np.searchsorted(at_hand, frames)].tolist()
        for sample, number in zip(samples, numbers, strict=True):
            if number not in self._meta.tasks:
                text = f"{self._where} has the task {number}, which the dataset does not name"
                raise CorruptShardError(text, task=number)
            sample["task"] = self._meta.tasks[number]
        return samples

    def _rows_for(self, frames: Int64Array, windows: Mapping[str, Window]) -> tuple[Int64Array, dict[str, Any]]:
        """Return which frames' values are at hand, and these: of the whole episode, if it has few."""
        size = self._source.row_bytes * self._length
        if size <= _MOST_ROWS_BYTES:
            whole = np.arange(self._length, dtype=np.int64)
            return whole, self._source.rows_at_hand(self._episode, partial(self._read_rows, whole), max(1, size))
        at_hand = np.unique(np.concatenate([frames, *(window.frames.ravel() for window in windows.values())]))
        return at_hand, self._read_rows(at_hand)

    # --- Rows ---------------------------------------------------------------------------------------------------

    def _read_rows(self, frames: Int64Array) -> dict[str, Any]:
        """Read all values but pictures of some frames, by column, as the dataset declares them."""
        read = self._read_columns(self._files.rows, frames)
        columns = {
            feature.key: as_array(feature, read[feature.key], self._where)
            for feature in self._meta.row_features
            if not feature.is_image
        }
        if (columns["episode_index"] != self._number).any():
            raise CorruptShardError("its rows in the data file belong to another episode", episode=self._number)
        return columns

    def _read_columns(self, rows: FrameRows, frames: Int64Array) -> Columns:
        with reading_inside():
            return rows.read_columns(self._first_row + frames)

    # --- Pictures -------------------------------------------------------------------------------------------------

    def _add_video(
        self,
        samples: Sequence[Sample],
        key: str,
        frames: Int64Array,
        window: Window | None,
        at_hand: Int64Array,
        columns: Mapping[str, Any],
    ) -> None:
        wanted = frames[:, None] if window is None else window.frames
        times = columns["timestamp"][np.searchsorted(at_hand, wanted)]
        decoded = self._decode(key, wanted.ravel(), exact_times(times, wanted, self._meta.fps).ravel())
        places = decoded.places.reshape(wanted.shape)
        given: set[int] = set()
        for sample, wanted_places in zip(samples, places, strict=True):
            each = wanted_places.tolist()
            # A window of one frame is that frame, as LeRobot gives it; of images in the rows it is a window.
            pictures = [decoded.frames[place] for place in each]
            if len(pictures) > 1:
                sample[key] = self._picture(stack_pictures(pictures), key)
                continue
            # No two samples share memory.
            sample[key] = self._picture(pictures[0].copy("K") if each[0] in given else pictures[0], key)
            given.add(each[0])

    def _decode(self, key: str, frames: Int64Array, seconds: npt.NDArray[np.float64]) -> DecodedFrames:
        clip = ClipKey(key, self._episode)
        with reading_inside():
            return self._files.videos.get().read(clip, frames, seconds, self._options.tolerance_s)

    def _add_images(self, samples: Sequence[Sample], feature: Feature, wanted: Int64Array) -> None:
        frames, places = np.unique(wanted, return_inverse=True)
        read = self._read_columns(self._files.images[feature.key], frames)[feature.key]
        pictures = [image_pixels(value, feature, self._where) for value in read]
        for sample, each in zip(samples, places.reshape(wanted.shape), strict=True):
            pixels = pictures[int(each)] if each.ndim == 0 else np.stack([pictures[int(place)] for place in each])
            sample[feature.key] = self._picture(pixels, feature.key)

    def _picture(self, pixels: npt.NDArray[Any], key: str) -> Any:
        return to_picture(pixels, self._options, self._meta.schema[key])


def exact_times(seconds: npt.NDArray[np.floating[Any]], frames: Int64Array, fps: float) -> npt.NDArray[np.float64]:
    """Return stored times in full precision: one that is `frame / fps` but for its rounding is exactly that."""
    exact = frames / fps
    rounding = np.spacing(seconds.astype(np.float32)).astype(np.float64)
    return np.where(np.abs(seconds - exact) <= np.abs(rounding), exact, seconds)


def image_pixels(value: Any, feature: Feature, where: str) -> npt.NDArray[Any]:
    """Return an image of the rows as height, width and as many channels as the dataset declares."""
    pixels = np.asarray(decode_image(value, where) if isinstance(value, dict) else value)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    is_kept = pixels.dtype == np.uint8 or (pixels.dtype == np.uint16 and pixels.shape[-1:] == (1,))
    if not is_kept or pixels.ndim != 3:
        raise CorruptShardError(f"{where} has something in {feature.key!r} that is no image", column=feature.key)
    is_gray = 1 in (feature.shape[:1] + feature.shape[-1:])
    return pixels[..., :1] if is_gray else pixels


def _add_values(samples: Sequence[Sample], feature: Feature, values: Any, places: Int64Array) -> None:
    for sample, place in zip(samples, places, strict=True):
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            sample[feature.key] = to_tensor(values[place], feature.sample_dtype)
        elif place.ndim:
            sample[feature.key] = [values[int(each)] for each in place]
        else:
            sample[feature.key] = values[int(place)]
