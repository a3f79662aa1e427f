"""The one exception tree: whatever penstock raises on purpose derives from `PenstockError`.

Each class also derives from the builtin that users of this field already catch in that place, so code written
against other readers of the same formats keeps working.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_LONGEST = 1 << 14  # characters of a message, which may hold what others sent
# Control characters, marks that turn the direction of writing, line separators, and what UTF-8 cannot spell.
_UNSEEN = (
    (0x00, 0x20), (0x7F, 0xA0), (0x61C, 0x61D), (0x200E, 0x2010), (0x2028, 0x202F), (0x2066, 0x206A), (0xD800, 0xE000),
)  # fmt: skip


def printable(text: str, *, lines: bool = False) -> str:
    """Spell out what cannot be seen, as Python does; `lines` keeps line breaks, for text that has several lines."""
    return text.translate(_spellings(lines=lines))


@cache
def _spellings(*, lines: bool) -> dict[int, str]:
    codes = (code for begin, end in _UNSEEN for code in range(begin, end))
    return {code: repr(chr(code))[1:-1] for code in codes if not (lines and code == ord("\n"))}


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question for the known word that may be meant, or nothing."""
    from difflib import get_close_matches  # seldom needed, and slow to load

    close = get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(names: Collection[str], most: int = 8) -> str:
    """Return the first of some names, and how many more there are."""
    shown = ", ".join(sorted(names)[:most])
    return f"{shown}, … {len(names) - most} more" if len(names) > most else shown


class PenstockError(Exception):
    """The base of all errors that penstock raises: catch it to catch them all.

    `error.message` is the text, and `error.facts` holds its values by name, such as the shard or the column. Errors can
    be pickled, so they keep their type when a worker process raises them. Control characters in names from outside
    are shown as escapes.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        message = printable(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…", lines=True)
        Exception.__init__(self, message)  # not super(): builtins among the bases want arguments of their own
        self.message = message
        self.facts = facts

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[PenstockError], message: str, facts: dict[str, Any]) -> PenstockError:
    return kind(message, **facts)


# --- What the user asked for makes no sense -----------------------------------------------------------------


class ConfigError(PenstockError, ValueError):
    """An argument or a combination of arguments is wrong."""


class CallError(ConfigError, TypeError):
    """Arguments that a function does not take, or lacks."""


class UnknownEncodingError(ConfigError, TypeError, KeyError, AssertionError):
    """A column encoding that its format does not have."""


class UnknownAlgorithmError(ConfigError, KeyError):
    """The name of an algorithm for ordering or dividing samples that does not exist."""


class EncodingConfigError(ConfigError, AttributeError, AssertionError):
    """A column encoding that exists, with settings that it does not take."""


class ColumnNameError(ConfigError, AssertionError):
    """A column name that its format cannot store."""


class UnknownSchemeError(ConfigError):
    """A URL scheme that no store serves."""


class NoReadableFilesError(ConfigError):
    """A repository of the Hub, or a subset of it, has no files in a format that penstock reads."""


class NoProcessGroupError(ConfigError, RuntimeError):
    """Ranks need a process group to talk to each other, and there is none yet."""


class UserCodeError(ConfigError, RuntimeError):
    """A file of your code failed while it was run; the error that it raised is the `__cause__`."""


class StageOrderError(ConfigError, RuntimeError):
    """A stage of a pipeline is in the wrong place; the message says the right one."""


class OutputExistsError(ConfigError, FileExistsError):
    """The place to write to already holds something."""


class OutputBusyError(OutputExistsError):
    """Another process is writing there just now."""


class SampleIndexError(PenstockError, IndexError, ValueError):
    """A sample number outside the dataset."""


class UnknownLengthError(PenstockError, TypeError):
    """How many samples there are is known only after reading all of them."""


class SampleKeyError(PenstockError, TypeError):
    """Something that cannot number a sample was used to index a dataset."""


class WriterClosedError(PenstockError, RuntimeError):
    """A writer was used after it had finished or failed."""


# --- The data is not what it should be ----------------------------------------------------------------------


class DataError(PenstockError):
    """Stored data, or data to be stored, is wrong."""


class BadIndexError(DataError, ValueError):
    """An index that cannot be trusted: wrong version, wrong fields, files outside its folder."""


class IndexFieldError(BadIndexError, TypeError):
    """An index entry that lacks a field or holds one of the wrong type."""


class CorruptIndexError(BadIndexError, json.JSONDecodeError):
    """An index file that is empty or is not JSON."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        json.JSONDecodeError.__init__(self, message, "", 0)
        PenstockError.__init__(self, message, **facts)


