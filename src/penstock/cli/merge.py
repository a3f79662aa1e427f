"""`penstock merge OUT [INDEX ...]`: one index for many partial datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("merge", help="write one index for all datasets in the folders below a root")
    parser.add_argument("out", help="the root: a path or a URL")
    parser.add_argument(
        "indexes", nargs="*", metavar="INDEX", help="index files to merge, instead of all those below OUT"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Merge, and say where the result is."""
    from penstock.index.paths import INDEX_NAME
    from penstock.publish.merge_index import merge_index
    from penstock.storage.base import shown_url

    merge_index(index_file_urls=options.indexes or None, out=options.out)
    print(f"wrote {shown_url(options.out).rstrip('/')}/{INDEX_NAME}")
    return 0
