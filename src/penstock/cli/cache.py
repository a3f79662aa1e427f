"""`penstock cache`: what is cached on this machine, and how to get rid of it, or fetch it in advance."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.errors import printable
from penstock.status_line import StatusLine
from penstock.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cache.cleanup import CacheRemoval, RemovedDataset
    from penstock.cache.contents import CachedDataset
    from penstock.data.look import WarmedCache

_SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"))
_MOST_PROCESSES = 8


def add_cache(commands: Any) -> None:
    """Add the command, and those below it, to a parser."""
    parser = commands.add_parser("cache", help="list, clear, prune or warm the cache of this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_list, folders=[])
    below = parser.add_subparsers(metavar="ACTION")

    found = below.add_parser(
        "list", help="show what is cached, by dataset: sizes, times and the processes that read it (the default)"
    )
    found.add_argument(
        "folders", nargs="*", metavar="FOLDER", help="a folder that you passed as `local`, instead of your user cache"
    )
    found.set_defaults(run=run_list)

    clear = below.add_parser(
        "clear", help="remove one dataset, or all of them, except shards that are in use or pinned"
    )
    clear.add_argument(
        "url", nargs="?", metavar="URL", help="the remote of the dataset; by default, all datasets are removed"
    )
    clear.set_defaults(run=run_clear)

    prune = below.add_parser(
        "prune", help="remove the shards that were used longest ago, except those that are in use or pinned"
    )
    prune.add_argument("--to", required=True, metavar="SIZE", help="how much may stay, such as 50gb")
    prune.set_defaults(run=run_prune)

    verify = below.add_parser("verify", help="compare cached shards with the digests in their indexes")
    verify.add_argument("--repair", action="store_true", help="fetch damaged shards again")
    verify.set_defaults(run=run_verify)

    warm = below.add_parser("warm", help="fetch all shards of a dataset now")
    warm.add_argument("url", metavar="URL", help="the remote of the dataset")
    warm.add_argument("--local", metavar="FOLDER", help="the folder to keep the shards in, instead of your user cache")
    warm.add_argument("--split", help="a folder below both")
    warm.set_defaults(run=run_warm)

    for action in (clear, prune, verify):
        action.add_argument(
            "--folder",
            dest="folders",
            action="append",
            metavar="FOLDER",
            help="a folder that you passed as `local`, instead of your user cache; can be repeated",
        )
    for action in (found, clear, prune, verify, warm):
        # What was said before the action holds, too.
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


# --- Actions ------------------------------------------------------------------------------------------------


def run_list(options: argparse.Namespace) -> int:
    """Print what is cached."""
    from penstock.cache.contents import list_cache

    folders = [folder for folder in options.folders if not _is_to_come(folder)]
    datasets = list_cache(folders if options.folders else None)
    if options.json:
        print(json.dumps([_for_machines(dataset) for dataset in datasets]))
    else:
        print(render_list(datasets, time.time()))
    return 0


def _is_to_come(folder: str) -> bool:
    """Return whether a folder is not there yet, and say who will make it."""
    if os.path.lexists(os.path.expanduser(folder)):  # noqa: PTH111  before it becomes a path
        return False
    print(
        f"penstock: there is no folder {printable(folder)} yet: a dataset with it as `local` makes it with the first"
        " shard that it fetches",
        file=sys.stderr,
    )
    return True


def run_clear(options: argparse.Namespace) -> int:
    """Remove datasets, and print what was done."""
    from penstock.cache.cleanup import clear_cache

    removal = clear_cache(options.url, options.folders or None)
    print(json.dumps(asdict(removal)) if options.json else render_removal(removal))
    return 0


def run_prune(options: argparse.Namespace) -> int:
    """Remove what was used longest ago, print what was done, and give 1 if that was not enough."""
    from penstock.cache.cleanup import prune_cache
    from penstock.units import parse_bytes

    removal = prune_cache(options.to, options.folders or None)
    print(json.dumps(asdict(removal)) if options.json else render_removal(removal))
    if removal.left_bytes <= parse_bytes(options.to):
        return 0
    kept = f"{format_bytes(removal.in_use_bytes)} in use and {format_bytes(removal.pinned_bytes)} pinned were kept"
    print(
        f"penstock: {format_bytes(removal.left_bytes)} left, more than {printable(options.to)}: {kept}",
        file=sys.stderr,
    )
    return 1


def run_verify(options: argparse.Namespace) -> int:
    """Digest what is cached, print what was found, and give 1 if a damaged shard is left."""
    from penstock.cli.verify_cache import verify_cache

    check = verify_cache(options.folders or None, repair=options.repair)
    text = (
        f"{format_count(check.num_shards, 'shard')} checked, {len(check.damaged)} damaged, {len(check.problems)} left"
    )
    print(json.dumps(check._asdict()) if options.json else printable("\n".join([*check.problems, text]), lines=True))
    return 1 if check.problems else 0


def run_warm(options: argparse.Namespace) -> int:
    """Fetch a dataset, showing how far it is."""
    from penstock.data.look import warm_cache

    line = StatusLine()

    def show(num_done: int, num_shards: int) -> None:
        if line.is_terminal:
            line.show(f"{num_done:,} of {num_shards:,} shards")

    try:
        warmed = warm_cache(options.url, options.local, options.split, on_progress=show)
    finally:
        line.clear()
    print(json.dumps(asdict(warmed)) if options.json else render_warmed(warmed))
    return 0


# --- In words -----------------------------------------------------------------------------------------------


def _for_machines(dataset: CachedDataset) -> dict[str, Any]:
    return {**asdict(dataset), "is_open": dataset.is_open, "processes": list(dataset.processes)}


def render_list(datasets: Sequence[CachedDataset], now: float) -> str:
    """Lay a list of datasets out for people."""
    if not datasets:
        return "nothing is cached"
    lines = []
    for dataset in datasets:
        lines.append(dataset.source)
        lines.append(f"    {', '.join(_facts(dataset, now))}")
        lines.append(f"    in {dataset.directory}")
    total = sum(dataset.num_bytes for dataset in datasets)
    lines.append(f"{format_count(len(datasets), 'dataset')}, {format_bytes(total)}")
    return "\n".join(map(printable, lines))


def _facts(dataset: CachedDataset, now: float) -> list[str]:
    facts = [f"{format_bytes(dataset.num_bytes)} in {format_count(dataset.num_shards, 'shard')}"]
    if dataset.pinned_bytes:
        facts.append(f"{format_bytes(dataset.pinned_bytes)} pinned")
    if dataset.outdated_bytes:
        facts.append(f"{format_bytes(dataset.outdated_bytes)} outdated")
    if dataset.since is not None and dataset.last_used is not None:
        facts.append(f"first fetched {ago(now - dataset.since)}, last used {ago(now - dataset.last_used)}")
    if len(dataset.editions) > 1:
        facts.append(f"{len(dataset.editions)} versions")
    if dataset.is_open:
        facts.append(_in_use(dataset.processes))
    return facts


def _in_use(processes: Sequence[int]) -> str:
    if not processes:
        return "in use"
    named = ", ".join(map(str, processes[:_MOST_PROCESSES]))
    rest = len(processes) - _MOST_PROCESSES
    return f"in use by process {named}" + (f" and {rest} more" if rest > 0 else "")


def ago(seconds: float) -> str:
    """Describe how long ago something was, in its largest whole unit."""
    for num_seconds, unit in _SPANS:
        if seconds >= num_seconds:
            return f"{format_count(int(seconds // num_seconds), unit)} ago"
    return "just now"


def render_removal(removal: CacheRemoval) -> str:
    """Describe what was removed, and what was kept."""
    if not removal.datasets and not removal.left_bytes:
        return "nothing is cached"
    lines = [f"{dataset.source} in {dataset.directory}: {_outcome(dataset)}" for dataset in removal.datasets]
    lines.append(f"removed {format_bytes(removal.removed_bytes)}, {format_bytes(removal.left_bytes)} left")
    return "\n".join(map(printable, lines))


def _outcome(dataset: RemovedDataset) -> str:
    facts = [f"removed {format_count(dataset.num_removed, 'shard')}, {format_bytes(dataset.removed_bytes)}"]
    if dataset.in_use_bytes:
        facts.append(f"kept {format_bytes(dataset.in_use_bytes)} in use")
    if dataset.pinned_bytes:
        facts.append(f"kept {format_bytes(dataset.pinned_bytes)} pinned")
    return ", ".join(facts)


def render_warmed(warmed: WarmedCache) -> str:
    """Describe what is in the cache now."""
    if warmed.directory is None:
        return printable(f"{warmed.source} is on this machine already: there is nothing to fetch")
    return printable(
        f"{warmed.source}: all {format_count(warmed.num_shards, 'shard')} ({format_bytes(warmed.num_bytes)}) are in"
        f" {warmed.directory}; {format_bytes(warmed.fetched_bytes)} fetched now"
    )
