"""What all datasets of robot episodes answer: how many there are, what was counted, where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.data.dataset import StreamingDataset
from penstock.episodes.short_states import state_from_counts
from penstock.episodes.stats import count_episodes, count_videos

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.counters import Counters
    from penstock.data.stats import LoopStats
    from penstock.episodes.source import EpisodeSource
    from penstock.episodes.stats import EpisodeStats


class RobotDataset(StreamingDataset):
    """Frames of robot episodes, of one dataset or several. Whoever inherits from it sets the two attributes."""

    _sources: Sequence[EpisodeSource]  # of its streams, in their order
    _episode_counters: Counters

    @property
    def num_frames(self) -> int:
        """The number of frames that are samples, over all ranks."""
        return sum(source.spans.num_samples for source in self._sources)

    @property
    def num_episodes(self) -> int:
        """The number of chosen episodes."""
        return sum(len(source.chosen.episodes) for source in self._sources)

    def video_decoder_cache_stats(self) -> dict[str, Any]:
        """Return how often video files were found open, and how many frames were decoded and used, over all workers."""
        return count_videos(self._episode_counters, self._sources)

    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[False] = ...) -> EpisodeStats: ...
    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[True]) -> dict[str, float]: ...
    def stats(self, *, by_worker: bool = False, flat: bool = False) -> EpisodeStats | dict[str, float]:
        """Count what this rank has read, fetched, decoded and waited for, in this process and in all workers.

        Args:
            by_worker: Give the counts of each worker, too.
            flat: Give numbers by dotted name, for loggers, instead of an object with named fields.
        """
        counted = self.count(by_worker=by_worker)
        return counted.flat() if flat else counted

    def count(self, *, loop: LoopStats | None = None, by_worker: bool = False) -> EpisodeStats:
        """Return the counts of this rank, with those of a training loop."""
        return count_episodes(super().count(loop=loop, by_worker=by_worker), self._episode_counters, self._sources)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of this class or of a loader, from an epoch and a number of samples, or from LeRobot's.

        `{"epoch": …, "samples": …}` counts samples over all ranks since the beginning of the epoch.
        `{"batches_consumed": …, "batch_size": …}` counts batches of each rank in the next epoch, on as many ranks as
        there are now.
        """
        super().load_state_dict(state_from_counts(self, state))
