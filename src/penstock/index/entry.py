"""How shards of a format stand in an index: each format owns its fields, an index only those that all have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import IndexFieldError
from penstock.index.shards import MAX_SHARD_BYTES, Column
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class EntryFormat(Protocol):
    """The side of a shard format that an index sees. What it inherits from here suits most; it overrides the rest.

    What a method cannot make sense of, it refuses with an `IndexFieldError` that goes on where the name of the shard
    ends: "has 'newline' that is not a string".
    """

    # Of the files of a shard, the first naming the shard. In an index the one without a suffix is `raw_data` and, if it
    # is compressed, `zip_data`; one with the suffix ".meta" is `raw_meta` and `zip_meta`.
    part_suffixes: tuple[str, ...] = ("",)
    column_fields: tuple[str, ...] = ("column_names", "column_encodings", "column_sizes")
    setting_fields: tuple[str, ...] = ()  # what a layout's `settings` hold, as JSON can hold it
    # Of a format of files that other programs write: names what its `unpack` writes, which is another version if that
    # changes. Without one, a shard is read as it is stored.
    raw_version: str = ""

    def dump_columns(self, columns: Sequence[Column]) -> dict[str, Any]:
        """Return the fields of an entry that describe the columns: those that `column_fields` names."""
        fields = {
            "column_names": [column.name for column in columns],
            "column_encodings": [column.encoding for column in columns],
            "column_sizes": [column.num_bytes for column in columns],
        }
        return {name: fields[name] for name in self.column_fields}

    def parse_columns(self, fields: Mapping[str, Any]) -> tuple[Column, ...]:
        """Understand these fields; names, encodings and sizes are checked afterwards."""
        for name in self.column_fields:
            if not isinstance(fields[name], list):
                raise IndexFieldError(f"has '{name}' that is not a list")
        names, encodings = fields["column_names"], fields["column_encodings"]
        sizes = fields["column_sizes"] if "column_sizes" in self.column_fields else [None] * len(names)
        if not len(names) == len(encodings) == len(sizes):
            raise IndexFieldError("has different numbers of column names, encodings and sizes")
        return tuple(map(Column, names, encodings, sizes))

    def check_settings(self, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Refuse values of `setting_fields` that make no sense."""
        return

    def max_samples(self, raw_sizes: Sequence[int]) -> int:  # noqa: ARG002
        """Return how many samples files of these sizes can hold at most: an index that declares more is refused."""
        return MAX_SHARD_BYTES


# One registry for the whole of a format: this floor uses the side above, `penstock.formats` all of it.
formats: Registry[Callable[[], EntryFormat]] = Registry(
    "shard format",
    group="penstock.formats",
    builtin={
        "mds": "penstock.formats.mds:MDSFormat",
        "json": "penstock.formats.text:JSONFormat",
        "csv": "penstock.formats.text:CSVFormat",
        "tsv": "penstock.formats.text:TSVFormat",
        "xsv": "penstock.formats.text:XSVFormat",
        "arrow": "penstock.formats.columnar.arrow:ArrowFormat",
        "parquet": "penstock.formats.columnar.parquet:ParquetFormat",
        "jsonl": "penstock.formats.lines.jsonl:JSONLinesFormat",
        "csv_file": "penstock.formats.lines.csv:CSVFileFormat",
        "tsv_file": "penstock.formats.lines.csv:TSVFileFormat",
        "text": "penstock.formats.lines.text:TextFileFormat",
        "webdataset": "penstock.formats.webdataset.format:WebDatasetFormat",
        "mp4": "penstock.formats.mp4.format:Mp4Format",
    },
)


def part_fields(form: EntryFormat) -> list[tuple[str, str]]:
    """Name the fields of an entry that describe each file of a shard, as it is read and as it is stored compressed."""
    kinds = [suffix.lstrip(".") or "data" for suffix in form.part_suffixes]
    return [(f"raw_{kind}", f"zip_{kind}") for kind in kinds]
