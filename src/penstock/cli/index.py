"""`penstock index FILES`: find the shards of files of other programs ahead of a job, once for everybody."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.files import add_files_options, look_at
from penstock.printable import printable
from penstock.units import format_bytes

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("index", help="index files that are read in place: Parquet, JSON lines, tar …")
    parser.add_argument("dataset", help="their folder or URL, with * for several; what is unchanged is not read again")
    add_files_options(parser)
    parser.add_argument("--store", action="store_true", help="leave the index beside the files, for all who read them")
    parser.add_argument("--out", type=Path, help="write the index to a file, to be put beside them as .penstock-index")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Index, and say what was found."""
    with look_at(options) as files:
        if files is None:
            print("it has an index.json already, which is all that is needed", file=sys.stderr)
            return 0
        index = files.index
        stored = int(index.columns.stored_sizes.sum())
        names = {part.span.basename for shard in index.shards for part in shard.parts if part.span}
        print(
            printable(
                f"{index.num_samples:,} samples in {len(index.shards):,} shards of {len(names):,} files,"
                f" {format_bytes(stored)}; index: {format_bytes(files.index_path.stat().st_size)}"
            )
        )
        if options.out is not None:
            shutil.copyfile(files.index_path, options.out)
            print(printable(f"written to {options.out}"))
        if options.store:
            print(printable(f"left as {files.store_index()}"))
    return 0
