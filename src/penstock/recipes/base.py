"""What a recipe is: a dataset that people know, from its raw files to shards by `penstock.convert`."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.conversion.converting import ConvertOptions, convert
from penstock.errors import ConfigError, PenstockError, printable
from penstock.recipes.table import recipes
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.conversion.plan import ConvertReport


class Command(ABC):
    """What has flags, which the command line and Python call by the same names, and returns what it did by name.

    What the docstring of a class says is shown by `--help`.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Do what the flags say, and return what was done."""

    def add_flags(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027  most have none
        """Add flags of this one alone."""

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027
        """Add the flags of all that are like this one."""

    def parser(self, prog: str | None = None) -> argparse.ArgumentParser:
        """Return what reads the flags."""
        description, formatter = inspect.getdoc(type(self)), _HelpFormatter
        parser = argparse.ArgumentParser(prog or self.name, description=description, formatter_class=formatter)
        self.add_flags(parser)
        self.add_common_flags(parser)
        return parser

    def parse_args(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Read flags, by default those of the command line."""
        return self.parser().parse_args(arguments)

    def main(self, args: argparse.Namespace | None = None) -> None:
        """Do what the flags say, by default those of the command line, and print what was done."""
        for report in self.run(self.parse_args() if args is None else args).values():
            print(printable(str(report)))

    def convert(self, **flags: Any) -> dict[str, Any]:
        """Run with these flags, the others at their defaults; return the reports, of a recipe one for each split."""
        parser = self.parser()
        known = {action.dest: action for action in parser._actions if action.dest != "help"}
        if unknown := flags.keys() - known.keys():
            raise ConfigError(f"recipe {self.name!r} has no flag {min(unknown)!r}: it has {', '.join(sorted(known))}")
        for name, action in known.items():
            if action.required and name not in flags:
                raise ConfigError(f"recipe {self.name!r} needs {name}=")
            action.required = False
        args = parser.parse_args([])
        for name, value in flags.items():
            read = known[name].type
            setattr(args, name, read(value) if isinstance(value, str) and callable(read) else value)
        return dict(self.run(args))


class Recipe(Command):
    """How a dataset is converted: where its raw files are, what becomes of a row, and which columns are written.

    To make your own, inherit from it, say in `open_split` how the rows of a split are read, and name the columns. An
    object of the class is the recipe: register it with an entry point of the group `penstock.recipes`. See
    docs/recipes.md.

    Attributes:
        name: What users call it.
        splits: The splits that are converted unless others are asked for, each to a folder of its name.
        columns: The encodings of the columns; other keys of rows are left out.
        transform: A function of a row that returns a row, several or None, or a transform; None takes rows as they are.
        defaults: The defaults of the flags `compression`, `hashes` and `size_limit`.
    """

    splits: ClassVar[Sequence[str]] = ("train", "val")
    columns: ClassVar[Mapping[str, str]]
    transform: Any = None
    defaults: ClassVar[ConvertOptions] = {}

    @abstractmethod
    def open_split(self, args: argparse.Namespace, split: str) -> Any:
        """Return the rows of a split of the raw data: files, a source, or what else `penstock.convert` takes."""

    def options(self, args: argparse.Namespace) -> ConvertOptions:  # noqa: ARG002
        """Return what is made of the rows; to be extended by recipes whose flags decide."""
        return {"columns": self.columns, "transform": type(self).transform}  # of the class: a function stays one

    def parser(self, prog: str | None = None) -> argparse.ArgumentParser:
        """Return what reads the flags."""
        return super().parser(prog or f"penstock convert --recipe {self.name}")

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags that all recipes share: where from, where to, and how shards are written."""
        add_flag(parser, "--in_root", required=True, help="the folder or URL of the raw files")
        add_flag(parser, "--out_root", required=True, help="the folder or URL below which each split has its folder")
        add_flag(parser, "--splits", type=listed, default=",".join(self.splits), help="which splits")
        add_writing_flags(parser, self.defaults)

    def run(self, args: argparse.Namespace) -> Mapping[str, ConvertReport]:
        """Convert all splits, one after the other. All of them are opened first, so that no file is missed later."""
        options, out = self.options(args), os.fspath(args.out_root)
        rows = {split: self.open_split(args, split) for split in args.splits}
        return {split: convert_rows(each, join_url(out, split), args, options) for split, each in rows.items()}


def convert_rows(rows: Any, out: str, args: argparse.Namespace, options: ConvertOptions) -> ConvertReport:
    """Convert rows as the common flags say."""
    return convert(
        rows,
        out,
        engine=args.engine,
        workers=args.workers,
        overwrite=args.overwrite,
        progress=bool(args.progress_bar),
        **{
            "compression": args.compression or None,
            "hashes": tuple(args.hashes),
            "size_limit": args.size_limit,
            "on_error": args.on_error,
            **options,
        },
    )


def raw(args: argparse.Namespace, name: str) -> str:
    """Return the path or URL of a file, or of a glob, below the folder of the raw files."""
    return join_url(os.fspath(args.in_root), name)


# --- Flags ---


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, "") else super()._get_help_string(action)


def add_flag(parser: argparse.ArgumentParser, name: str, **settings: Any) -> None:
    """Add a flag of several words, which may be written with underscores or with hyphens."""
    parser.add_argument(name, *({f"--{name[2:].replace('_', '-')}"} - {name}), **settings)


def add_writing_flags(parser: argparse.ArgumentParser, defaults: ConvertOptions) -> None:
    """Add the flags that say how shards are written, and by whom."""
    add_flag(parser, "--compression", default=defaults.get("compression") or "", help="such as zstd:7; empty: none")
    add_flag(parser, "--hashes", type=listed, default=",".join(defaults.get("hashes", ())), help="such as sha1,xxh64")
    add_flag(parser, "--size_limit", default=defaults.get("size_limit", "64mb"), help="the size of a shard")
    add_flag(parser, "--seed", type=int, default=0, help="of the order of rows, and of all that is drawn")
    add_flag(parser, "--workers", type=int, help="how many tasks run at a time; by default one for each processor")
    add_flag(parser, "--engine", default="local", help="local, ray, dask or spark")
    add_flag(parser, "--on_error", default="raise", help="raise, or skip to leave out bad rows and list them")
    add_flag(parser, "--overwrite", action="store_true", help="replace a conversion with other flags")
    add_flag(parser, "--progress_bar", type=int, default=1, help="0 hides the line of progress")
    add_flag(parser, "--leave", type=int, default=0, help=argparse.SUPPRESS)  # of old command lines


def listed(text: str) -> list[str]:
    """Read a list with commas."""
    return [part for part in text.split(",") if part]


def run_module(recipe_name: str) -> None:
    """Convert as the command line says: what `python -m` of the module of a recipe does.

    The recipe is that of the module under its own name, so that processes that run tasks find its classes.
    """
    recipe = recipes.get(recipe_name)
    prog = f"python -m {type(recipe).__module__}"
    try:
        recipe.main(recipe.parser(prog).parse_args())
    except PenstockError as error:
        sys.exit(f"{prog}: {error}")
