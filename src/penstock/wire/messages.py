"""What a process and its fetcher say to each other: one dataclass for each message and each answer, for both sides.

They are made when either side starts, so they have only what they need: comparing and showing them would take a class
three times as long to make, and settings of stores hold secrets.
"""
# ruff: noqa: TC001  the types of fields are looked at when messages are read

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from penstock.errors import FetcherError
from penstock.storage.base import ObjectInfo, StoreSettings
from penstock.storage.retry import RetryPolicy
from penstock.types import Place, Span
from penstock.wire.encoding import load, plain
from penstock.wire.frames import Header
from penstock.wire.item import Item, Want
from penstock.wire.quota import OpenShardQuota
from penstock.wire.settings import CachedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from typing_extensions import Buffer

AnswerT = TypeVar("AnswerT", covariant=True)


_MESSAGES: dict[str, type[Message[Any]]] = {}  # by their names, as they travel


class Message(Generic[AnswerT]):
    """What a client says; its answer is of the type in brackets."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _MESSAGES[cls.__name__] = cls  # again when `dataclass` makes it anew with slots: that one counts


# --- Answers, and what the fetcher says unasked -------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Done:
    """It was done, and there is nothing more to say."""


@dataclass(slots=True, eq=False, repr=False)
class Registered:
    """A group is known."""

    warnings: tuple[str, ...]  # for its user


@dataclass(slots=True, eq=False, repr=False)
class Fetched:
    """An item is there, or an index was opened."""

    name: str = ""  # where it lies, below the directory
    num_downloaded: int = 0  # bytes; 0: it was there already
    edition: str = ""  # that an index opened
    away: str | None = None  # why the store cannot be read: then the edition is the one that was opened last
    revision: str | None = None  # the commit that was opened, if the store has such
    has_ranges: bool = True  # whether the store of an index sends parts of objects
    warnings: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Found:
    """What was read follows, one after the other."""

    sizes: tuple[int, ...]


@dataclass(slots=True, eq=False, repr=False)
class StoreAnswer:
    """What a store says of an object; bytes that it gives follow."""

    info: ObjectInfo | None = None


@dataclass(slots=True, eq=False, repr=False)
class StreamCounts:
    """What one stream has caused since it was told last."""

    downloads: int = 0
    num_bytes: int = 0
    again: int = 0  # of the downloads: of what had been fetched before, and was evicted

    def __add__(self, other: StreamCounts) -> StreamCounts:
        return StreamCounts(
            self.downloads + other.downloads, self.num_bytes + other.num_bytes, self.again + other.again
        )


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class NodeCounts:
    """What the fetcher has done since its start, and does now."""

    downloads: int
    bytes: int
    bytes_twice: int  # of them, those that were read alone before their shard came as a whole
    retries: int
    errors: int
    evictions: int
    evicted_bytes: int
    in_flight: int
    queued: int
    pieces_in_flight: int
    concurrency: int
    bytes_per_s: float
    directories: dict[str, int]  # bytes in each, those being fetched included
    groups: int


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Progress:
    """How far a request is; for some there is no more to say than that the fetcher is alive."""

    name: str = ""
    num_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    position: int = 0  # how many come before it
    num_wanted: int = 0
    state: str = ""  # queued, running or waiting_for_space; of ranges, reading; of calls of a store, asked
    reason: str = ""  # why the store is asked again, if it is and nothing has come since


@dataclass(slots=True, eq=False, repr=False)
class GroupUpdate:
    """What a group is told unasked: what it may keep open from now on, and what its streams have caused."""

    group: int
    quota: OpenShardQuota | None = None
    counts: dict[int, StreamCounts] = field(default_factory=dict)  # by stream, since that was told last
    warnings: tuple[str, ...] = ()  # for its user

    def add(self, later: GroupUpdate) -> None:
        """Take in what is to be told besides: of several quotas the last one counts."""
        self.quota = later.quota or self.quota
        for stream, counts in later.counts.items():
            self.counts[stream] = self.counts.get(stream, StreamCounts()) + counts


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """An answer that comes later; `end` is called once it has come, or is no longer wanted. It does not travel."""

    future: Future[Any]
    progress: Callable[[], Progress]
    end: Callable[[], None] = lambda: None


def answer_of(result: Any) -> tuple[Any, Sequence[Buffer]]:
    """Return what answers a request that has ended, and the bytes that follow."""
    if not isinstance(result, list):
        return result, ()
    sizes = tuple(sum(memoryview(piece).nbytes for piece in pieces) for pieces in result)
    return Found(sizes), [piece for pieces in result for piece in pieces]


# --- Messages -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Hello(Message[Done]):
    """The first word of a client."""

    protocol: int


@dataclass(slots=True, eq=False, repr=False)
class Register(Message[Registered]):
    """There is a group of directories, which its number names from now on."""

    group: int
    streams: tuple[CachedStream, ...]
    limit_bytes: int | None


@dataclass(slots=True, eq=False, repr=False)
class Unregister(Message[Done]):
    """A group is no more."""

    group: int


@dataclass(slots=True, eq=False, repr=False)
class Expect(Message[Done]):
    """The plan of a group, instead of the one before."""

    group: int
    wants: tuple[Want, ...]


@dataclass(slots=True, eq=False, repr=False)
class Released(Message[Done]):
    """A lease was closed: there may be room now."""


@dataclass(slots=True, eq=False, repr=False)
class LeaseAcquired(Message[Done]):
    """A lease was taken on an item that had been asked for."""

    group: int
    stream: int
    identity: str


@dataclass(slots=True, eq=False, repr=False)
class Withdraw(Message[Done]):
    """The answer to a request of this connection is no longer waited for."""

    request: int


@dataclass(slots=True, eq=False, repr=False)
class GetStats(Message[NodeCounts]):
    """Return the fetcher's own counts."""


