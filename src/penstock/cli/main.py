"""`penstock COMMAND`: each command parses, calls one function and prints."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from penstock._version import __version__
from penstock.cli.cache import add_cache
from penstock.cli.convert import add_convert, add_schema
from penstock.cli.datasets import add_head, add_index, add_inspect, add_merge, add_verify, as_options
from penstock.cli.stats import add_stats
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = (add_convert, add_schema, add_inspect, add_head, add_stats, add_verify, add_index, add_merge, add_cache)
_INTERRUPTED = 128 + 2  # what shells expect of a command that ended by Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit status: 0 well, 1 found wrong, 2 could not run, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="penstock", description="Convert, inspect, count, verify, index, merge and cache datasets."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(run=None)
    for add in _COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 0
    try:
        status: int = options.run(options)
    except PenstockError as error:
        print(f"penstock: {as_options(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(" ".join(["penstock: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return _INTERRUPTED
    return status
