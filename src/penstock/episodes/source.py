"""Robot episodes as a source of samples: each episode is a shard, each of its frames a sample."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.counted import count_latency
from penstock.episodes.samples import PictureOptions, as_array, decode_image, task_of, to_picture, to_tensor
from penstock.episodes.windows import Window, window_of
from penstock.errors import CorruptShardError
from penstock.reading.skip import SKIPPED
from penstock.reading.source import FunctionReader, OpenShard, Source
from penstock.spent import reading_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from penstock.counters import Counters
    from penstock.data.dataset import StreamingDataset
    from penstock.episodes.decoders import DecodedFrames, Videos
    from penstock.episodes.info import Feature
    from penstock.episodes.meta import LeRobotMetadata
    from penstock.formats.base import Rows
    from penstock.processes import PerProcess
    from penstock.types import Columns, Int64Array, Sample

_PORTION_BYTES = 64 << 20
_VIDEOS_AHEAD = 8
_REMEMBERED = 256  # of what was asked for: in another epoch it may be gone
_NOW = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenFrames:
    """Which frames are samples: some episodes, without so many frames at either end of each."""

    episodes: Int64Array  # places in the table of episodes
    first_frames: Int64Array
    counts: Int64Array


def choose_frames(lengths: Int64Array, episodes: Int64Array, drop_first: int = 0, drop_last: int = 0) -> ChosenFrames:
    """Choose the frames of some episodes, but the first and the last ones of each."""
    counts = np.maximum(0, lengths[episodes] - drop_first - drop_last)
    return ChosenFrames(episodes=episodes, first_frames=np.full_like(counts, drop_first), counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeFiles:
    """What the bytes of episodes are read with: rows by column, images each by itself, videos by time."""

    rows: StreamingDataset
    first_rows: Int64Array  # of each chosen episode among all rows that are read
    images: Mapping[str, StreamingDataset]
    videos: PerProcess[Videos]
    video_path: Callable[[str], str]  # gives the path on this machine of a file that the dataset names
    fetch_video: Callable[[str], None] | None = None  # has one fetched that is not here; None: all are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleOptions:
    """What a sample holds besides the frame itself."""

    windows: Mapping[str, Int64Array]  # offsets in frames by key
    tolerance_s: float
    pictures: PictureOptions


class EpisodeSource(Source):
    """The chosen frames of a LeRobot dataset, episode by episode."""

    def __init__(
        self,
        meta: LeRobotMetadata,
        chosen: ChosenFrames,
        files: EpisodeFiles,
        options: SampleOptions,
        counters: Counters,
    ) -> None:
        super().__init__(chosen.counts)
        self.counters = counters
        self.meta, self.chosen, self.files, self.options = meta, chosen, files, options
        self._asked_for: deque[str] = deque(maxlen=_REMEMBERED)

    def open(self, shard: int) -> OpenShard:
        """Open an episode; its rows and videos are opened when its frames are read."""
        reader = _EpisodeReader(self, shard)
        return OpenShard(FunctionsReader(int(self.chosen.counts[shard]), reader.read))

    @property
    def sizes(self) -> Int64Array:
        """The memory of each episode's samples, with all their windows."""
        sample_bytes = 0
        for feature in self.meta.schema.features.values():
            width = len(self.options.windows.get(feature.key, _NOW))
            divisor = 4 if feature.is_camera and self.options.pictures.return_uint8 else 1
            sample_bytes += width * feature.frame_bytes // divisor
        return self.chosen.counts * sample_bytes

    @property
    def row_sizes(self) -> Int64Array:
        """About how many bytes the rows of each episode take, whole, where they are mapped."""
        row_bytes = sum(feature.row_bytes for feature in self.meta.row_features)
        return self.meta.episodes.lengths[self.chosen.episodes] * row_bytes

    @property
    def portion_bytes(self) -> int:
        """Enough samples that those of one group of pictures are decoded together."""
        return _PORTION_BYTES

    @property
    def is_fetched(self) -> bool:
        """Whether videos are elsewhere, so that it helps to know which ones come next."""
        return self.files.fetch_video is not None

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:  # noqa: ARG002
        """Have the videos of the next episodes fetched, a few at a time, those wanted soonest first."""
        if self.files.fetch_video is None:
            return
        videos = self.meta.episodes.videos.values()
        names = (spans.path(int(self.chosen.episodes[shard])) for shard in shards for spans in videos)
        wanted = dict.fromkeys(name for name in names if name not in self._asked_for)
        for name in list(wanted)[:_VIDEOS_AHEAD]:
            self._asked_for.append(name)
            self.files.fetch_video(name)

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


