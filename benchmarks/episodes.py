"""How fast frames of robot episodes come out of videos, beside loops of random frames and of frames in order.

python benchmarks/episodes.py [speed] [--gops 2,30,250] [--json FILE] [--csv FILE] [--plot FILE]
python benchmarks/episodes.py bytes [--gops 2,30,250] [--plot FILE]
python benchmarks/episodes.py single|sarm [--root PLACE] [--repo-id NAME] [--num-workers N] [--batches N] …
python benchmarks/episodes.py memory [--gops 30] [--json FILE]
python benchmarks/episodes.py resume
python benchmarks/episodes.py quality [--plot FILE]

`speed` and `bytes` (the gain by the memory for frames) make their videos once, in `--folder`. `single` and `sarm` read
any dataset: one frame a sample, or windows of 8 frames a second apart, of the action and of all videos.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from av.video.reformatter import VideoReformatter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.episode_data import Size, make_dataset
from benchmarks.episode_memory import MOST_MB, beyond_decoders
from benchmarks.episode_quality import plot_quality, qualities
from benchmarks.line_plot import Line, draw

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from penstock.episodes.video.pyav import PyavFile
from penstock.order.pool import EpisodePool, KeyframeOrder

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_EPISODES, NUM_FRAMES = 64, 300
NEEDED = {  # times random frames: the whole pool, a pool of 16 episodes, and the order that fits the video
    2: {"pool 64": 1.0, "gop": 0.0},
    30: {"pool 64": 2.5, "pool 16": 5.0, "gop": 8.0},
    250: {"pool 64": 6.0, "pool 16": 12.0, "gop": 25.0},
}
OF_IN_ORDER = 0.8
FRAME_BYTES = 640 * 480 * 3 // 2
TURNS = 40
FEW_TURNS = 10  # where many points are measured
COLORS: dict[str | None, dict[int, str]] = {
    None: {2: "#4c78a8", 30: "#f58518", 250: "#54a24b"},
    "gop": {2: "#9ecae9", 30: "#ffbf79", 250: "#88d27a"},
}


class Clock:
    """Adds up frames and stretches of time, by the clock and by what the processors of this process did."""

    def __init__(self) -> None:
        self._count, self._wall, self._cpu = 0, 0.0, 0.0

    def add(self, read: Callable[[], int]) -> None:
        """Have some frames read, and count them and the time that this takes."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._count += read()
        self._wall, self._cpu = self._wall + time.perf_counter() - wall, self._cpu + time.process_time() - cpu

    @property
    def rates(self) -> dict[str, float]:
        """Return frames per second, and per second of a processor."""
        return {"per_s": self._count / self._wall, "per_cpu_s": self._count / self._cpu}


# --- Speed ----------------------------------------------------------------------------------------------------


class Loops:
    """Loops over open files that decode frame by frame, as a map-style dataset does at best, into the same tensors."""

    def __init__(self, root: Path) -> None:
        self._files = [PyavFile(str(path)) for path in sorted(root.rglob("*.mp4"))]
        self._rgb, self._rng, self._next = VideoReformatter(), np.random.default_rng(0), 0

    def random(self, count: int) -> int:
        """Decode frames as a shuffled sampler chooses them."""
        for _ in range(count):
            file = self._files[int(self._rng.integers(len(self._files)))]
            self._decode(file, int(self._rng.integers(len(file.index))))
        return count

    def in_order(self, count: int) -> int:
        """Decode frames of one file, one after the other."""
        for _ in range(count):
            self._decode(self._files[0], self._next)
            self._next = (self._next + 1) % len(self._files[0].index)
        return count

    def _decode(self, file: PyavFile, number: int) -> None:
        for _, make in file.decode(number, number):
            last = make()
        pixels = self._rgb.reformat(last, format="rgb24", threads=1).to_ndarray()
        torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, -1, 0)))


