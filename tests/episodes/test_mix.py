"""Several robot datasets in one: exact shares, the same keys, windows in seconds, one state for any world."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from penstock import LeRobotStream, LeRobotWriter, StreamingDataLoader, StreamingLeRobotDataset, StreamingLeRobotMix
from penstock.errors import ConfigError, ResumeError
from tests.episodes.build import Layout, write_dataset
from tests.episodes.clips import SIZE, picture
from tests.episodes.test_meta import numbers_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.reading.sample_rng import SampleRng

TOP, WRIST = "observation.images.top", "observation.images.wrist"
CAMERA: dict[str, Any] = {"dtype": "video", "shape": [SIZE, SIZE, 3]}
LENGTHS = {"arm": [9, 6, 12, 5, 8, 10], "hand": [7, 13, 4, 6]}
ACTION: dict[str, Any] = {"dtype": "float32", "shape": [2]}


@pytest.fixture(scope="module")
def robots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write an arm with two cameras at 10 frames a second, and a hand with one, called otherwise, at 20."""
    folder = tmp_path_factory.mktemp("robots")
    first = {"arm": 0, "hand": 1000}
    features = {
        "arm": {TOP: CAMERA, WRIST: CAMERA, "action": ACTION, "gripper": {"dtype": "int64", "shape": [1]}},
        "hand": {"cam": {**CAMERA, "dtype": "image"}, "joints": ACTION, "note": {"dtype": "string", "shape": [1]}},
    }
    for robot, lengths in LENGTHS.items():
        number = first[robot]
        with LeRobotWriter(
            folder / robot, fps=10 if robot == "arm" else 20, features=features[robot], data_files_size_in_mb=0.01
        ) as writer:
            for length in lengths:
                for _ in range(length):
                    pixels, action = picture(number), np.full(2, number, np.float32)
                    if robot == "arm":
                        frame = {TOP: pixels, WRIST: pixels[::-1].copy(), "action": action, "gripper": number}
                    else:
                        frame = {"cam": pixels, "joints": action, "note": f"hand {number}"}
                    writer.add_frame(frame, f"move the {robot}")
                    number += 1
                writer.save_episode()
    return {robot: folder / robot for robot in LENGTHS}


def streams(robots: dict[str, Path], **weights: Any) -> list[LeRobotStream]:
    keys = {"cam": TOP, "joints": "action"}
    return [
        LeRobotStream(root=robots["arm"], name="arm", proportion=weights.get("arm")),
        LeRobotStream(root=robots["hand"], name="hand", keys=keys, proportion=weights.get("hand")),
    ]


def open_mix(robots: dict[str, Path], **arguments: Any) -> StreamingLeRobotMix:
    given = arguments.pop("streams", None) or streams(robots, **arguments.pop("weights", {}))
    return StreamingLeRobotMix(given, **{"episode_pool_size": 3, "batch_size": 4, **arguments})


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["index"]) + 1000 * int(sample["dataset_index"])


def numbers(samples: Iterable[Any]) -> list[int]:
    return [number_of(sample) for sample in samples]


def batched(loader: Iterable[Any]) -> list[int]:
    return [
        int(index) + 1000 * int(dataset)
        for batch in loader
        for index, dataset in zip(batch["index"], batch["dataset_index"], strict=True)
    ]


ALL = [*range(50), *range(1000, 1030)]


