"""`penstock inspect DATASET`: what a dataset consists of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.cli.files import add_files_options, look_at
from penstock.errors import printable
from penstock.units import format_bytes, format_count

if TYPE_CHECKING:
    import argparse

    from penstock.index.model import Index

_MOST_SHARDS = 20


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("inspect", help="show the columns, sizes and shards of a dataset")
    parser.add_argument("dataset", help="the folder or URL of the dataset, or a glob of files; only its index is read")
    add_files_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, with all shards")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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
