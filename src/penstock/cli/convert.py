"""`penstock convert INPUT… OUT`: turn files, or a dataset, into a dataset."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from penstock.cli.datasets import describe
from penstock.errors import ConfigError, printable
from penstock.outside_text import Bounded
from penstock.recipes.table import recipes
from penstock.units import format_bytes, format_count

_SHARE = Bounded(r"([^=/\\]+)=([0-9.]+)", 256)
_TASK = Bounded(r"(\d{1,9})/(\d{1,9})", 32)


def add_convert(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("convert", help="turn files or a dataset into shards, on one machine or an engine")
    parser.add_argument("paths", nargs="*", metavar="INPUT… OUT", help="files, folders, globs or URLs; and where to")
    parser.add_argument(
        "--recipe",
        nargs=argparse.REMAINDER,
        metavar=("NAME", "…"),
        help="convert the raw files of a dataset that people know, by flags of its own, which --recipe NAME --help"
        f" shows: {', '.join(recipes.names(of_packages=False))}",
    )
    parser.add_argument("--format", default="mds", help="mds (the default), parquet, arrow, jsonl or webdataset")
    parser.add_argument("--input-format", help="how files are read, if their names do not tell: parquet, json, csv …")
    parser.add_argument("--columns", help="encodings of columns, such as id=int,text=str; by default those that fit")
    parser.add_argument("--transform", metavar="MODULE:NAME", help="a function of a sample, or a transform")
    parser.add_argument("--engine", default="local", help="local (the default), ray, dask or spark")
    parser.add_argument("--workers", type=int, help="how many tasks run at a time")
    parser.add_argument("--compression", help="such as zstd or zstd:7")
    parser.add_argument("--hashes", default="", help="digests to record, such as sha1,xxh64")
    parser.add_argument("--size-limit", default="64mb", help="the size of a shard (default: 64mb)")
    parser.add_argument("--splits", help="such as train=0.98,val=0.02")
    parser.add_argument("--split-by", help="the column that decides in which split a row is")
    parser.add_argument("--shuffle", action="store_true", help="write rows in a random order, in two passes")
    parser.add_argument("--shuffle-memory", default="1gb", help="the memory of a worker for that (default: 1gb)")
    parser.add_argument("--seed", type=int, default=0, help="makes other splits, and another order")
    parser.add_argument("--on-error", default="raise", help="raise (the default) or skip")
    parser.add_argument("--overwrite", action="store_true", help="replace a conversion with other options")
    parser.add_argument("--task-size", help="about how much of the inputs a task reads")
    parser.add_argument("--task", help="run only task K of N, K+N and so on: 3/64")
    parser.add_argument("--finish", action="store_true", help="join what runs with --task have made, and do no more")
    parser.add_argument("--try-codecs", action="store_true", help="measure codecs on a sample, and write nothing")
    parser.add_argument("--dry-run", action="store_true", help="show tasks, columns and a sample, and write nothing")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Convert, and print what was made."""
    if options.recipe is not None:
        return run_recipe(parser, options)
    if len(options.paths) < 2:
        parser.error("name the inputs, and after them where the dataset is to be made")
    from penstock.conversion.converting import convert

    if options.try_codecs:
        return _try_codecs(options)
    task = None if options.task is None else parse_task(options.task)
    report = convert(
        options.paths[:-1],
        options.paths[-1],
        format=options.format,
        columns=None if options.columns is None else parse_columns(options.columns),
        transform=None if options.transform is None else load_name(options.transform),
        engine=options.engine,
        workers=options.workers,
        compression=options.compression,
        hashes=tuple(filter(None, options.hashes.split(","))),
        size_limit=options.size_limit,
        splits=None if options.splits is None else parse_splits(options.splits),
        split_by=options.split_by,
        seed=options.seed,
        shuffle=options.shuffle,
        shuffle_memory=options.shuffle_memory,
        on_error=options.on_error,
        overwrite=options.overwrite,
        input_format=options.input_format,
        task_size=options.task_size,
        task=task,
        finish=options.finish,
        dry_run=options.dry_run,
    )
    samples = [describe(sample, 200) for sample in report.samples]
    if options.json:
        print(json.dumps({**asdict(replace(report, samples=())), "samples": samples}))
        return 0
    if options.dry_run:
        columns = "" if report.columns is None else f", columns {report.columns}"
        print(printable(f"{format_count(report.num_tasks, 'task')}{columns}; the first samples:"))
        print(*map(printable, samples), sep="\n")
        return 0
    print(printable(str(report)))
    return 0


