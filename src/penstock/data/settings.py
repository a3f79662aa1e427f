"""The arguments of a dataset behind its door: each setting has one home."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.codecs.digest import check_hashes
from penstock.data.seat import SeatSettings
from penstock.data.stream import check_downloads
from penstock.errors import ConfigError
from penstock.formats.base import ReadOptions
from penstock.order.make_plan import RunSettings
from penstock.order.schedule import MixSchedule
from penstock.reading.pass_reader import PassOptions
from penstock.units import check_bool, check_mapping, check_whole, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

# What streams take from their dataset where they leave it out.
STREAM_DEFAULTS = (
    "split",
    "format",
    "types",
    "subset",
    "download_retry",
    "download_timeout",
    "validate_hash",
    "keep_zip",
    "storage_options",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """How a dataset orders, reads, decodes and shares out its samples."""

    order: RunSettings
    reading: PassOptions
    decoding: ReadOptions
    seat: SeatSettings
    stream_defaults: dict[str, Any]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> DatasetSettings:
        """Sort the arguments of a dataset, given by name; those that are not settings are left alone."""
        given = dict(arguments)
        columns, cache_limit, hash_name = given["columns"], given["cache_limit"], given["validate_hash"]
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is a string: pass a list of column names")
        check_whole("batch_size", given["batch_size"], 1)
        check_whole("predownload", given["predownload"], 0)
        for name in ("shuffle", "keep_zip", "columnar", "allow_unsafe_types", "allow_mix_change"):
            check_bool(name, given[name])
        for name in ("storage_options", "stream_config"):
            check_mapping(name, given[name])
        check_downloads(given["download_retry"], given["download_timeout"])
        if given["schedule"] is not None:
            given["schedule"] = MixSchedule.of(given["schedule"])
        _warn_of_small_predownload(given["predownload"], given["batch_size"])
        given["columns"] = None if columns is None else tuple(columns)
        given["cache_limit"] = None if cache_limit is None else parse_bytes(cache_limit)
        given["validate_hash"] = None if hash_name is None else check_hashes(hash_name)[0]
        given["order"] = given["order"] or os.environ.get("PENSTOCK_ORDER")  # for code that cannot be changed
        return cls(
            order=_take(RunSettings, given),
            reading=_take(PassOptions, given),
            decoding=_take(ReadOptions, given),
            seat=_take(SeatSettings, given),
            stream_defaults={name: given[name] for name in STREAM_DEFAULTS},
        )


def _warn_of_small_predownload(predownload: int | None, batch_size: int | None) -> None:
    if predownload is not None and batch_size is not None and predownload < batch_size:
        warnings.warn(
            f"predownload={predownload} is less than batch_size={batch_size}, so each batch waits for its shards:"
            f" set it to {batch_size} or more, or leave out predownload",
            stacklevel=4,
        )


def _take(kind: type[T], given: Mapping[str, Any]) -> T:
    """Make options of a kind from the arguments that bear the names of its fields."""
    return kind(**{field.name: given[field.name] for field in fields(kind)})  # type: ignore[arg-type]
