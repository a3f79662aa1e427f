"""Finished shards that are stored: digests, compression, files, upload, on threads while the caller goes on."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.codecs.compress import most_compressed_bytes, parse_compression
from penstock.codecs.digest import digest
from penstock.codecs.unpack import new_memory
from penstock.errors import ConfigError, PenstockError, StoreError
from penstock.files import write_file
from penstock.index.model import FileInfo, IndexedShard, Part

if TYPE_CHECKING:
    import mmap

    from typing_extensions import Buffer

    from penstock.formats.base import ShardBuilder
    from penstock.index.model import ShardLayout
    from penstock.publish.target import Target


class _Scratch(threading.local):
    """Memory that a thread uses again for its next shard: touching fresh memory costs more than copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, mmap.mmap] = {}

    def get(self, name: str, num_bytes: int) -> memoryview:
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < num_bytes:
            buffer = self._buffers[name] = new_memory(max(num_bytes, 1))
        return memoryview(buffer)[:num_bytes]


_scratch = _Scratch()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingShard:
    """All it takes to store one shard and to describe it in an index."""

    builder: ShardBuilder
    layout: ShardLayout
    names: tuple[str, ...]  # of its parts, raw
    target: Target

    def store(self) -> IndexedShard:
        """Store the shard; only afterwards is its memory free again."""
        num_samples = self.builder.num_samples
        parts = zip(self.names, self.builder.build(), strict=True)
        info = IndexedShard(self.layout, num_samples, tuple(self._store_part(name, pieces) for name, pieces in parts))
        self.builder.release()
        # The first part stands for the whole shard, so it arrives last.
        self.target.keep(part.stored.basename for part in reversed(info.parts))
        return info

    def _store_part(self, name: str, pieces: list[Buffer]) -> Part:
        hashes = self.layout.hashes
        raw = FileInfo(name, sum(memoryview(piece).nbytes for piece in pieces), digest(pieces, hashes))
        if self.layout.compression is None:
            write_file(self.target.folder / name, pieces, flush=self.target.flushes)
            return Part(raw)
        codec, level = parse_compression(self.layout.compression)
        out = _scratch.get("packed", most_compressed_bytes(raw.num_bytes))
        packed = out[: codec.compress_into(_contiguous(pieces, raw.num_bytes), out, level)]
        packed_name = f"{name}.{codec.name}"
        write_file(self.target.folder / packed_name, [packed], flush=self.target.flushes)
        return Part(raw, FileInfo(packed_name, packed.nbytes, digest([packed], hashes)))


def _contiguous(pieces: list[Buffer], num_bytes: int) -> memoryview:
    """Return pieces as one run of bytes, copying only if they are many."""
    if len(pieces) == 1:
        return memoryview(pieces[0]).cast("B")
    out, begin = _scratch.get("raw", num_bytes), 0
    for piece in pieces:
        end = begin + memoryview(piece).nbytes
        out[begin:end] = memoryview(piece).cast("B")
        begin = end
    return out


class ShardQueue:
    """Stores shards in any order and describes them in the order of submission.

    At most one more than there are threads is held, so memory stays at a few shards. The first failure ends it all.
    """

    def __init__(self, max_workers: int | None) -> None:
        if max_workers is not None and max_workers < 1:
            raise ConfigError(f"max_workers={max_workers} is too small: use 1 or more")
        self._num_threads = max_workers or min(4, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="penstock-writer")
        self._submitted: list[tuple[str, Future[IndexedShard]]] = []
        self._running: set[Future[IndexedShard]] = set()
        self.has_failed = False

    def submit(self, shard: PendingShard) -> None:
        """Hand over a shard, waiting while too many are being stored."""
        while len(self._running) > self._num_threads and not self.has_failed:
            _, self._running = wait(self._running, return_when=FIRST_COMPLETED)
        self.raise_failure()
        future = self._pool.submit(shard.store)
        future.add_done_callback(self._notice)
        self._running.add(future)
        self._submitted.append((shard.names[0], future))

    def results(self) -> list[IndexedShard]:
        """Wait for all shards and give their descriptions."""
        wait(self._running)
        self.raise_failure()
        return [future.result() for _, future in self._submitted]

    def raise_failure(self) -> None:
        """Raise the first failure, if there is one, with the name of its shard, once nothing runs any more."""
        if not self.has_failed:
            return
        self.close()
        for name, future in self._submitted:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, PenstockError):
                raise type(error)(f"cannot write shard {name}: {error.message}", shard=name) from error
            if error is not None:
                raise StoreError(f"cannot write shard {name}: {error!r}", shard=name) from error

    def written(self) -> list[IndexedShard]:
        """Return the shards that are stored by now."""
        done = [future for _, future in self._submitted if future.done() and not future.cancelled()]
        return [future.result() for future in done if future.exception() is None]

    def close(self) -> None:
        """Let those that are being stored end, drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _notice(self, future: Future[IndexedShard]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self.has_failed = True
