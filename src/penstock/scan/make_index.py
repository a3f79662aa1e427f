"""From a listing to an index: every file that is not known yet is scanned, many at once.

Of files of which little is read, what all of them need next is asked of their store at once.
"""

from __future__ import annotations

import json
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from operator import lt
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import BadIndexError, ConfigError, CorruptShardError, DataError
from penstock.formats.files import get_file_format
from penstock.index.files_json import FileShard, IndexedFile, check_readable, dump_files, load_files, settings_of
from penstock.index.model import ShardLayout
from penstock.scan.detect import FIRST_BYTES, FileKind, kinds_of
from penstock.scan.objects import MissingBytes, ScannedObject
from penstock.storage.base import shown_url
from penstock.storage.many import AsksAsynchronously, read_many
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.formats.files import FileFormat, ScannedFile
    from penstock.storage.base import ObjectInfo, Store

_TAILS_AT_ONCE = 16  # each waits for its store, and does little else
_FILES_AT_ONCE = 8  # each is read as a whole
_PIECES_AT_ONCE = 16  # of all these files
_TOGETHER = 1024  # files of which little is read
_ROUNDS = 4  # a scan begins anew with each
_MOST_BYTES = 1 << 20  # asked for in a round, of one file; there may be as many of them as files

Identity = tuple[str, int, str | None]


class ScanWatcher(Protocol):
    """Hears how far a scan is, from any thread."""

    def begin(self, total_bytes: int) -> None:
        """Hear how many bytes will be read, about."""

    def add_bytes(self, num_bytes: int) -> None:
        """Hear of bytes as they come."""

    def check_wanted(self) -> None:
        """Raise once the index is no longer wanted."""


class _Unwatched(ScanWatcher):
    """Hears and does nothing."""


