"""Every argument is checked when a dataset or a stream is made, with the kinds of errors that others raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter, MixSchedule, Stream, StreamingDataset
from penstock.data.stream import apply_defaults
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with MDSWriter(out=tmp_path / "data", columns={"x": "int"}) as writer:
        for number in range(40):
            writer.write({"x": number})
    return tmp_path / "data"


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sampling_method": "odd"}, ValueError, "unknown sampling_method 'odd': use one of balanced, fixed"),
    ({"sampling_granularity": 0}, ValueError, "sampling_granularity=0 is too small: use 1 or more"),
    ({"batching_method": "odd"}, ValueError, "unknown batching_method 'odd': use one of random, "),
    ({"partition_algo": "odd"}, KeyError, "unknown partition_algo 'odd': use one of orig, relaxed"),
    ({"shuffle_algo": "py9"}, KeyError, "unknown shuffle_algo 'py9': use one of "),
    ({"shuffle_algo": 3}, KeyError, "unknown shuffle_algo 3"),
    ({"order": "odd"}, ValueError, "unknown order 'odd': use one of mosaic, .*native, "),
    ({"order": "odd", "shuffle": True}, ValueError, "unknown order 'odd'"),
    ({"mosaic_version": "0.7"}, ValueError, "unknown mosaic_version '0.7'"),
    ({"epoch_end": "odd"}, ValueError, "unknown epoch_end 'odd': use pad, drop, trim or uneven"),
    ({"order": "mosaic", "epoch_end": "drop"}, ValueError, "epoch_end and schedule do not work with order='mosaic'"),
    ({"num_canonical_nodes": 0}, ValueError, "num_canonical_nodes=0 is too small: use 1 or more"),
    (
        {"num_canonical_nodes": "2"},
        ValueError,
        "num_canonical_nodes='2' is not a whole number: use an int of 1 or more",
    ),
    ({"num_canonical_nodes": 1.5}, ValueError, "num_canonical_nodes=1.5 is not a whole number"),
    ({"shuffle_seed": -1}, ValueError, "shuffle_seed=-1 is too small: use 0 or more"),
    ({"shuffle_seed": "x"}, ValueError, "shuffle_seed='x' is not a whole number"),
    ({"shuffle_block_size": -3}, ValueError, "shuffle_block_size=-3 is too small"),
    ({"download_retry": -1}, ValueError, "download_retry=-1 is too small: use 0 or more"),
    ({"download_retry": 1.5}, ValueError, "download_retry=1.5 is not a whole number"),
    (
        {"download_timeout": -1},
        ValueError,
        "download_timeout=-1 is not a valid timeout: use a number of seconds above 0",
    ),
    ({"download_timeout": 0}, ValueError, "download_timeout=0 is not a valid timeout"),
    ({"download_timeout": "1m"}, ValueError, "download_timeout='1m' is not a valid timeout"),
    ({"storage_options": {"key": "x"}}, ValueError, "takes no storage_options, but got key"),
    ({"batch_size": "32"}, ValueError, "batch_size='32' is not a whole number: use an int of 1 or more"),
    ({"batch_size": 0}, ValueError, "batch_size=0 is too small"),
    ({"batch_size": True}, ValueError, "batch_size=True is not a whole number"),
    ({"predownload": "8"}, ValueError, "predownload='8' is not a whole number"),
    ({"predownload": -1}, ValueError, "predownload=-1 is too small"),
    ({"epoch_size": 0}, ValueError, "epoch_size=0 leaves nothing to train on"),
    ({"replication": 0}, ValueError, "replication=0 is too small"),
    ({"rank": 2, "world_size": 2}, ValueError, "rank 2 of 2 does not exist"),
    ({"rank": 0}, ValueError, "rank and world_size belong together"),
    ({"rank": 0, "world_size": 4, "replication": 3}, ValueError, "replication=3 does not divide"),
    ({"image_decoder": "odd"}, ValueError, "unknown image decoder 'odd': use one of pil, array, raw"),
    ({"shuffle": "yes"}, ValueError, "shuffle='yes' is not a bool: use True or False"),
    ({"keep_zip": "no"}, ValueError, "keep_zip='no' is not a bool"),
    ({"columnar": 1}, ValueError, "columnar=1 is not a bool"),
    ({"allow_unsafe_types": "false"}, ValueError, "allow_unsafe_types='false' is not a bool"),
    ({"storage_options": "key=secret"}, ValueError, "storage_options must be a dict, got str$"),
    ({"stream_config": []}, ValueError, "stream_config must be a dict, got list"),
    ({"schedule": 5}, ValueError, "schedule=5 is not a schedule"),
    ({"schedule": {"positions": [0], "odd": 1}}, ValueError, "MixSchedule has no argument 'odd'"),
    ({"schedule": [(0, [1, 2])]}, ValueError, "the schedule has 2 proportions, but there are 1 streams"),
    ({"schedule": [(0, ["x"])]}, ValueError, "a schedule needs a list of whole numbers"),
    ({"schedule": [(1, [1])]}, ValueError, "must start with 0"),
    ({"schedule": {"positions": [0], "proportions": [[1]], "block": 0}}, ValueError, "block=0 is too small"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_argument_of_a_dataset(
    folder: Path, arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        StreamingDataset(local=folder, **arguments)
    assert isinstance(caught.value, kind)


def test_bad_arguments_are_seen_before_anything_is_fetched() -> None:
    with pytest.raises(ConfigError, match="batching_method"):
        StreamingDataset(remote="http://127.0.0.1:1/nothing", batching_method="odd")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"download_retry": -1},
        {"download_timeout": 0.0},
        {"download_retry": "2"},
        {"proportion": -1},
        {"repeat": "x"},
        {"keep_zip": "no"},
        {"storage_options": "x"},
    ],
)
def test_a_bad_argument_of_a_stream(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        Stream(local="data", **arguments)


def test_numbers_of_numpy_are_numbers(folder: Path) -> None:
    numbers: dict[str, Any] = {
        "batch_size": np.int64(4),
        "shuffle_seed": np.uint8(3),
        "download_timeout": np.float32(5),
        "shuffle": np.bool_(True),
    }
    assert len(list(StreamingDataset(local=folder, **numbers))) == 40


def test_a_loader_gives_its_batch_size_only_if_it_is_one(folder: Path) -> None:
    from penstock import StreamingDataLoader

    with pytest.raises(ConfigError, match="batch_size='32' is not a whole number"):
        StreamingDataLoader(StreamingDataset(local=folder), batch_size="32")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plain",
    [
        [(0, [3, 1]), (16, [1, 3])],
        {"positions": [0, 16], "proportions": [[3, 1], [1, 3]]},
        {"positions": np.array([0, 16]), "proportions": np.array([[3.0, 1.0], [1.0, 3.0]]), "shape": "step"},
    ],
)
def test_a_schedule_may_be_plain_values(folder: Path, plain: Any) -> None:
    schedule = MixSchedule(positions=[0, 16], proportions=[[3, 1], [1, 3]])
    assert MixSchedule.of(plain) == schedule
    assert MixSchedule.of(schedule.describe()) == schedule

    def numbers(given: Any) -> list[int]:
        streams = [Stream(local=folder), Stream(local=folder)]
        return [
            sample["x"] for sample in StreamingDataset(streams=streams, batch_size=8, epoch_size=32, schedule=given)
        ]

    assert numbers(plain) == numbers(schedule)


def test_options_of_stores_are_for_streams_of_stores() -> None:
    options = {"key": "secret"}
    streams = [Stream(remote="/data/here"), Stream(local="folder"), Stream(remote="s3://bucket/there")]
    apply_defaults(streams, {"storage_options": options})
    assert [stream.storage_options for stream in streams] == [None, None, options]
    places: list[dict[str, Any]] = [{"remote": "file:///data/here"}, {"local": "here"}]
    for place in places:
        wrong = Stream(**place, storage_options=options)
        with pytest.raises(ConfigError, match="here takes no storage_options, but got key") as caught:
            apply_defaults([wrong, streams[2]], {})
        assert "secret" not in str(caught.value)
    apply_defaults([Stream(remote="/data/here")], {"storage_options": {"s3": options}})  # for s3:// alone