class FunctionsReader(FunctionReader):
    """A shard whose samples a function makes many at a time."""

    def __init__(self, num_rows: int, samples_of: Callable[[Int64Array], list[Sample]]) -> None:
        super().__init__(num_rows, lambda row: samples_of(np.array([row], np.int64))[0])
        self._samples_of = samples_of

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        return self._samples_of(np.asarray(rows, np.int64))


class _EpisodeReader:
    """Makes the samples of one episode: whatever several of them need is read and decoded once."""

    def __init__(self, source: EpisodeSource, shard: int) -> None:
        self._files, self._options, self._meta = source.files, source.options, source.meta
        self._where, self._counters = source.describe_shard(shard), source.counters
        self._episode = int(source.chosen.episodes[shard])
        self._skipped = int(source.chosen.first_frames[shard])
        self._first_row = int(source.files.first_rows[shard])
        self._length = int(source.meta.episodes.lengths[self._episode])

    def read(self, rows: Int64Array) -> list[Sample]:
        begun_ns = perf_counter_ns()
        try:
            samples = self._make(rows + self._skipped)
        except SKIPPED:
            # One by one, to say which it is.
            samples = [self._make_alone(int(frame)) for frame in rows + self._skipped]
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
        at_hand = np.unique(np.concatenate([frames, *(window.frames.ravel() for window in windows.values())]))
        columns = self._read_rows(at_hand)
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
            sample["task"] = task_of(self._meta.tasks, number, self._where)
        return samples

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

    def _read_columns(self, rows: StreamingDataset, frames: Int64Array) -> Columns:
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
        decoded = self._decode(key, exact_times(times, wanted, self._meta.fps).ravel())
        places = decoded.places.reshape(wanted.shape)
        for sample, each in zip(samples, places, strict=True):
            # A window of one frame is that frame, as LeRobot gives it; of images in the rows it is a window.
            sample[key] = self._picture(decoded.frames[each[0] if len(each) == 1 else each])

    def _decode(self, key: str, seconds: npt.NDArray[np.float64]) -> DecodedFrames:
        spans = self._meta.episodes.videos[key]
        path, begin = spans.path(self._episode), float(spans.begins[self._episode])
        videos = self._files.videos.get()
        return videos.read(path, begin + seconds, self._options.tolerance_s, self._files.video_path)

    def _add_images(self, samples: Sequence[Sample], feature: Feature, wanted: Int64Array) -> None:
        frames, places = np.unique(wanted, return_inverse=True)
        read = self._read_columns(self._files.images[feature.key], frames)[feature.key]
        pictures = [image_pixels(value, feature, self._where) for value in read]
        for sample, each in zip(samples, places.reshape(wanted.shape), strict=True):
            pixels = pictures[int(each)] if each.ndim == 0 else np.stack([pictures[int(place)] for place in each])
            sample[feature.key] = self._picture(pixels)

    def _picture(self, pixels: npt.NDArray[np.uint8]) -> Any:
        return to_picture(pixels, self._options.pictures)


def exact_times(seconds: npt.NDArray[np.floating[Any]], frames: Int64Array, fps: float) -> npt.NDArray[np.float64]:
    """Give stored times in full precision: one that is `frame / fps` but for its rounding is exactly that."""
    exact = frames / fps
    rounding = np.spacing(seconds.astype(np.float32)).astype(np.float64)
    return np.where(np.abs(seconds - exact) <= np.abs(rounding), exact, seconds)


def image_pixels(value: Any, feature: Feature, where: str) -> npt.NDArray[np.uint8]:
    """Give an image of the rows as height, width and as many channels as the dataset declares."""
    pixels = np.asarray(decode_image(value, where) if isinstance(value, dict) else value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise CorruptShardError(f"{where} has something in {feature.key!r} that is no image", column=feature.key)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    is_gray = 1 in (feature.shape[:1] + feature.shape[-1:])
    return pixels[..., :1] if is_gray else pixels


def _add_values(samples: Sequence[Sample], feature: Feature, values: Any, places: Int64Array) -> None:
    for sample, place in zip(samples, places, strict=True):
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            sample[feature.key] = to_tensor(values[place])
        elif place.ndim:
            sample[feature.key] = [values[int(each)] for each in place]
        else:
            sample[feature.key] = values[int(place)]
