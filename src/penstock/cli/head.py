"""`penstock head DATASET`: the first samples of a dataset, whatever it is made of."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from penstock.cli.files import add_files_options, files_settings
from penstock.errors import printable
from penstock.units import format_bytes, format_count

if TYPE_CHECKING:
    import argparse

_MOST_CHARACTERS = 200
_MOST_ITEMS = 16


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("head", help="show the first samples of a dataset")
    parser.add_argument("dataset", help="the folder or URL of the dataset, or a glob of files")
    parser.add_argument("-n", type=int, default=5, help="the number of samples (default: 5)")
    parser.add_argument("--columns", nargs="+", help="show only these columns")
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
    """Show a sample as one line of JSON; long values are shortened to `most` characters, and bytes only described."""
    return json.dumps({name: _shown(value, most) for name, value in sample.items()}, ensure_ascii=False)


def _shown(value: Any, most: int | None) -> Any:
    """Return what JSON can hold of a value."""
    if hasattr(value, "tolist"):  # a NumPy array or number
        if most is not None and value.ndim > 1 and value.size > _MOST_ITEMS:
            return f"{value.dtype} array of shape {value.shape}"
        return _shown(value.tolist(), most)
    if isinstance(value, bool | int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, bytes):
        return _described(value)
    if isinstance(value, dict):
        return {str(key): _shown(each, most) for key, each in value.items()}
    if isinstance(value, list | tuple):
        is_long = most is not None and len(value) > _MOST_ITEMS
        shown = [_shown(each, most) for each in (value[:_MOST_ITEMS] if is_long else value)]
        return [*shown, f"… ({len(value)} items)"] if is_long else shown
    text = str(value)
    return text if most is None or len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _described(data: bytes) -> str:
    from penstock.formats.encodings.images import image_file_kind

    kind = image_file_kind(data)
    return f"{kind} image, {format_bytes(len(data))}" if kind else format_count(len(data), "byte")
