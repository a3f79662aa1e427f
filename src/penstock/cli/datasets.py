"""Commands for one dataset: `penstock inspect`, `head`, `verify`, `index` and `merge`."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import printable
from penstock.outside_text import Bounded
from penstock.units import check_whole, format_bytes, format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from penstock.data.look import FilesLook
    from penstock.index.model import Index

_ARGUMENT = Bounded(r"\b(format|split|subset)=(?=[,:.;)\s]|$)", 1 << 16)


def add_dataset(commands: Any, run: Callable[[argparse.Namespace], int], summary: str, dataset: str) -> Any:
    """Add a command that reads one dataset, or files of other programs."""
    parser = commands.add_parser(run.__name__.removeprefix("run_"), help=summary)
    parser.set_defaults(run=run)
    parser.add_argument("dataset", help=dataset)
    parser.add_argument(
        "--format", help="the format of files without an index: parquet, jsonl, csv …; by default, their names tell"
    )
    parser.add_argument(
        "--split", help="a folder below it or, for a dataset on the Hugging Face Hub, one of its splits"
    )
    parser.add_argument("--subset", help="one of the subsets of a dataset on the Hugging Face Hub")
    return parser


def files_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was said, by the names of a `Stream`."""
    return {"format": options.format, "split": options.split, "subset": options.subset}


def as_options(message: str) -> str:
    """Name arguments in a message as they are typed in commands: `subset=` is `--subset`."""
    return _ARGUMENT.sub(r"--\1", message)


def look_at(options: argparse.Namespace, *, is_fresh: bool = False) -> AbstractContextManager[FilesLook | None]:
    """Index the files that a command names; None: it is a dataset with an index."""
    from penstock.data.look import FilesLook

    return FilesLook.at(options.dataset, is_fresh=is_fresh, **files_settings(options))


_MOST_SHARDS = 20


