"""`StreamingLeRobotDataset`: frames of robot episodes from a pool of whole ones, with windows in time and video."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.data.stream import Stream
from penstock.episodes.base import RobotDataset
from penstock.episodes.counters import open_episode_counters
from penstock.episodes.opening import lanes_of_pool, open_episodes, pool_window
from penstock.episodes.settings import EpisodeSettings
from penstock.order.base import STRETCHES
from penstock.units import checks_making

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from penstock.episodes.samples import ImageTransform
    from penstock.episodes.settings import EpisodeFilter
    from penstock.order.plan import EpochEnd

_STREAM = "episodes"


@checks_making
class StreamingLeRobotDataset(RobotDataset):
    """A LeRobot dataset (v3.0 or v2.1): iterate over its frames in random order, or read any of them by number.

        dataset = StreamingLeRobotDataset("me/arm", root="/data/arm", delta_timestamps={"action": [0, 0.1, 0.2]})
        loader = StreamingDataLoader(dataset, batch_size=32, num_workers=4)

    A sample is what LeRobot's own `LeRobotDataset` gives: a dict of tensors, with windows, flags and the task. Order,
    ranks, workers, states and `stats()` are those of `StreamingDataset`.

    Args:
        repo_id: The name of the dataset; without `root`, of a dataset of the Hugging Face Hub.
        root: Where the dataset is: a folder, or a URL of any store.
        episodes: The numbers of the episodes to read; by default all.
        image_transforms: Your function, called on the picture, or window of pictures, of each camera; one with an
            argument `rng` gets a generator that draws the same after a resume, on any world.
        delta_timestamps: Windows by key: offsets in seconds, each a multiple of 1/fps.
        tolerance_s: How far the frames of a video may be from the times of their rows.
        revision: A branch, tag or commit of the Hub.
        episode_pool_size: How many episodes are mixed at a time.
        pool_bytes: Mix fewer episodes at a time if the rows of so many could take more than this, such as "2gb".
        seed: Seed of the order.
        shuffle: Mix frames of the pool; without it they come in stored order.
        return_uint8: Give pictures as bytes from 0 to 255, instead of float32 from 0 to 1.
        keys: The features that samples have, besides the numbers of frames; by default all. Others are not read.
        dtypes: `lerobot` gives all numbers as float32 and int64, as LeRobot does; `stored` in the types that they have.
        rank: The rank of this process, if the launcher does not set it; pass `world_size`, too.
        world_size: The number of ranks.
        video_decoder_cache_size: How many videos each process keeps open; by default those of a pool.
        video_decode_threads: How many threads decode ahead of your loop; by default as many as there are processors, up
            to 8, and none in the workers of a loader, which decode themselves.
        video_locality: `gop` gives an order in which frames that are decoded together leave within a short time, so
            that each is decoded once; by default all frames of a pool are in uniformly random order.
        data_files_root: Where `data/` and `videos/` are, if they are not with `meta/`.
        episode_filter: Your function, called with what is known of each episode; it says whether to read it.
        drop_n_first_frames: Leave out so many frames at the beginning of each episode. Windows may reach into them.
        drop_n_last_frames: The same at the end.
        frame_cache_bytes: How much memory each process may use for frames that were decoded with others, until a sample
            wants them.
        batch_size: Samples per batch on each rank. A `StreamingDataLoader` sets it for you.
        epoch_end: What happens if the ranks cannot share the frames equally: `pad`, `drop`, `trim` or `uneven`.
        on_error: What happens if a frame cannot be read: `raise` an error, or `skip`: another one takes its place.
        cache_limit: How much disk the cache of this node may use for rows and videos that are fetched, such as "100gb".
        storage_options: Credentials and settings of the store, under the names that fsspec uses.
        prefetch_videos: Have the videos of the next episodes fetched before they are wanted.
        video_backend: What decodes videos: `pyav`, which is the default, or `torchcodec`.
        video_decode_device: Only `cpu`.
        streaming: Has no effect, like the next three: penstock always streams, and checks what changed by itself.
        force_cache_sync: Has no effect.
        max_num_shards: Has no effect.
        video_prefetch_workers: Has no effect: the fetcher of the node decides.
        buffer_size: Has no effect, and is deprecated: set `episode_pool_size`.
        rng: Has no effect, and is deprecated: set `seed`.
    """

    def __init__(
        self,
        repo_id: str = "",
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: ImageTransform | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        *,
        episode_pool_size: int = 64,
        pool_bytes: int | float | str | None = None,
        seed: int = 42,
        shuffle: bool = True,
        return_uint8: bool = False,
        keys: Sequence[str] | None = None,
        dtypes: Literal["lerobot", "stored"] = "lerobot",
        rank: int | None = None,
        world_size: int | None = None,
        video_decoder_cache_size: int | None = None,
        video_decode_threads: int | None = None,
        video_locality: Literal["gop"] | None = None,
        data_files_root: str | os.PathLike[str] | None = None,
        episode_filter: EpisodeFilter | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        frame_cache_bytes: int | float | str = "256mb",
        batch_size: int | None = None,
        epoch_end: EpochEnd = "pad",
        on_error: Literal["raise", "skip"] = "raise",
        cache_limit: int | float | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        prefetch_videos: bool = True,
        video_backend: Literal["pyav", "torchcodec"] | None = None,
        video_decode_device: str = "cpu",
        streaming: bool = True,
        force_cache_sync: bool = False,
        max_num_shards: int | None = None,
        video_prefetch_workers: int | None = None,
        buffer_size: int | None = None,
        rng: Any = None,
    ) -> None:
        settings = EpisodeSettings.of(locals())
        self.repo_id, self.root, self.revision, self.episodes = repo_id, settings.place, revision, episodes
        source = open_episodes(settings, counters := open_episode_counters())
        self._sources, self._episode_counters, self.meta = [source], counters, source.meta
        stream = Stream(source=source, name=_STREAM, sample_transform=source.drawing_transform())
        stream.window = pool_window(source, settings)
        super().__init__(
            streams=[stream],
            order="episode_pool" if source.stretches is None else STRETCHES,
            shuffle=shuffle,
            shuffle_seed=seed,
            num_canonical_nodes=1 if source.stretches is None else lanes_of_pool(episode_pool_size),
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            epoch_end=epoch_end,
            on_error=on_error,
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.num_frames:,} frames in {self.num_episodes:,} episodes,"
            f" {self.meta.url!r}>"
        )

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.meta.fps

    @property
    def features(self) -> Mapping[str, Any]:
        """What each frame has: dtype, shape and names by key."""
        return self.meta.features
