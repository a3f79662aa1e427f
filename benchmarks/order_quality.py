"""How good is the shuffle, and what does it cost? Native beside MosaicML's algorithms, at equal settings.

Run: python benchmarks/order_quality.py [--lengths equal|unequal] [--table] [--svg FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# The script has to be able to import `benchmarks` by that name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.quality import measure_shuffling, measure_traffic

from penstock.order.conveyor import Conveyor
from penstock.order.id_spans import IdSpans
from penstock.order.lanes import lane_length, lane_start
from penstock.order.mosaic.shuffle import ShuffleRule, shuffle_algorithm

if TYPE_CHECKING:
    from penstock.types import Int64Array

NUM_SHARDS, MEAN_LENGTH, WINDOW, PREFETCH_STEPS = 2560, 128, 16, 4
ALGORITHMS = ("native", "naive", "py1s", "py1br", "py1e")
COLUMNS = (
    ("displacement", "displacement", ".3f"),
    ("neighbour_distance", "neighbour distance", ".4f"),
    ("neighbours_together", "neighbours together", ".5f"),
    ("batch_distance", "batch distance", ".3f"),
    ("shards_open", "shards open", ".1f"),
    ("peak_shards_held", "peak held", "d"),
    ("peak_new_shards", "peak new", "d"),
    ("first_shards", "first step", "d"),
    ("fetched", "fetched / needed", ".3f"),
)


def make_lengths(kind: str) -> Int64Array:
    if kind == "equal":
        return np.full(NUM_SHARDS, MEAN_LENGTH, dtype=np.int64)
    drawn = np.random.default_rng(1).lognormal(0.0, 1.0, NUM_SHARDS)
    lengths: Int64Array = np.maximum(1, drawn / drawn.mean() * MEAN_LENGTH).astype(np.int64)
    return lengths


def list_epoch(algorithm: str, lengths: Int64Array, num_nodes: int, seed: int) -> Int64Array:
    """List the ids of an epoch in global order, one lane (canonical node) per node."""
    size = int(lengths.sum())
    if algorithm == "native":
        order = Conveyor(lengths, seed=seed, num_lanes=num_nodes, window=WINDOW)
        return order.ids(0, 0, range(size))
    rule = ShuffleRule(num_canonical_nodes=num_nodes, seed=seed, epoch=0, block_size=WINDOW * MEAN_LENGTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some shards may be larger than the block
        shuffled = shuffle_algorithm(algorithm)(lengths, rule)
    ids = np.empty(size, dtype=np.int64)
    for lane in range(num_nodes):
        begin = lane_start(size, num_nodes, lane)
        ids[lane::num_nodes] = shuffled[begin : begin + lane_length(size, num_nodes, lane)]
    return ids


def measure(kind: str, num_nodes: int, algorithm: str, num_seeds: int) -> dict[str, Any]:
    lengths = make_lengths(kind)
    spans, batch = IdSpans(lengths), 16 * num_nodes * 8
    rows = []
    for seed in range(num_seeds):
        ids = list_epoch(algorithm, lengths, num_nodes, seed)
        shuffling = asdict(measure_shuffling(ids, spans, batch))
        rows.append({**shuffling, **asdict(measure_traffic(ids, spans, batch, num_nodes, PREFETCH_STEPS))})
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    whole = {name: round(value) if isinstance(rows[0][name], int) else value for name, value in means.items()}
    return {"lengths": kind, "nodes": num_nodes, "algorithm": algorithm, **whole}


def show_table(results: list[dict[str, Any]]) -> str:
    lines = ["| nodes | order | " + " | ".join(title for _, title, _ in COLUMNS) + " |"]
    lines.append("|" + "---|" * (len(COLUMNS) + 2))
    for row in results:
        cells = [format(row[name], form) for name, _, form in COLUMNS]
        lines.append(f"| {row['nodes']} | {row['algorithm']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_plot(results: list[dict[str, Any]]) -> str:
    """Draw distance from the true mix over shards held, one mark per order and number of nodes."""
    colours = dict(zip(ALGORITHMS, ("#0b6e99", "#999999", "#d9822b", "#8e5ea2", "#c23030"), strict=True))
    width, height, margin = 640, 360, 60
    largest = np.log10(max(row["peak_shards_held"] for row in results) * 1.3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{margin} 20V{height - margin}H{width - 20}" fill="none" stroke="black"/>',
        f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">most shards held by a node (logarithmic)</text>',
        f'<text transform="translate(15 {height / 2}) rotate(-90)" text-anchor="middle">'
        "distance of a batch from the true mix</text>",
    ]
    for power in range(int(largest) + 1):
        x = margin + (width - margin - 20) * power / largest
        parts.append(f'<text x="{x:.0f}" y="{height - margin + 16}" text-anchor="middle">{10**power}</text>')
    for tenth in range(0, 11, 2):
        y = height - margin - (height - margin - 20) * tenth / 10
        parts.append(f'<text x="{margin - 8}" y="{y + 4:.0f}" text-anchor="end">{tenth / 10}</text>')
    for row in results:
        x = margin + (width - margin - 20) * np.log10(row["peak_shards_held"]) / largest
        y = height - margin - (height - margin - 20) * row["batch_distance"]
        colour = colours[row["algorithm"]]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{row["nodes"]}</text>')
    for number, (name, colour) in enumerate(colours.items()):
        y = 30 + 16 * number
        parts.append(f'<circle cx="{width - 90}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{width - 80}" y="{y + 4}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", choices=("equal", "unequal"), default="equal")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print a table for people instead of JSON")
    parser.add_argument("--svg", type=Path, help="draw the plot of the docs")
    args = parser.parse_args()
    results = [
        measure(args.lengths, num_nodes, algorithm, args.seeds) for num_nodes in args.nodes for algorithm in ALGORITHMS
    ]
    print(show_table(results) if args.table else json.dumps(results, indent=2))
    if args.svg:
        args.svg.write_text(draw_plot(results))


if __name__ == "__main__":
    main()
