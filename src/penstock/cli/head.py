"""`penstock head DATASET`: the first samples of a dataset, whatever it is made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.cli.files import add_files_options, files_settings
from penstock.printable import printable

if TYPE_CHECKING:
    import argparse

_MOST_CHARACTERS = 200


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("head", help="show the first samples of a dataset")
    parser.add_argument("dataset", help="its folder or URL, or files by a glob")
    parser.add_argument("-n", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--columns", nargs="+", help="only these columns")
    parser.add_argument("--full", action="store_true", help="do not shorten values")
    add_files_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print samples, each a line of JSON as far as JSON can hold them."""
    from penstock.data.dataset import StreamingDataset

    settings = {name: value for name, value in files_settings(options).items() if value is not None}
    with StreamingDataset(remote=options.dataset, columns=options.columns, image_decoder="raw", **settings) as dataset:
        for sample in dataset[: min(max(0, options.n), dataset.num_samples)]:
            print(printable(describe(sample, most=None if options.full else _MOST_CHARACTERS)))
    return 0


def describe(sample: dict[str, Any], most: int | None) -> str:
    """Show a sample as one line; long values are cut, and what is no text or number is told by its kind."""
    return json.dumps({name: _shown(value, most) for name, value in sample.items()}, ensure_ascii=False)


def _shown(value: Any, most: int | None) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if hasattr(value, "dtype") and getattr(value, "size", 0) > 16:
        return f"{value.dtype} array of {value.shape}"
    if isinstance(value, dict):
        return {str(key): _shown(each, most) for key, each in value.items()}
    text = value if isinstance(value, str) else repr(value.tolist() if hasattr(value, "tolist") else value)
    return text if most is None or len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
