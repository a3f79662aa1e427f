"""`penstock verify DATASET`: check a dataset against its index."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cli.files import add_files_options, look_at
from penstock.errors import printable
from penstock.units import format_bytes, format_count

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("verify", help="check every file, size and digest of a dataset")
    parser.add_argument(
        "dataset", help="the folder or URL of the dataset; files in a store are downloaded again, without any cache"
    )
    add_files_options(parser)
    parser.add_argument("--values", action="store_true", help="also decode every value, with all pixels of images")
    parser.add_argument(
        "--allow-unsafe-types", action="store_true", help="with --values: also unpickle pkl columns, which can run code"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, and give 1 if something is wrong."""
    from penstock.data.look import verify_dataset, verify_files

    with look_at(options, is_fresh=True) as files:
        if files is not None:
            report = verify_files(files, read_values=options.values)
        else:
            report = verify_dataset(
                options.dataset, read_values=options.values, allow_unsafe_types=options.allow_unsafe_types
            )
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        for problem in report.problems:
            print(printable(problem))
        print(
            f"{format_count(report.num_shards, 'shard')}, {format_count(report.num_samples, 'sample')},"
            f" {format_bytes(report.num_bytes)}, {format_count(report.num_digests, 'digest')} checked: "
            + (format_count(len(report.problems), "problem") if report.problems else "no problems")
        )
    return 1 if report.problems else 0