@dataclass(slots=True, eq=False, repr=False)
class GetStreamCounts(Message[GroupUpdate]):
    """Return what the streams of a group have caused and were not told yet."""

    group: int


@dataclass(slots=True, eq=False, repr=False)
class Fetch(Message[Fetched]):
    """Bring an item, and answer when it is there."""

    group: int
    stream: int
    item: Item
    is_urgent: bool


@dataclass(slots=True, eq=False, repr=False)
class Read(Message[Found]):
    """Return objects, or ranges of them; `shards` numbers those that are shards of an edition."""

    group: int
    stream: int
    places: tuple[Place, ...]
    edition: str
    shards: dict[str, int]


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class CallStore(Message[StoreAnswer]):
    """Do one thing with a store for a process that has no client of its own."""

    store: StoreSettings
    retry: RetryPolicy
    action: str
    key: str = ""  # for a list, the prefix
    span: Span | None = None
    path: str | None = None
    etag: str | None = None


def dump_message(message: Message[Any], number: int | None = None) -> Header:
    """Return the header of a message; with a number it is a request, whose answers carry the same."""
    return {"op": type(message).__name__, "id": number, "is": plain(message)}


def load_message(header: Header) -> tuple[Message[Any], int | None]:
    """Understand a header: the message, and its number if an answer is waited for."""
    name, number = header.get("op"), header.get("id")
    kind = _MESSAGES.get(str(name))
    if kind is None:
        raise FetcherError(f"a client asked for {name!r:.100}, which does not exist")
    if type(number) not in (int, type(None)):
        raise FetcherError(f"a client sent the request number {number!r:.100}, which is not a number")
    return load(kind, header.get("is")), number


def load_answer(message: Message[AnswerT], value: Any) -> AnswerT:
    """Understand the answer to a message."""
    (kind,) = get_args(vars(type(message))["__orig_bases__"][0])
    answer: AnswerT = load(kind, value)
    return answer
