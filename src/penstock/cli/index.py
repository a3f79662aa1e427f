"""`penstock index FILES`: find the shards of files of other programs ahead of a job, once for everybody."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.files import add_files_options, look_at
from penstock.errors import printable
from penstock.units import format_bytes, format_count

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("index", help="index files that you read in place: Parquet, JSON lines, tar …")
    parser.add_argument(
        "dataset", help="the folder or URL of the files, or a glob; files that have not changed are not read again"
    )
    add_files_options(parser)
    parser.add_argument(
        "--store", action="store_true", help="save the index next to the files, for everybody who reads them"
    )
    parser.add_argument(
        "--out", type=Path, help="write the index to this file; put it next to your files as .penstock-index"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Index, and say what was found."""
    with look_at(options) as files:
        if files is None:
            print("this dataset already has an index.json, so there is nothing to index", file=sys.stderr)
            return 0
        index = files.index
        stored = int(index.columns.stored_sizes.sum())
        names = {part.span.basename for shard in index.shards for part in shard.parts if part.span}
        print(
            printable(
                f"{format_count(index.num_samples, 'sample')} in {format_count(len(index.shards), 'shard')} of"
                f" {format_count(len(names), 'file')}, {format_bytes(stored)};"
                f" index: {format_bytes(files.index_path.stat().st_size)}"
            )
        )
        if options.out is not None:
            shutil.copyfile(files.index_path, options.out)
            print(printable(f"written to {options.out}"))
        if options.store:
            print(printable(f"saved as {files.store_index()}"))
    return 0