def run_recipe(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Convert the raw files of a dataset that people know; the flags of its recipe follow its name."""
    if (
        not options.recipe
        or any(
            parser.get_default(name) != value
            for name, value in vars(options).items()
            if name not in ("recipe", "run", "paths")
        )
        or options.paths
    ):
        parser.error("write --recipe NAME first, and then the flags of that recipe: see --recipe NAME --help")
    name, *flags = options.recipe
    recipe = recipes.get(name)
    recipe.main(recipe.parse_args(flags))
    return 0


def _try_codecs(options: argparse.Namespace) -> int:
    from penstock.conversion.codec_trials import try_codecs
    from penstock.conversion.converting import source_of

    trials = try_codecs(
        source_of(options.paths[:-1], options.input_format),
        columns=None if options.columns is None else parse_columns(options.columns),
        transform=None if options.transform is None else load_name(options.transform),
    )
    if options.json:
        print(json.dumps([asdict(each) for each in trials]))
        return 0
    for each in trials:
        print(
            f"{each.compression or 'none':<8} {each.size_limit:>6}  {each.part:6.1%}  writes"
            f" {format_bytes(int(each.write_rate)):>9}/s  reads {format_bytes(int(each.read_rate)):>9}/s"
            f"{'  <- take this' if each.is_advised else ''}"
        )
    return 0


def add_schema(commands: Any) -> None:
    """Add `penstock schema INPUT…`: the columns that a conversion would write."""
    parser = commands.add_parser("schema", help="show the columns that files or a dataset would be converted to")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="a file, folder, glob or URL")
    parser.add_argument("--input-format", help="how files are read, if their names do not tell: parquet, json, csv …")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_schema)


def run_schema(options: argparse.Namespace) -> int:
    """Read first samples, and print the encodings that fit them."""
    import tempfile

    from penstock.conversion.converting import convert

    with tempfile.TemporaryDirectory() as nowhere:
        report = convert(options.inputs, nowhere, input_format=options.input_format, dry_run=True)
    columns = dict(report.columns or {})
    print(json.dumps(columns) if options.json else "\n".join(printable(f"{k}  {v}") for k, v in columns.items()))
    return 0


def parse_splits(text: str) -> dict[str, float]:
    """Read shares such as `train=0.98,val=0.02`."""
    shares = {}
    for part in text.split(","):
        match = _SHARE.fullmatch(part)
        try:
            shares[match[1]] = float(match[2])  # type: ignore[index]
        except (TypeError, ValueError):
            raise ConfigError(f"--splits {text}: write shares as train=0.98,val=0.02") from None
    return shares


def parse_task(text: str) -> tuple[int, int]:
    """Read which tasks to run, such as `3/64`."""
    match = _TASK.fullmatch(text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 <= number < count:
        raise ConfigError(f"--task {text}: write K/N with K from 0 to N - 1, such as 3/64")
    return number, count


def parse_columns(text: str) -> dict[str, str]:
    """Read encodings such as `id=int,text=str`."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise ConfigError(f"--columns {text}: write name=encoding, with commas between them")
    return {name: value for name, _, value in pairs}


def load_name(text: str) -> Any:
    """Import what is named as `module:name`, also of a module in this folder."""
    import importlib
    import sys

    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--transform {text}: {error}. Write module:name, of a module that Python finds") from error
