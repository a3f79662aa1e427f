"""How a dataset is saved: all settings of a save, checked, and the names of the files that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from penstock.errors import ConfigError
from penstock.index.paths import INDEX_NAME
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.publish.sizes import ShardSizes, is_shard_file
from penstock.publish.target import LEDGER_NAME, LOCK_NAME
from penstock.units import check_whole, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MANIFEST_NAME = "_manifest.json"
_SHARD = Bounded(r"shard-\d{5,}\.\w+(\.\w+)?", NAME_CHARACTERS)

SaveFormat = Literal["parquet", "arrow", "jsonl", "mds"]


def is_saved_file(name: str) -> bool:
    """Return whether a file is, by its name, one that saving leaves."""
    names = (MANIFEST_NAME, LEDGER_NAME, INDEX_NAME, LOCK_NAME)
    return name in names or bool(_SHARD.fullmatch(name)) or is_shard_file(name)


class FurtherOptions(TypedDict, total=False):
    """What `create_writer`, `save_dataset` and `save_iterator` take by name."""

    resume: bool
    num_rows: int | None
    schema: Any
    columns: Mapping[str, str] | None
    drops_extra: bool
    fingerprint: str | None
    storage_options: Mapping[str, Any] | None
    waits_for_others: bool
    allows_empty: bool
    on_rows: Callable[[int, int], None] | None


class SaveOptions(FurtherOptions, total=False):
    """What functions that save something else take by name, and pass on."""

    max_shard_size: int | str
    num_shards: int | None
    compression: str | None
    overwrite: bool


@dataclass(frozen=True, slots=True)
class SaveSettings:
    """How a dataset is saved, checked before anything is opened.

    Args:
        format: `"parquet"`, `"arrow"`, `"jsonl"` or `"mds"`.
        max_shard_size: About how many bytes a shard takes, as it is stored; of MDS, before compression.
        num_shards: Write exactly so many shards, of equally many rows, whatever their size. Needs `num_rows`.
        compression: By default Parquet's is snappy, and other formats have none.
        overwrite: Replace the dataset that was saved there. In a folder, it stays until the new one is whole.
        resume: Go on with a save that did not finish; one that did is left as it is.
        num_rows: How many rows will come.
        schema: A pyarrow schema, for Parquet and Arrow; by default columns are those of the first 256 rows.
        columns: The encodings of columns, for MDS; by default they are chosen by the first 256 rows.
        drops_extra: Leave out columns that `columns` does not name, instead of refusing them.
        fingerprint: A word that changes with the rows: with another, a save cannot be resumed.
        storage_options: Credentials and settings of the store.
        waits_for_others: Wait for another process that is saving to the same folder, instead of failing. With
            `resume`, what it has finished is then left as it is.
        allows_empty: Save a dataset without rows, too; by default that is an error.
        on_rows: Is told how many rows and bytes were written, block by block.
    """

    format: SaveFormat = "parquet"
    max_shard_size: int | str = "500MB"
    num_shards: int | None = None
    compression: str | None = None
    overwrite: bool = False
    resume: bool = False
    num_rows: int | None = None
    schema: Any = None
    columns: Mapping[str, str] | None = None
    drops_extra: bool = True
    fingerprint: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    waits_for_others: bool = False
    allows_empty: bool = False
    on_rows: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        if self.format not in get_args(SaveFormat):
            raise ConfigError(f"format={self.format!r} is unknown: use one of {', '.join(get_args(SaveFormat))}")
        check_whole("num_shards", self.num_shards, 1)
        check_whole("num_rows", self.num_rows, 0)
        if self.max_bytes < 1:
            raise ConfigError(f"max_shard_size={self.max_shard_size!r} leaves no room for a row")
        if self.schema is not None and self.format not in ("parquet", "arrow"):
            raise ConfigError("schema= is for Parquet and Arrow")
        if self.columns is not None and self.format != "mds":
            raise ConfigError("columns= is for MDS")
        if self.overwrite and self.resume:
            raise ConfigError("overwrite=True begins anew and resume=True goes on: choose one of them")

    @property
    def max_bytes(self) -> int:
        """The size of a shard."""
        return parse_bytes(self.max_shard_size)

    def sizes(self) -> ShardSizes:
        """Return what decides where a shard ends."""
        return ShardSizes(self.max_bytes, self.num_shards, self.num_rows)

    @property
    def key(self) -> dict[str, Any]:
        """All that files depend on: a save goes on only with the same."""
        return {
            "format": self.format,
            "compression": self.compression,
            "max_shard_size": None if self.num_shards else self.max_bytes,
            "num_shards": self.num_shards,
            "num_rows": self.num_rows if self.num_shards else None,
            "fingerprint": self.fingerprint,
        }