def beside_loops(root: Path, gop: int, count: int, turns: int = TURNS, **arguments: Any) -> dict[str, dict[str, float]]:
    """Read samples from the beginning of an epoch, taking turns with both loops: what slows one, slows all."""
    clocks, loops = {name: Clock() for name in ("random", "in order", "stream")}, Loops(root)
    num_random = {2: 40, 30: 12, 250: 3}.get(gop, 12)
    with StreamingLeRobotDataset(root=root, return_uint8=True, batch_size=32, **arguments) as dataset:
        next(iter(dataset))  # opens what is opened once
        dataset.set_epoch(1)
        before = dataset.video_decoder_cache_stats()
        samples = iter(dataset)
        for _ in range(turns):
            clocks["random"].add(lambda: loops.random(num_random))
            clocks["in order"].add(lambda: loops.in_order(60))
            clocks["stream"].add(lambda: sum(1 for _ in islice(samples, count // turns)))
        after = dataset.video_decoder_cache_stats()
    found = {name: clock.rates for name, clock in clocks.items()}
    stream = found["stream"]
    stream["decoded_per_frame"] = (after["frames_decoded"] - before["frames_decoded"]) / (count // turns * turns)
    stream["hit_rate"] = after["hit_rate"]
    for each in found.values():
        each["times_random"] = each["per_cpu_s"] / found["random"]["per_cpu_s"]
        each["of_in_order"] = each["per_cpu_s"] / found["in order"]["per_cpu_s"]
    return found


def speed(folder: Path, gops: list[int], cache: str, share: float) -> dict[str, Any]:
    """Set the orders beside both loops, on the same files, with one thread that decodes."""
    results: dict[str, Any] = {}
    total = NUM_EPISODES * NUM_FRAMES
    for gop in gops:
        root = make_dataset(folder, Size(num_episodes=NUM_EPISODES, num_frames=NUM_FRAMES, gop=gop))
        settings: dict[str, Any] = {"frame_cache_bytes": cache, "video_decode_threads": 0}
        found: dict[str, dict[str, float]] = {}
        for name, count, arguments in (
            ("pool 64", int(total * share), {"episode_pool_size": 64}),
            ("pool 16", int(total * share), {"episode_pool_size": 16}),
            # To the end: frames decoded ahead at any place before it were not asked for yet.
            ("gop", total, {"video_locality": "gop"}),
        ):
            beside = beside_loops(root, gop, count, **settings, **arguments)
            found[name] = beside.pop("stream")
            found |= {f"{loop} beside {name}": rates for loop, rates in beside.items()}
        for name, needed in NEEDED.get(gop, {}).items():
            found[name]["needed"] = needed
        results[f"gop {gop}"] = found
        print_speed(gop, found)
    return results


def print_speed(gop: int, found: dict[str, dict[str, float]]) -> None:
    """Show the results of one kind of files."""
    for name, each in found.items():
        needed = f"  needs {each['needed']}×" if each.get("needed") else ""
        needed += f", {OF_IN_ORDER} of in order" if name == "gop" else ""
        print(
            f"GOP {gop:3}  {name:23} {each['per_cpu_s']:7.0f} frames per processor second, {each['per_s']:7.0f} per"
            f" second, {each['times_random']:6.2f}× random, {each['of_in_order']:5.2f} of in order, decoded per frame"
            f" {each.get('decoded_per_frame', float('nan')):5.2f}{needed}",
            flush=True,
        )


def gain_by_bytes(folder: Path, gops: list[int]) -> list[Line]:
    """Measure how the gain over random frames grows with the memory that frames may take, in both orders."""
    lines = []
    for gop in gops:
        root = make_dataset(folder, Size(num_episodes=NUM_EPISODES, num_frames=NUM_FRAMES, gop=gop))
        for locality in (None, "gop"):
            points = []
            for megabytes in (16, 64, 256, 1024):
                num_bytes = megabytes << 20
                # As many samples as frames are kept for, so that the beginning weighs the same in all.
                count = min(NUM_EPISODES * NUM_FRAMES // 4, max(80, num_bytes // FRAME_BYTES))
                settings = {"frame_cache_bytes": num_bytes, "video_locality": locality, "video_decode_threads": 0}
                rates = beside_loops(root, gop, count, turns=FEW_TURNS, **settings)["stream"]
                print(f"GOP {gop}, {locality}, {megabytes} MB: {rates}", file=sys.stderr, flush=True)
                points.append((float(megabytes), rates["times_random"]))
            title = f"a keyframe every {gop} frames" + (', video_locality="gop"' if locality else "")
            lines.append(Line(title, COLORS[locality].get(gop, "#888"), points))
    return lines


def memory(folder: Path, gops: list[int]) -> dict[str, Any]:
    """Measure the private memory of one process: any pool with little memory for frames, and the order of the video."""
    results = {}
    for gop in gops:
        settings: dict[str, dict[str, Any]] = {
            f"pool {pool}, 16 MB": {"episode_pool_size": pool, "frame_cache_bytes": "16mb"} for pool in (16, 64, 256)
        }
        settings["pool 64, 1 GB"] = {"frame_cache_bytes": "1gb"}
        settings["gop, 256 MB"] = {"video_locality": "gop"}
        settings["gop, 1 GB"] = {"video_locality": "gop", "frame_cache_bytes": "1gb"}
        for name, arguments in settings.items():
            num_episodes = 256 if arguments.get("episode_pool_size") == 256 else NUM_EPISODES
            root = make_dataset(folder, Size(num_episodes=num_episodes, num_frames=NUM_FRAMES, gop=gop))
            found = results[f"gop {gop}, {name}"] = beyond_decoders(root, 600, arguments)
            print(
                f"GOP {gop:3}  {name:15} {found['private_mb']:5.0f} MB private, {found['kept_mb']:5.0f} of them frames,"
                f" {found['decoders_mb']:4.0f} in {found['num_open']} decoders, {found['beyond_mb']:5.1f} beyond"
                f" (at most {MOST_MB})",
                flush=True,
            )
    return results


def resume() -> dict[str, float]:
    """Measure how long both orders take to say what comes at 90 % of an epoch of a million episodes."""
    lengths = np.full(10**6, NUM_FRAMES)
    arguments: dict[str, Any] = {"seed": 1, "stream": "one", "window": 64}
    results = {}
    for name, make in (
        ("pool 64", lambda: EpisodePool(lengths, num_lanes=1, **arguments)),
        ("gop", lambda: KeyframeOrder(lengths, num_lanes=8, stretches=np.arange(0, lengths.sum(), 30), **arguments)),
    ):
        begin = time.perf_counter()
        order = make()
        first = order.num_samples * 9 // 10
        order.ids(3, 0, range(first, first + 2048))
        results[name] = time.perf_counter() - begin
        print(f"{name:9} {results[name]:.3f} s to the ids at 90 % of 10⁶ episodes (at most 1)")
    return results


# --- Reading any dataset ----------------------------------------------------------------------------------------


def consume(args: argparse.Namespace) -> dict[str, Any]:
    """Read batches without training, and say how fast they come."""
    root = args.root
    if root is None and not args.repo_id:
        root = make_dataset(args.folder, Size(gop=30))
    place = {"repo_id": args.repo_id, "root": root}
    with StreamingLeRobotDataset(**place) as dataset:
        keys = ["action", *dataset.meta.video_keys]
    deltas = {key: [float(second) for second in range(8)] for key in keys} if args.mode == "sarm" else None
    dataset = StreamingLeRobotDataset(
        **place,
        delta_timestamps=deltas,
        tolerance_s=1e-3,
        return_uint8=True,
        episode_pool_size=args.episode_pool_size,
        frame_cache_bytes=args.frame_cache_bytes,
        video_locality=args.video_locality,
        video_decode_threads=args.video_decode_threads,
        video_backend=args.video_backend,
    )
    loader = StreamingDataLoader(dataset, batch_size=args.batch_size, num_workers=args.num_workers)
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - begin
    for _ in islice(batches, args.warmup_batches):
        pass
    gaps, num_samples, begin = [], 0, time.perf_counter()
    last = begin
    for batch in islice(batches, args.batches):
        now = time.perf_counter()
        gaps.append((now - last) / len(batch["index"]))
        num_samples, last = num_samples + len(batch["index"]), now
    seconds = last - begin
    if not num_samples:
        raise SystemExit("no samples were left to measure: use fewer warm-up batches")
    frames = num_samples * len(dataset.meta.video_keys) * (8 if deltas else 1)
    percentiles = {f"p{p}_sample_latency_ms": float(np.percentile(gaps, p)) * 1e3 for p in (50, 95, 99)}
    stats = dataset.video_decoder_cache_stats()
    dataset.close()
    return {
        "mode": args.mode,
        "source": args.source,
        "frames_per_s_node": frames / seconds * int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "samples_per_s": num_samples / seconds,
        "first_batch_latency_s": first,
        **percentiles,
        "wallclock_s": seconds,
        "video_decoder_cache": stats,
        "batch_size": args.batch_size,
        "num_workers": args.num_workers,
        "episode_pool_size": args.episode_pool_size,
        "video_locality": args.video_locality or "uniform",
        "video_backend": args.video_backend or "pyav",
    }


def write_csv(path: Path, result: dict[str, Any]) -> None:
    """Write one line of figures, with their names above."""
    flat = {name: value for name, value in result.items() if not isinstance(value, dict)}
    for name, value in result.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{part}": inside for part, inside in value.items() if not isinstance(inside, dict)}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat))
        writer.writeheader()
        writer.writerow(flat)


def flat_speed(results: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of all files and orders as one line."""
    return {
        f"{files}.{name}": values
        for files, found in results.items()
        if isinstance(found, dict)
        for name, values in found.items()
    }


def main() -> None:
    """Run one mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "mode", nargs="?", default="speed", choices=["speed", "bytes", "memory", "resume", "quality", "single", "sarm"]
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "penstock-episodes"))
    parser.add_argument("--gops", type=lambda text: [int(part) for part in text.split(",")], default=[2, 30, 250])
    parser.add_argument("--share", type=float, default=0.25, help="how much of an epoch in random order is read")
    parser.add_argument("--frame-cache-bytes", default="1gb")
    parser.add_argument("--root")
    parser.add_argument("--repo-id", default="")
    parser.add_argument("--source", default="local", help="a label, such as hub, bucket or warmed_bucket")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--warmup-batches", type=int, default=5)
    parser.add_argument("--episode-pool-size", type=int, default=64)
    parser.add_argument("--video-locality", choices=["gop"])
    parser.add_argument("--video-decode-threads", type=int)
    parser.add_argument("--video-backend", choices=["pyav", "torchcodec"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.mode == "quality":
        result: dict[str, Any] = qualities()
        if args.plot:
            args.plot.write_text(plot_quality())
    elif args.mode == "resume":
        result = resume()
    elif args.mode == "memory":
        result = memory(args.folder, args.gops)
    elif args.mode == "bytes":
        lines = gain_by_bytes(args.folder, args.gops)
        result = {line.title: dict(line.points) for line in lines}
        if args.plot:
            args.plot.write_text(draw(lines, "memory for frames, in MB", "times as fast as random frames"))
    elif args.mode == "speed":
        result = speed(args.folder, args.gops, args.frame_cache_bytes, args.share)
        if args.plot:
            names = {"pool 64": "#4c78a8", "pool 16": "#f58518", "gop": "#54a24b", "in order beside gop": "#888"}
            lines = [
                Line(name, color, [(gop, result[f"gop {gop}"][name]["times_random"]) for gop in args.gops])
                for name, color in names.items()
            ]
            args.plot.write_text(draw(lines, "frames from one keyframe to the next", "times as fast as random frames"))
    else:
        result = consume(args)
        if args.plot:
            points = [(float(p), result[f"p{p}_sample_latency_ms"]) for p in (50, 95, 99)]
            line = Line(f"{args.mode}, {result['video_locality']}", "#4c78a8", [(x, max(y, 1e-3)) for x, y in points])
            args.plot.write_text(draw([line], "percentile", "ms for a sample"))
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.csv:
        write_csv(args.csv, flat_speed(result) if args.mode == "speed" else result)


if __name__ == "__main__":
    main()
