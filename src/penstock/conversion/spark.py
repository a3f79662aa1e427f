"""`dataframe_to_mds`: the partitions of a table of Spark become shards, written by its executors."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.conversion.inputs import HandedRows, hand_over
from penstock.conversion.plan import plan_conversion
from penstock.errors import BadSampleError, ConfigError
from penstock.publish.sizes import PROBE_ROWS as _PROBE
from penstock.storage.base import url_scheme

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from penstock.publish.engines import Done
    from penstock.types import Sample

    Location = str | os.PathLike[str]

_ROWS_AT_ONCE = 1024
# Types of Spark by their short names: signed ones stay signed.
ENCODINGS = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "str",
    "binary": "bytes",
    "decimal": "str_decimal",
    "array<smallint>": "ndarray:int16",
    "array<int>": "ndarray:int32",
    "array<bigint>": "ndarray:int64",
    "array<float>": "ndarray:float32",
    "array<double>": "ndarray:float64",
}
_OPTIONS = {"hashes", "size_limit", "storage_options"}
_OVER_BINARY = ("pil", "png", "jpeg", "pkl")


def dataframe_to_mds(
    dataframe: Any,
    merge_index: bool = True,
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Sample]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Write the partitions of a Spark table as MDS, each to a folder of its own, and return (local, remote).

    A partition that Spark runs again, or twice at once, leaves one copy: its folder has its number.

    Args:
        dataframe: The table.
        merge_index: Write a joint index of all partitions, in their order.
        mds_kwargs: `out`, and what `convert` takes: `columns`, `compression` (zstd by default), `hashes`, `size_limit`
            and `storage_options`. `nulls="default"` writes 0 or nothing for a null, which is an error otherwise.
        udf_iterable: A function that gets a pandas table, some rows of a partition, and returns samples. It needs
            `columns`.
        udf_kwargs: What this function gets besides.
    """
    if dataframe is None or dataframe.isEmpty():
        raise ConfigError("dataframe_to_mds was given no rows: the table is None or empty")
    given = dict(mds_kwargs or {})
    out = given.pop("out", None)
    if out is None:
        raise ConfigError("mds_kwargs has no 'out': name the folder or URL to write to")
    local, remote = _places(out)
    columns, nulls = given.pop("columns", None), given.pop("nulls", "raise")
    for ignored in ("keep_local", "progress_bar", "max_workers", "exist_ok"):
        given.pop(ignored, None)
    if udf_iterable is not None and columns is None:
        raise ConfigError("udf_iterable makes samples of its own: name their encodings as mds_kwargs['columns']")
    columns = dict(columns) if udf_iterable is not None else infer_dataframe_schema(dataframe, columns)
    options = {name: given.pop(name) for name in _OPTIONS & given.keys() if given[name] is not None}
    options["hashes"] = _listed(options.get("hashes"))
    options["compression"] = given.pop("compression", "zstd")
    if given:
        raise ConfigError(f"mds_kwargs has {', '.join(sorted(given))}, which dataframe_to_mds does not take")
    source = SparkRows(dataframe, columns, nulls, udf_iterable, dict(udf_kwargs or {}))
    work = plan_conversion(source, remote or local, columns=columns, **options)
    if work.root.names():
        raise ConfigError(
            f"{work.root.shown} is not empty: choose another place for the table, or remove what is there"
        )
    work.begin(resume=False, overwrite=False)
    for _ in source.own_engine().run(work.make_task, range(work.num_tasks), work.root.shown):
        pass
    if merge_index:
        work.target.finish(work.num_tasks)
    return local, remote