class ScanKeeper(Protocol):
    """Takes what a scan reads of one object, and makes the shards of it that the scan finds in the end."""

    def write(self, data: bytes, begin: int) -> None:
        """Take bytes, from any thread."""

    def publish(self, file: IndexedFile) -> None:
        """Make what can be made of the shards."""

    def close(self) -> None:
        """Forget the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """How files are scanned: where they are, what a user said of them, and what hears of progress."""

    store: Store
    url: str
    format: str | None = None  # None: seen from names and first bytes
    settings: Mapping[str, Any] = field(default_factory=dict)
    watcher: ScanWatcher = field(default_factory=_Unwatched)
    keep: Callable[[ObjectInfo], ScanKeeper | None] = lambda _: None  # what takes the bytes that are read of a file

    def make_index(self, objects: Sequence[ObjectInfo], known: Mapping[Identity, IndexedFile]) -> bytes:
        """Return the index of some files; those that are known, and unchanged, are not scanned again."""
        names = [info.key for info in objects]
        kinds = kinds_of(names, self._first_bytes, self.format, shown_url(self.url))
        form = get_file_format(kinds[0].format)
        self._check_settings(form, names, kinds)
        missing = [
            (info, kind)
            for info, kind in zip(objects, kinds, strict=True)
            if (file := known.get(_identity(info))) is None
            or FileKind(file.layout.format, file.layout.compression) != kind
        ]
        looked_at = form.tail_bytes + form.head_bytes
        self.watcher.begin(sum(min(info.num_bytes, looked_at or info.num_bytes) for info, _ in missing))
        scanned = {file.identity: file for file in self._scan_all(missing, form)}
        files = [scanned.get(_identity(info)) or known[_identity(info)] for info in objects]
        if form.has_schema:
            check_alike(files, shown_url(self.url))
        else:
            files = unite_columns(files)
        return dump_files(files, self.settings)

    def _check_settings(self, form: FileFormat, names: Sequence[str], kinds: Sequence[FileKind]) -> None:
        for name in self.settings:
            if name not in form.setting_names:
                raise ConfigError(f"{name}= does not apply to {kinds[0].format} files: leave it out")
        compressed = next((name for name, kind in zip(names, kinds, strict=True) if kind.compression), None)
        if form.raw_version and compressed is not None:
            raise ConfigError(
                f"{compressed} cannot be read: {kinds[0].format} files must not be compressed as a whole. Decompress it"
            )

    def _scan_all(self, missing: Sequence[tuple[ObjectInfo, FileKind]], form: FileFormat) -> list[IndexedFile]:
        done = self._scan_together(missing, form) if isinstance(self.store, AsksAsynchronously) else {}
        left = [number for number in range(len(missing)) if number not in done]
        if left:
            num_threads = min(len(left), _TAILS_AT_ONCE if _reads_little(form) else _FILES_AT_ONCE)
            with ThreadPoolExecutor(num_threads, thread_name_prefix="penstock-scan") as threads:
                done |= zip(left, self._scan_by(threads, [missing[number] for number in left], form), strict=True)
        return [done[number] for number in range(len(missing))]

    def _scan_by(
        self, threads: ThreadPoolExecutor, missing: Sequence[tuple[ObjectInfo, FileKind]], form: FileFormat
    ) -> list[IndexedFile]:
        ahead = max(2, _PIECES_AT_ONCE // max(2, min(len(missing), _FILES_AT_ONCE)))
        running = [threads.submit(self._scan, info, kind, form, ahead) for info, kind in missing]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for each in running:  # the first in the order of names, whichever failed first
                if each in done:
                    each.result()
            return [each.result() for each in running]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _scan_together(
        self, missing: Sequence[tuple[ObjectInfo, FileKind]], form: FileFormat
    ) -> dict[int, IndexedFile]:
        """Scan files of which little is read; those are missing in the answer that read much, or again and again."""
        found: dict[int, IndexedFile] = {}
        if not _reads_little(form) or any(kind.compression for _, kind in missing):
            return found
        for begin in range(0, len(missing), _TOGETHER):
            files = {number: self._object(*missing[number]) for number in range(len(missing))[begin:][:_TOGETHER]}
            wanted = {
                number: file.tail(form.tail_bytes) if form.tail_bytes else Span(0, min(form.head_bytes, file.num_bytes))
                for number, file in files.items()
            }
            for _ in range(_ROUNDS):
                numbers, needed = list(wanted), {}
                for at, data, info in read_many(self.store, [(files[each].name, wanted[each]) for each in numbers]):
                    number, file = numbers[at], files[numbers[at]]
                    file.hold(wanted[number], data, info)
                    file.miss(_MOST_BYTES)
                    try:
                        found[number] = self._indexed(file, *missing[number], form)
                    except MissingBytes as need:
                        needed[number] = need.span
                wanted = needed
        return found

    def _scan(self, info: ObjectInfo, kind: FileKind, form: FileFormat, ahead: int) -> IndexedFile:
        self.watcher.check_wanted()
        keeper = None if _reads_little(form) else self.keep(info)
        if keeper is None:
            return self._scan_file(self._object(info, kind, ahead), info, kind, form)
        try:
            file = self._scan_file(self._object(info, kind, ahead, keeper.write), info, kind, form)
            keeper.publish(file)
            return file
        finally:
            keeper.close()

    def _scan_file(self, file: ScannedObject, info: ObjectInfo, kind: FileKind, form: FileFormat) -> IndexedFile:
        if form.tail_bytes and kind.compression is None:
            file.fetch_tail(form.tail_bytes)
        return self._indexed(file, info, kind, form)

    def _object(
        self,
        info: ObjectInfo,
        kind: FileKind,
        ahead: int = 1,
        write: Callable[[bytes, int], None] = lambda _, __: None,
    ) -> ScannedObject:
        def take(data: bytes, begin: int) -> None:
            self.watcher.check_wanted()
            self.watcher.add_bytes(len(data))
            write(data, begin)

        return ScannedObject(self.store, info, kind.compression, take, ahead)

    def _indexed(self, file: ScannedObject, info: ObjectInfo, kind: FileKind, form: FileFormat) -> IndexedFile:
        found = form.scan(file, self.settings)
        layout = ShardLayout(
            format=kind.format, columns=found.columns, compression=kind.compression, settings=found.settings
        )
        shards = _compressed(found, file) if file.is_compressed else [_plain(info, shard) for shard in found.shards]
        indexed = IndexedFile(info.key, info.num_bytes, info.version, layout, tuple(shards))
        try:
            check_readable(indexed)
        except BadIndexError as error:
            raise CorruptShardError(
                f"{info.key} says of itself what cannot be ({error.message.partition(': ')[0]}): write it again"
            ) from error
        return indexed

    def _first_bytes(self, name: str) -> bytes:
        num_bytes = self.store.stat(name).num_bytes
        return bytes(self.store.read(name, Span(0, min(num_bytes, FIRST_BYTES))))


def _reads_little(form: FileFormat) -> bool:
    return form.tail_bytes + form.head_bytes > 0


def _identity(info: ObjectInfo) -> Identity:
    return info.key, info.num_bytes, info.version


def _plain(info: ObjectInfo, shard: Any) -> FileShard:
    if shard.span.end > info.num_bytes:
        raise CorruptShardError(f"{info.key} has a shard beyond its end: the file was cut off, or its footer is wrong")
    return FileShard(
        shard.num_samples, shard.span.begin, shard.span.end, shard.raw_bytes, shard.is_exact, shard.details
    )


def _compressed(found: ScannedFile, file: ScannedObject) -> list[FileShard]:
    """Return which stored bytes each shard is unpacked from; shards that do not lie between frames are joined."""
    stored = {start.content: start.stored for start in file.frame_starts}
    begins = [stored[shard.span.begin] for shard in found.shards if shard.span.begin in stored]
    ends = [stored.get(shard.span.end, file.num_bytes) for shard in found.shards]
    if 1 < len(found.shards) == len(begins) and all(map(lt, begins, ends)):
        return [
            FileShard(shard.num_samples, begin, end, len(shard.span), details=shard.details)
            for shard, begin, end in zip(found.shards, begins, ends, strict=True)
        ]
    if not found.shards:
        return []
    num_samples = sum(shard.num_samples for shard in found.shards)
    num_bytes = max(shard.span.end for shard in found.shards)
    details = found.shards[0].details if len(found.shards) == 1 else b""
    return [FileShard(num_samples, 0, file.num_bytes, num_bytes, details=details)]


def check_alike(files: Sequence[IndexedFile], where: str) -> None:
    """Refuse files whose columns differ: batches are made of several of them."""
    first = next((file for file in files if file.layout.columns), None)
    if first is None:
        return
    types = {column.name: column.encoding for column in first.layout.columns}
    for file in files:
        if file.layout is first.layout or file.layout.columns == first.layout.columns or not file.layout.columns:
            continue
        other = {column.name: column.encoding for column in file.layout.columns}
        for name in sorted({*types, *other}):
            if types.get(name) != other.get(name) and "null" not in (types.get(name), other.get(name)):
                raise DataError(
                    f"the files of {where} differ: column {name!r} is {types.get(name, 'missing')} in {first.name} and"
                    f" {other.get(name, 'missing')} in {file.name}. Write them with the same columns, or make a"
                    " stream for each kind"
                )


def unite_columns(files: Sequence[IndexedFile]) -> list[IndexedFile]:
    """Return each file the columns of all: any of them may lack in any row."""
    columns = {column.name: column for file in files for column in file.layout.columns}
    united = tuple(columns.values())
    return [file._replace(layout=replace(file.layout, columns=united)) for file in files]


def files_that_fit(
    data: bytes, where: str, objects: Sequence[ObjectInfo], settings: Mapping[str, Any]
) -> dict[Identity, IndexedFile]:
    """Return those files of an index that are still as it says, if it was made with the same settings."""
    document = json.loads(data)
    if not isinstance(document, dict) or settings_of(document) != dict(settings):
        return {}
    present = set(map(_identity, objects))
    return {file.identity: file for file in load_files(document, where) if file.identity in present}
