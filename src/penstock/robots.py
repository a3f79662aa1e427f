"""Robot episodes: LeRobot datasets, read, mixed and written. See `docs/episodes.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.episodes.dataset import StreamingLeRobotDataset as StreamingLeRobotDataset
    from penstock.episodes.mix import StreamingLeRobotMix as StreamingLeRobotMix
    from penstock.episodes.settings import LeRobotStream as LeRobotStream
    from penstock.episodes.writing.convert import convert_to_lerobot as convert_to_lerobot
    from penstock.episodes.writing.writer import LeRobotWriter as LeRobotWriter
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
