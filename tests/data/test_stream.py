"""Every argument of a dataset has one home behind its door."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import fields

from penstock import StreamingDataset
from penstock.data.ranks import SeatSettings
from penstock.data.stream import STREAM_DEFAULTS, DatasetSettings
from penstock.formats.base import ReadOptions
from penstock.order.make_plan import RunSettings
from penstock.reading.pass_reader import PassOptions

# What is no setting: which streams there are, what users make of samples, and what is said to a plan or a pass alone.
OTHERS = {
    "streams",
    "remote",
    "local",
    "stream_name",
    "stream_config",
    "sample_transform",
    "batch_transform",
    "seed_globals",
    "batch_size",
    "columnar",
    "allow_mix_change",
}


def test_each_argument_is_in_one_place() -> None:
    homes = Counter(
        field.name for kind in (RunSettings, PassOptions, ReadOptions, SeatSettings) for field in fields(kind)
    )
    homes.update(STREAM_DEFAULTS)
    homes.update(OTHERS)
    del homes["unpickle"]  # for readers of known datasets, which set it themselves
    arguments = set(inspect.signature(StreamingDataset).parameters)
    assert homes == Counter(arguments)


def test_the_defaults_of_the_door_are_those_behind_it() -> None:
    door = {name: parameter.default for name, parameter in inspect.signature(StreamingDataset).parameters.items()}
    settings = DatasetSettings.of(door)
    assert settings.order == RunSettings()
    assert settings.reading == PassOptions()
    assert settings.decoding == ReadOptions()
    assert settings.seat == SeatSettings()
