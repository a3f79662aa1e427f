"""What commands take to name files of other programs, besides their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.outside_text import Bounded

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from penstock.data.look import FilesLook

_ARGUMENT = Bounded(r"\b(format|split|subset)=(?=[,:.;)\s]|$)", 1 << 16)


def add_files_options(parser: Any) -> None:
    """Add the options to a command."""
    parser.add_argument(
        "--format", help="the format of files without an index: parquet, jsonl, csv …; by default, their names tell"
    )
    parser.add_argument(
        "--split", help="a folder below it or, for a dataset on the Hugging Face Hub, one of its splits"
    )
    parser.add_argument("--subset", help="one of the subsets of a dataset on the Hugging Face Hub")


def files_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was said, by the names of a `Stream`."""
    return {"format": options.format, "split": options.split, "subset": options.subset}


def as_options(message: str) -> str:
    """Name arguments in a message as whoever types commands has to: `subset=` is `--subset`."""
    return _ARGUMENT.sub(r"--\1", message)


def look_at(options: argparse.Namespace, *, is_fresh: bool = False) -> AbstractContextManager[FilesLook | None]:
    """Index the files that a command names; None: it is a dataset with an index."""
    from penstock.data.look import FilesLook

    return FilesLook.at(options.dataset, is_fresh=is_fresh, **files_settings(options))
