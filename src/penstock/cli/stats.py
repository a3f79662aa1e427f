"""`penstock stats DATASET`: counts, lengths, values and duplicates of its columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.cli.datasets import add_dataset, files_settings
from penstock.errors import printable

if TYPE_CHECKING:
    import argparse


def add_stats(commands: Any) -> None:
    """Add the command to a parser."""
    parser = add_dataset(
        commands,
        run_stats,
        "count nulls, duplicates, lengths, numbers, tokens and sizes of images",
        "the folder or URL of the dataset, or a glob of files",
    )
    parser.add_argument("--columns", nargs="+", help="only these columns")
    parser.add_argument("--sample", type=int, default=10_000, help="how many samples to read (default: 10000)")
    parser.add_argument("--full", action="store_true", help="read all samples")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_stats(options: argparse.Namespace) -> int:
    """Read samples, and print what is in them."""
    from penstock.data.dataset import StreamingDataset

    settings = {name: value for name, value in files_settings(options).items() if value is not None}
    with StreamingDataset(remote=options.dataset, columns=options.columns, **settings) as dataset:
        found = dataset.stats_of(sample=None if options.full else options.sample)
    print(json.dumps(found.to_dict()) if options.json else printable(str(found), lines=True))
    return 0