def infer_dataframe_schema(dataframe: Any, user_defined_cols: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the encodings of the columns of a Spark table; those that are given must fit its types."""
    types = {field.name: _kind_of(field) for field in dataframe.schema.fields}
    if missing := sorted(set(user_defined_cols or ()) - types.keys()):
        raise ConfigError(f"the table has no column {missing[0]!r}: it has {', '.join(types)}")
    if user_defined_cols is not None:
        for name, encoding in user_defined_cols.items():
            _check_encoding(name, types[name], encoding)
        return dict(user_defined_cols)
    for name, kind in types.items():
        if kind not in ENCODINGS:
            raise ConfigError(
                f"column {name!r} is of Spark's type {kind}, which has no encoding: cast it, drop it, or name one in"
                " mds_kwargs['columns'], such as 'json' for structs and maps"
            )
    return {name: ENCODINGS[kind] for name, kind in types.items()}


def _kind_of(field: Any) -> str:
    return str(field.dataType.simpleString().partition("(")[0])


def is_json_compatible(data_type: Any) -> bool:
    """Return whether a type of Spark is made of what JSON keeps as it is."""
    kinds = data_type.simpleString()
    return not any(word in kinds for word in ("bigint", "double", "binary", "decimal", "date", "timestamp", "interval"))


def _check_encoding(name: str, kind: str, encoding: str) -> None:
    wanted = ENCODINGS.get(kind)
    plain = ":".join(encoding.split(":")[:2])  # without the shape of arrays
    if plain in ("json", wanted) or encoding == wanted or (kind == "binary" and encoding in _OVER_BINARY):
        return
    if kind == "bigint" and encoding == "int":
        return
    raise ConfigError(
        f"column {name!r} is of Spark's type {kind}, which cannot be stored as {encoding!r}: use {wanted!r}"
    )


def _places(out: Location | tuple[Location, Location]) -> tuple[str, str]:
    if isinstance(out, tuple | list):
        return str(out[0]), str(out[1])
    return (str(out), "") if url_scheme(str(out)) in (None, "file") else ("", str(out))


def _listed(hashes: str | Iterable[str] | None) -> tuple[str, ...]:
    return (hashes,) if isinstance(hashes, str) else tuple(hashes or ())


# --- On executors ---


class SparkRows(HandedRows):
    """The rows of a Spark table, which its executors hand over, partition by partition: none has to fit into memory."""

    def __init__(
        self,
        dataframe: Any,
        columns: Mapping[str, str] | None = None,
        nulls: str = "keep",
        udf: Callable[..., Iterable[Sample]] | None = None,
        udf_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._table, self._given = dataframe, columns
        kinds = {field.name: _kind_of(field) for field in dataframe.schema.fields}
        encodings = {name: ENCODINGS.get(kind, "") for name, kind in kinds.items()} | dict(columns or {})
        self._make = partial(_samples_of, columns=encodings, nulls=nulls, udf=udf, udf_kwargs=udf_kwargs or {})
        super().__init__(
            dataframe.rdd.getNumPartitions(),
            f"spark-{dataframe.semanticHash()}",
            lambda: dataframe.limit(_PROBE).collect(),
        )

    @property
    def columns(self) -> Mapping[str, str]:
        """The encodings that fit the types of the table."""
        return self._given or infer_dataframe_schema(self._table)

    def samples_of(self, rows: Iterable[Any]) -> Iterator[Sample]:
        """Make samples of rows of Spark, some at a time."""
        rows = iter(rows)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            yield from self._make(some)

    def own_engine(self) -> _OfPartitions:
        """Return what runs each task where its partition is."""
        return _OfPartitions(self._table)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_table": None}


class _OfPartitions:
    def __init__(self, dataframe: Any) -> None:
        self._table = dataframe

    def run(
        self,
        task: Callable[[int], Done],
        numbers: Sequence[int],
        _shown: str,
        /,
    ) -> Generator[tuple[int, Done]]:
        """Have tasks run, each over the rows of its partition."""
        if numbers:
            yield from self._table.rdd.mapPartitionsWithIndex(partial(_run_handed, task, frozenset(numbers))).collect()


def _run_handed(task: Callable[[int], Done], wanted: frozenset[int], number: int, rows: Any) -> list[tuple[int, Done]]:
    return [(number, hand_over(task, number, rows))] if number in wanted else []


def _samples_of(
    rows: list[Any],
    *,
    columns: Mapping[str, str],
    nulls: str,
    udf: Callable[..., Iterable[Sample]] | None,
    udf_kwargs: Mapping[str, Any],
) -> Iterable[Sample]:
    if udf is not None:
        import pandas as pd

        return udf(pd.DataFrame([row.asDict(recursive=True) for row in rows]), **udf_kwargs)
    return ({name: _value(name, row[name], columns[name], nulls) for name in columns} for row in rows)


def _value(name: str, value: Any, encoding: str, nulls: str) -> Any:
    if value is None and encoding:
        if nulls == "keep":
            return None
        if nulls != "default":
            raise BadSampleError(f"column {name!r} has a null: fill it, or pass mds_kwargs={{'nulls': 'default'}}")
        value = _DEFAULTS.get(encoding.partition(":")[0], 0)
    if encoding.startswith("ndarray:"):
        return np.asarray(value, encoding.split(":")[1])
    if encoding == "json" and hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    return bytes(value) if isinstance(value, bytearray) else value


_DEFAULTS = {"str": "", "bytes": b"", "ndarray": (), "json": None}
