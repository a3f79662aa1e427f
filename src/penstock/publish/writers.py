"""One writer for each shard format."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.errors import ConfigError
from penstock.publish.writer import Writer

_Kind = TypeVar("_Kind", bound="type[Writer]")


def _with_arguments(kind: _Kind) -> _Kind:
    """Have `help()` of a writer show the arguments, which are the same for all of them."""
    if kind.__doc__ and Writer.__doc__:  # python -OO keeps no docstrings
        heading = "\n\n    Args:\n"
        words, _, own = kind.__doc__.partition(heading)
        kind.__doc__ = words.rstrip() + heading + own.rstrip(" ") + Writer.__doc__.partition(heading)[2]
    return kind


@_with_arguments
class MDSWriter(Writer):
    """Writes MDS shards: binary rows with columns of any type.

        with MDSWriter(out="data/train", columns={"id": "int", "tokens": "ndarray:int32"}) as writer:
            writer.write({"id": 0, "tokens": np.arange(8, dtype=np.int32)})

    The index is written when the `with` block ends; without it, the shards cannot be read.
    """

    format_name = "mds"


class _TextWriter(Writer):
    format_arguments = frozenset({"newline"})

    def __init__(self, *, newline: str = "\n", **options: Any) -> None:
        if not newline:
            raise ConfigError("newline is empty, so lines would run together: pass at least one character")
        super().__init__(newline=newline, **options)


@_with_arguments
class JSONWriter(_TextWriter):
    """Writes JSON shards: one JSON object per line, with `str`, `int` and `float` columns.

    Args:
        newline: What ends a line.
    """

    format_name = "json"


@_with_arguments
class CSVWriter(_TextWriter):
    """Writes CSV shards: values separated by commas, without quoting, so no value may contain a comma.

    Args:
        newline: What ends a line.
    """

    format_name = "csv"


@_with_arguments
class TSVWriter(_TextWriter):
    """Writes TSV shards: values separated by tabs, without quoting, so no value may contain a tab.

    Args:
        newline: What ends a line.
    """

    format_name = "tsv"


@_with_arguments
class XSVWriter(_TextWriter):
    """Writes XSV shards: values with a separator of your choice between them, which no value may contain.

    Args:
        separator: What stands between the values of a line.
        newline: What ends a line.
    """

    format_name = "xsv"
    format_arguments = frozenset({"newline", "separator"})

    def __init__(self, *, separator: str, **options: Any) -> None:
        if not separator:
            raise ConfigError("separator is empty, so values would run together: pass at least one character")
        super().__init__(separator=separator, **options)