def add_inspect(commands: Any) -> None:
    """Add `penstock inspect DATASET`: what a dataset consists of."""
    parser = add_dataset(
        commands,
        run_inspect,
        "show the columns, sizes and shards of a dataset",
        "the folder or URL of the dataset, or a glob of files; only its index is read",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all shards")
    parser.set_defaults(run=run_inspect)


def run_inspect(options: argparse.Namespace) -> int:
    """Print the index of a dataset."""
    from penstock.data.look import StoredDataset

    with look_at(options) as files:
        if files is not None:
            summary = summarize(files.index)
        else:
            with StoredDataset.at(options.dataset) as dataset:
                summary = summarize(dataset.read_index())
    print(json.dumps(summary) if options.json else render(summary))
    return 0


def summarize(index: Index) -> dict[str, Any]:
    """Describe what there is to say of an index, as plain values."""
    from penstock.scan.detect import shown_format

    layout = index.shards[0].layout if index.shards else None
    return {
        "num_samples": index.num_samples,
        "num_shards": len(index.shards),
        "stored_bytes": sum(part.stored.num_bytes for shard in index.shards for part in shard.parts),
        "raw_bytes": sum(part.raw.num_bytes for shard in index.shards for part in shard.parts),
        "formats": sorted({shown_format(shard.layout.format) for shard in index.shards}),
        "compressions": sorted({shard.layout.compression or "none" for shard in index.shards}),
        "hashes": list(layout.hashes) if layout else [],
        "columns": {column.name: column.encoding for column in layout.columns} if layout else {},
        "shards": [
            {
                "name": shard.name,
                "num_samples": shard.num_samples,
                "raw_bytes": sum(part.raw.num_bytes for part in shard.parts),
                "stored_bytes": sum(part.stored.num_bytes for part in shard.parts),
            }
            for shard in index.shards
        ],
    }


def render(summary: dict[str, Any]) -> str:
    """Lay a summary out for people."""
    lines = [
        f"{format_count(summary['num_samples'], 'sample')} in {format_count(summary['num_shards'], 'shard')}"
        f" ({', '.join(summary['formats']) or 'none'}; compression: {', '.join(summary['compressions']) or 'none'};"
        f" hashes: {', '.join(summary['hashes']) or 'none'})",
        f"{format_bytes(summary['stored_bytes'])} stored, {format_bytes(summary['raw_bytes'])} raw",
        "columns: " + ", ".join(f"{name}: {encoding}" for name, encoding in summary["columns"].items()),
    ]
    for shard in summary["shards"][:_MOST_SHARDS]:
        lines.append(
            f"  {shard['name']:<24} {shard['num_samples']:>10,} samples"
            f" {format_bytes(shard['stored_bytes']):>9} stored {format_bytes(shard['raw_bytes']):>9} raw"
        )
    if summary["num_shards"] > _MOST_SHARDS:
        lines.append(f"  … and {summary['num_shards'] - _MOST_SHARDS:,} more")
    return "\n".join(map(printable, lines))


_MOST_CHARACTERS = 200
_MOST_ITEMS = 16


def add_head(commands: Any) -> None:
    """Add `penstock head DATASET`: the first samples of a dataset, whatever it is made of."""
    parser = add_dataset(
        commands,
        run_head,
        "show the first samples of a dataset",
        "the folder or URL of the dataset, or a glob of files",
    )
    parser.add_argument("-n", type=int, default=5, help="the number of samples (default: 5)")
    parser.add_argument("--columns", nargs="+", help="show only these columns")
    parser.add_argument("--full", action="store_true", help="do not shorten values")
    parser.set_defaults(run=run_head)


def run_head(options: argparse.Namespace) -> int:
    """Print samples, each a line of JSON as far as JSON can hold them."""
    from penstock.data.dataset import StreamingDataset

    check_whole("-n", options.n, 0)
    settings = {name: value for name, value in files_settings(options).items() if value is not None}
    with StreamingDataset(remote=options.dataset, columns=options.columns, image_decoder="raw", **settings) as dataset:
        for sample in dataset[: min(options.n, dataset.num_samples)]:
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


def add_verify(commands: Any) -> None:
    """Add `penstock verify DATASET`: check a dataset against its index."""
    parser = add_dataset(
        commands,
        run_verify,
        "check every file, size and digest of a dataset",
        "the folder or URL of the dataset; files in a store are downloaded again, without any cache",
    )
    parser.add_argument("--values", action="store_true", help="also decode every value, with all pixels of images")
    parser.add_argument(
        "--allow-unsafe-types",
        action="store_true",
        help="with --values: also unpickle pkl columns, which can run_verify code",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> int:
    """Check, and give 1 if something is wrong."""
    from penstock.data.look import verify_dataset, verify_files

    with look_at(options, is_fresh=True) as files:
        if files is not None:
            report = verify_files(files, read_values=options.values)
        else:
            report = verify_dataset(
                options.dataset, read_values=options.values, allow_unsafe_types=options.allow_unsafe_types
            )
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        for problem in report.problems:
            print(printable(problem))
        print(
            f"{format_count(report.num_shards, 'shard')}, {format_count(report.num_samples, 'sample')},"
            f" {format_bytes(report.num_bytes)}, {format_count(report.num_digests, 'digest')} checked: "
            + (format_count(len(report.problems), "problem") if report.problems else "no problems")
        )
    return 1 if report.problems else 0


def add_index(commands: Any) -> None:
    """Add `penstock index FILES`: find the shards of files of other programs ahead of a job, once for all readers."""
    parser = add_dataset(
        commands,
        run_index,
        "index files that you read in place: Parquet, JSON lines, tar …",
        "the folder or URL of the files, or a glob; files that have not changed are not read again",
    )
    parser.add_argument(
        "--store", action="store_true", help="save the index next to the files, for everybody who reads them"
    )
    parser.add_argument(
        "--out", type=Path, help="write the index to this file; put it next to your files as .penstock-index"
    )
    parser.set_defaults(run=run_index)


def run_index(options: argparse.Namespace) -> int:
    """Index, and say what was found."""
    from penstock.data.look import StoredDataset

    with look_at(options) as files:
        if files is None:
            with StoredDataset.at(options.dataset) as dataset:
                dataset.read_index()  # which says so if there is none
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


def add_merge(commands: Any) -> None:
    """Add `penstock merge OUT [INDEX ...]`: one index for many partial datasets."""
    parser = commands.add_parser("merge", help="write one index for all datasets in the folders below a root")
    parser.add_argument("out", help="the root: a path or a URL")
    parser.add_argument(
        "indexes", nargs="*", metavar="INDEX", help="index files to merge, instead of all those below OUT"
    )
    parser.set_defaults(run=run_merge)


def run_merge(options: argparse.Namespace) -> int:
    """Merge, and say where the result is."""
    from penstock.index.paths import INDEX_NAME
    from penstock.publish.merge_index import merge_index
    from penstock.storage.base import shown_url

    merge_index(index_file_urls=options.indexes or None, out=options.out)
    print(f"wrote {shown_url(options.out).rstrip('/')}/{INDEX_NAME}")
    return 0