def test_all_frames_of_all_robots_come_once(robots: dict[str, Path]) -> None:
    with open_mix(robots) as mix:
        assert (mix.num_frames, mix.num_episodes, len(mix)) == (80, 10, 80)
        epochs = [numbers(mix) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == ALL
    assert epochs[0] != epochs[1]
    with open_mix(robots, shuffle=False) as mix:
        in_order = numbers(mix)
    assert [number for number in in_order if number < 1000] == list(range(50))


def test_samples_are_alike_and_what_is_missing_is_marked(robots: dict[str, Path]) -> None:
    deltas = {TOP: [-0.1, 0.0], WRIST: [0.0, 0.1, 0.2], "action": [0.0, 0.1], "note": [0.0, 0.1]}
    with open_mix(robots, delta_timestamps=deltas) as mix:
        keys = {tuple(sample) for sample in mix}
        assert len(keys) == 1
        arm, hand = mix[3], mix[50 + 8]  # frame 1 of the second episode
        assert set(mix.features) == {TOP, WRIST, "action", "gripper", "note", *arm.keys() & mix.features.keys()}
    assert numbers_in(arm[TOP]) == [2, 3]
    assert arm["action"][:, 0].tolist() == [3, 4]
    assert (arm["note"], arm["note_is_missing"].item()) == (["", ""], True)
    assert arm["note_is_pad"].tolist() == [True, True]
    assert not arm[f"{WRIST}_is_missing"].item()
    # At 20 frames a second, a tenth of a second is two frames; two before frame 1 there is none.
    assert numbers_in(hand[TOP]) == [1007, 1008]
    assert hand[f"{TOP}_is_pad"].tolist() == [True, False]
    assert hand["action"][:, 0].tolist() == [1008, 1010]
    assert hand["note"] == ["hand 1008", "hand 1010"]
    assert hand[WRIST].shape == arm[WRIST].shape == (3, 3, SIZE, SIZE)
    assert hand[WRIST].abs().max() == 0
    assert hand[f"{WRIST}_is_pad"].tolist() == [True] * 3
    assert hand[f"{WRIST}_is_missing"].item()
    assert (hand["gripper"].dtype, hand["gripper"].item()) == (torch.int64, 0)
    assert f"{TOP}_is_missing" not in hand
    assert (arm["task"], hand["task"]) == ("move the arm", "move the hand")
    assert (arm["dataset_index"].item(), hand["dataset_index"].item()) == (0, 1)


def test_a_window_of_one_picture_is_a_picture_in_every_dataset(robots: dict[str, Path]) -> None:
    with open_mix(robots, delta_timestamps={TOP: [0.1]}) as mix:
        assert mix[0][TOP].shape == mix[60][TOP].shape == (3, SIZE, SIZE)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_shares_are_exact_over_an_epoch(robots: dict[str, Path], share: float) -> None:
    weights = {"arm": share, "hand": 1 - share}
    with open_mix(robots, weights=weights, epoch_size=200) as mix:
        seen = numbers(mix)
    robots_seen = [number >= 1000 for number in seen]
    assert len(seen) == 200
    assert robots_seen.count(False) == round(200 * share)
    counts = Counter(number for number in seen if number < 1000)
    assert max(counts.values()) - min(counts.get(number, 0) for number in range(50)) <= 1


def test_shares_are_exact_over_4096_samples_and_those_of_a_batch_like_drawn(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_dataset(tmp_path / name, Layout(has_video=False))
    given = [
        LeRobotStream(root=tmp_path / "one", proportion=0.3),
        LeRobotStream(root=tmp_path / "other", proportion=0.7),
    ]
    with StreamingLeRobotMix(given, keys=["action"], epoch_size=2 * 4096) as mix:
        is_first = np.array([int(sample["dataset_index"]) == 0 for sample in mix])
    assert np.abs(is_first.reshape(-1, 4096).sum(axis=1) - 0.3 * 4096).max() <= 1
    of_batches = is_first.reshape(-1, 64).sum(axis=1)
    assert 0.7 < of_batches.std() / np.sqrt(64 * 0.3 * 0.7) < 1.3


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_one_order_and_one_state(robots: dict[str, Path], world_size: int) -> None:
    weights = {"arm": 0.4, "hand": 0.6}
    with open_mix(robots, weights=weights, epoch_size=120) as mix:
        whole = numbers(mix)
    with open_mix(robots, weights=weights, epoch_size=120) as mix:
        samples = iter(mix)
        assert numbers(next(samples) for _ in range(36)) == whole[:36]
        state = json.loads(json.dumps(mix.state_dict()))
    for given in (state, {"epoch": 0, "samples": 36}):
        rest = []
        for rank in range(world_size):
            with open_mix(robots, weights=weights, epoch_size=120, rank=rank, world_size=world_size) as mix:
                mix.load_state_dict(given)
                rest.append(numbers(mix))
        assert [number for each in zip(*rest, strict=True) for number in each] == whole[36:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_goes_on_where_its_state_left_it(robots: dict[str, Path], num_workers: int) -> None:
    with open_mix(robots) as mix:
        whole = [batched(StreamingDataLoader(mix, batch_size=4)) for _ in range(2)]
    with open_mix(robots) as mix:
        loader = StreamingDataLoader(mix, batch_size=4, num_workers=num_workers)
        batches = iter(loader)
        begun = batched([next(batches) for _ in range(7)])
        state = loader.state_dict()
        del batches
    assert begun == whole[0][:28]
    with open_mix(robots) as mix:
        loader = StreamingDataLoader(mix, batch_size=4, num_workers=num_workers)
        loader.load_state_dict(state)
        assert [batched(loader), batched(loader)] == [whole[0][28:], whole[1]]


def test_a_stock_loader_with_workers_reads_a_mix(robots: dict[str, Path]) -> None:
    with open_mix(robots, return_uint8=True) as mix:
        loader = DataLoader(mix, batch_size=4, num_workers=2, timeout=60)
        assert sorted(batched(loader)) == ALL
        stats = mix.stats()
        assert stats.samples == 80
        assert [stream.samples for stream in stats.streams] == [50, 30]
        assert stats.video["frames_used"] >= 100  # two cameras of the arm
        assert stats.latency.p50_ms is not None


def test_a_mix_pickles_with_its_transforms(robots: dict[str, Path]) -> None:
    with open_mix(robots, image_transforms=half) as mix:
        copy = pickle.loads(pickle.dumps(mix))
        assert copy[0][TOP].shape == copy[60][WRIST].shape == (3, SIZE // 2, SIZE // 2)
        assert numbers([copy[7]]) == [7]


def half(picture: torch.Tensor) -> torch.Tensor:
    return picture[..., ::2, ::2]


def noisy(picture: torch.Tensor, rng: SampleRng) -> torch.Tensor:
    return picture[..., ::2, ::2] + float(rng.random())


def noisy_action(sample: dict[str, Any], rng: SampleRng) -> dict[str, Any]:
    return {**sample, "action": sample["action"] + float(rng.random())}


def test_transforms_that_draw_do_so_alike_on_any_world(robots: dict[str, Path]) -> None:
    def frames(**seat: Any) -> dict[tuple[int, int], bytes]:
        arm, hand = streams(robots)
        hand.sample_transform = noisy_action
        with StreamingLeRobotMix([arm, hand], image_transforms=noisy, episode_pool_size=3, **seat) as mix:
            return {
                (int(frame["dataset_index"]), int(frame["index"])): b"".join(
                    frame[key].numpy().tobytes() for key in (TOP, WRIST, "action")
                )
                for frame in mix
            }

    alone = frames()
    assert len(alone) == 80
    assert alone == frames(rank=0, world_size=2) | frames(rank=1, world_size=2)


def test_each_robot_may_have_transforms_of_its_own(robots: dict[str, Path]) -> None:
    arm, hand = streams(robots)
    with StreamingLeRobotMix([arm, hand], keys=[TOP, "action"]) as mix:
        assert set(mix[0]) == {
            *(
                TOP,
                "action",
                "timestamp",
                "frame_index",
                "episode_index",
                "index",
                "task_index",
                "task",
                "dataset_index",
            )
        }
    hand = LeRobotStream(
        root=robots["hand"], keys={"cam": None}, sample_transform=lambda sample: {"only": sample["note"]}
    )
    with StreamingLeRobotMix([hand]) as mix:
        assert mix[0] == {"only": "hand 1000"}


def test_offsets_that_are_no_frames_are_refused_or_rounded(robots: dict[str, Path]) -> None:
    deltas = {"action": [0.0, 0.05]}  # a frame at 20 a second, half of one at 10
    with pytest.raises(ConfigError, match=r"0\.05, which is not a multiple of 1/10"):
        open_mix(robots, delta_timestamps=deltas)
    with open_mix(robots, delta_timestamps={"action": [0.0, 0.06]}, round_to_frames=True) as mix:
        assert mix[0]["action"][:, 0].tolist() == [0, 1]
        assert mix[50]["action"][:, 0].tolist() == [1000, 1001]


def test_robots_that_do_not_fit_are_named(robots: dict[str, Path]) -> None:
    arm = LeRobotStream(root=robots["arm"])
    with pytest.raises(ConfigError, match=r"'note' is a float32 of shape \[2\] in .*arm, but a string"):
        StreamingLeRobotMix([LeRobotStream(root=robots["arm"], keys={"action": "note"}), streams(robots)[1]])
    with pytest.raises(ConfigError, match="'speed', which .*hand does not have"):
        StreamingLeRobotMix([arm, LeRobotStream(root=robots["hand"], keys={"speed": "action"})])
    with pytest.raises(ConfigError, match="two features of .*hand are called 'action'"):
        StreamingLeRobotMix([arm, LeRobotStream(root=robots["hand"], keys={"joints": "action", "cam": "action"})])
    with pytest.raises(ConfigError, match="no dataset of the mix has 'depth'"):
        StreamingLeRobotMix([arm], delta_timestamps={"depth": [0.0]})
    with pytest.raises(ConfigError, match="at least one"):
        StreamingLeRobotMix([])
    with pytest.raises(ConfigError, match="needs a root"):
        LeRobotStream()


def test_a_state_of_another_mix_is_refused_unless_allowed(robots: dict[str, Path]) -> None:
    with open_mix(robots, weights={"arm": 1, "hand": 1}, epoch_size=80) as mix:
        samples = iter(mix)
        taken = numbers(next(samples) for _ in range(20))
        state = mix.state_dict()
    other = {"weights": {"arm": 3, "hand": 1}, "epoch_size": 80}
    with open_mix(robots, **other) as mix:
        mix.load_state_dict(state)
        with pytest.raises(ResumeError):
            next(iter(mix))
    with open_mix(robots, **other, allow_mix_change=True) as mix:
        mix.load_state_dict(state)
        with pytest.warns(UserWarning, match="the mix changes"):
            rest = numbers(mix)
    assert len(taken + rest) == 80
    assert not set(taken) & set(rest)


def test_a_mix_may_have_the_order_that_fits_the_video(robots: dict[str, Path]) -> None:
    def two_arms(**arguments: Any) -> StreamingLeRobotMix:
        arms = [LeRobotStream(root=robots["arm"], name=name, proportion=1) for name in "ab"]
        return StreamingLeRobotMix(
            arms,
            video_locality="gop",
            video_decode_threads=1,
            episode_pool_size=3,
            batch_size=4,
            epoch_size=100,
            **arguments,
        )

    with two_arms() as mix:
        whole = numbers(mix)
        assert numbers_in(mix[7][TOP]) == [7]
        assert mix.video_decoder_cache_stats()["frames_decoded"] <= 2.6 * 100  # two cameras
    assert sorted(whole) == [*range(50), *range(1000, 1050)]
    rest = []
    for rank in range(2):
        with two_arms(rank=rank, world_size=2) as mix:
            mix.load_state_dict({"epoch": 0, "samples": 32})
            rest.append(numbers(mix))
    joined = [number for pair in zip(*rest, strict=True) for number in pair]
    assert joined[: 100 - 32] == whole[32:]
    with pytest.raises(ConfigError, match=r"since .*hand has no video"):
        open_mix(robots, video_locality="gop")
    with pytest.raises(ConfigError, match="unknown video_locality 'best'"):
        open_mix(robots, video_locality="best")
    with pytest.raises(ConfigError, match="video_decode_threads"):
        open_mix(robots, video_decode_threads=-1)


def test_a_mix_of_one_gives_what_the_dataset_gives(robots: dict[str, Path]) -> None:
    with StreamingLeRobotDataset(root=robots["arm"]) as dataset, open_mix(robots, streams=streams(robots)[:1]) as mix:
        for number in (0, 17, 49):
            alone, mixed = dataset[number], mix[number]
            assert set(mixed) == {*alone, "dataset_index"}
            for key, value in alone.items():
                assert torch.equal(mixed[key], value) if isinstance(value, torch.Tensor) else mixed[key] == value