class BatchError(DataError, RuntimeError, KeyError, TypeError):
    """Samples that do not fit into one batch; names the column, and what to do."""


class EmptyDatasetError(DataError, RuntimeError, IndexError):
    """A dataset without a single sample."""


class CorruptShardError(DataError, ValueError):
    """A shard whose bytes do not fit its index, its digest or its own layout."""


class UnsafeTypeError(DataError, ValueError):
    """A column that could run code when it is read, without your permission (`allow_unsafe_types`)."""


class BadSampleError(DataError):
    """A sample that does not fit its dataset; names the column and the number of the sample."""


class FrameTimeError(BadSampleError, ValueError, AssertionError):
    """A video has no frame at the time at which a robot episode wants one."""


class MissingColumnError(BadSampleError, KeyError):
    """A sample lacks a column."""


class ExtraColumnError(BadSampleError, ValueError):
    """A sample has a column that its dataset does not have."""


class ColumnSizeError(BadSampleError, KeyError):
    """An encoded value does not have the length of its fixed-size column."""


class ColumnTypeError(BadSampleError, AttributeError, TypeError):
    """A value has a type that its column does not take."""


class ColumnValueError(BadSampleError, ValueError, AssertionError):
    """A value has the right type but cannot be stored in its column."""


class ColumnRangeError(ColumnValueError, OverflowError):
    """A number does not fit its column."""


class ShardTooLargeError(BadSampleError, ValueError):
    """A sample would push its shard past what the format can address."""


class TransformError(DataError, RuntimeError):
    """Your transform failed on a sample; the error that it raised is the `__cause__`."""


# --- Storage ------------------------------------------------------------------------------------------------


class StoreError(PenstockError):
    """A store could not do what it was asked to."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is nothing under that name."""


class LostIndexError(ObjectNotFoundError, RuntimeError):
    """There are shards of a dataset, but no index of them."""


class BucketNotFoundError(ObjectNotFoundError):
    """The bucket or container itself does not exist."""


class RequestRefusedError(StoreError):
    """A store says that the request itself is wrong, so trying again would not help."""


class ObjectChangedError(StoreError):
    """An object was replaced while it was being read, or is not the one that its index describes."""


class AccessDeniedError(StoreError, PermissionError):
    """The store refuses access."""


class StoreTimeoutError(StoreError, TimeoutError):
    """A store did not answer in time."""


# --- Cache and resume ---------------------------------------------------------------------------------------


class CacheError(PenstockError):
    """The cache of this node could not do what it was asked to."""


class CacheTooSmallError(CacheError, ValueError):
    """The cache limit is below what has to be open at once."""


class LockTimeoutError(CacheError, TimeoutError):
    """Another process held a lock for too long."""


class FetcherError(CacheError, RuntimeError):
    """The fetcher, the process that downloads for this node, could not be started or does not answer."""


class ResumeError(PenstockError, ValueError):
    """A state that does not fit the run it is loaded into."""


# --- Installation -------------------------------------------------------------------------------------------


class MissingExtraError(PenstockError, ImportError):
    """An optional library is needed but not installed."""


class NotProvidedError(PenstockError, ImportError):
    """A name of MosaicML Streaming that penstock does not provide; the message says what to use instead."""


__all__ = [name for name, value in vars().items() if isinstance(value, type) and issubclass(value, PenstockError)]
