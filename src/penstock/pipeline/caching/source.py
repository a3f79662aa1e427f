"""`CachedShardedSource`: the samples of a cache, each of its parts a shard, also while others are still being built."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.stage import check_row
from penstock.data.local import LocalDataset
from penstock.errors import CacheError
from penstock.pipeline.caching.parts import part_name
from penstock.publish.settings import MANIFEST_NAME
from penstock.sources.base import ShardedSource
from penstock.sources.iterators import RowIterator
from penstock.sources.shard_info import ShardInfo
from penstock.sources.shuffling import size_of
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.data.dataset import StreamingDataset
    from penstock.pipeline.caching.background import BackgroundBuild
    from penstock.pipeline.caching.place import CachePlace
    from penstock.reading.source import CodeDigest
    from penstock.sources.iterators import SampleIterator
    from penstock.types import Sample

_ROWS_AT_ONCE = 256
_OPEN_PARTS = 4


class CachedShardedSource(ShardedSource):
    """What a cache holds, in order or by row. A part that is not built yet is waited for, where it is asked for.

    Args:
        place: The cache.
        num_parts: How many parts it has or will have.
        fingerprint: That of the source whose samples these are, without its code.
        code_digests: Of the functions that made the samples.
        builder: Who builds it, if it is not whole.
        memory_bytes: Up to how many bytes of samples that were read are held in memory.
    """

    def __init__(
        self,
        place: CachePlace,
        num_parts: int,
        fingerprint: str,
        code_digests: Sequence[CodeDigest] = (),
        *,
        builder: BackgroundBuild | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self._place, self._fingerprint, self._builder = place, fingerprint, builder
        self.code_digests = code_digests
        self._names = [part_name(number) for number in range(num_parts)]
        self._memory_bytes = memory_bytes
        self._rows: dict[int, int] = {}  # of parts that are known to be whole
        self._starts: list[int] | None = None  # of all parts, once the cache is whole
        self._start()

    def _start(self) -> None:
        self._own = threading.local()  # a dataset is for one thread
        self._held = _HeldBlocks(self._memory_bytes)

    @property
    def place(self) -> str:
        """The folder or URL of the cache: a dataset for a `StreamingDataset`, once it is whole."""
        return self._place.url

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the parts."""
        return self._names

    @property
    def order_fingerprint(self) -> str:
        """That of the source, and how it is cut."""
        return f"{self._fingerprint}-cached-{len(self._names)}"

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows of a part; waits for it."""
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, self._num_rows(number))

    def shard_lengths(self) -> list[int]:
        """Return the number of rows of all parts; waits for them."""
        starts = self._whole()
        return [end - begin for begin, end in itertools.pairwise(starts)]

    @property
    def has_random_rows(self) -> bool:
        """Rows can be read by number."""
        return True

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a part."""
        number = self.shard_number(shard_name)
        dataset, first = self._dataset(number)
        samples: list[Sample] = dataset[[first + int(row) for row in rows]] if len(rows) else []
        return samples

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        """Open a part at a row; it is waited for when its first sample is."""
        self.shard_number(shard_name)
        if row:
            check_row(shard_name, row, self.get_shard_info(shard_name).num_rows)
        return RowIterator(partial(self._read_chunks, shard_name), row)

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        number = self.shard_number(shard_name)
        length = self._num_rows(number)
        for begin in range(row - row % _ROWS_AT_ONCE, length, _ROWS_AT_ONCE):
            rows = range(begin, min(begin + _ROWS_AT_ONCE, length))
            block = self._held.get((number, begin))
            if block is None:
                block = self.read_rows(shard_name, rows)
                self._held.put((number, begin), block)
            yield block[max(0, row - begin) :]

    def close(self) -> None:
        """Have the building stop after the parts that are under way; what is built is kept."""
        if self._builder is not None:
            self._builder.stop()

    # --- Parts ----------------------------------------------------------------------------------------------

    def _num_rows(self, number: int) -> int:
        if number not in self._rows:
            if self._starts is None and self._builder is not None:
                self._rows[number] = self._builder.wait_for(number).num_rows
            else:
                self._rows[number] = self.shard_lengths()[number]
        return self._rows[number]

    def _whole(self) -> list[int]:
        """Return where each part begins, of a cache that is whole; waits for that."""
        if self._starts is None:
            if self._builder is not None:
                self._builder.wait_for_all()
            manifest = self._place.read(MANIFEST_NAME)
            if manifest is None or len(manifest["rows_of_parts"]) != len(self._names):
                raise CacheError(f"the cache at {self._place.shown} was removed or replaced: build it again")
            self._starts = [0, *np.cumsum(manifest["rows_of_parts"], dtype=np.int64).tolist()]
        return self._starts

    def _dataset(self, number: int) -> tuple[LocalDataset | StreamingDataset, int]:
        """Return a dataset that holds a part, and where in it the part begins."""
        if self._starts is None and self._builder is not None and not self._builder.is_whole:
            self._builder.wait_for(number)
            return self._open(part_name(number)), 0
        return self._open(""), self._whole()[number]

    def _open(self, name: str) -> LocalDataset | StreamingDataset:
        opened: OrderedDict[str, LocalDataset | StreamingDataset] = self._own.__dict__.setdefault(
            "datasets", OrderedDict()
        )
        if name not in opened:
            opened[name] = self._open_anew(name)
            while len(opened) > _OPEN_PARTS:
                opened.popitem(last=False)
        opened.move_to_end(name)
        return opened[name]

    def _open_anew(self, name: str) -> LocalDataset | StreamingDataset:
        folder = self._place.folder
        if folder is not None:
            return LocalDataset(folder / name)
        from penstock.data.dataset import StreamingDataset  # it loads torch, if that is installed

        url = join_url(self._place.url, name).rstrip("/")
        return StreamingDataset(remote=url, shuffle=False, storage_options=self._place.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        if self._builder is not None:
            self._whole()  # who builds it stays here
        left = {"_own": None, "_held": None, "_builder": None}
        return {**self.__dict__, **left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


class _HeldBlocks:
    """The first blocks of samples that were read, up to so many bytes.

    Each pass reads them in much the same order: to make room for later ones would mean that none is there in time.
    """

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._blocks: dict[tuple[int, int], list[Sample]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int]) -> list[Sample] | None:
        held = self._blocks.get(key)
        return None if held is None else [_copy(sample) for sample in held]

    def put(self, key: tuple[int, int], block: list[Sample]) -> None:
        if self._room <= 0:
            return
        num_bytes = sum(map(size_of, block))
        with self._lock:
            if num_bytes <= self._room and key not in self._blocks:
                self._room -= num_bytes
                self._blocks[key] = [_copy(sample) for sample in block]


def _copy(sample: Sample) -> Sample:
    """Copy a sample, because its receiver may change it."""
    return {
        name: value.copy()
        if isinstance(value, np.ndarray)
        else value
        if isinstance(value, str | bytes | int | float | None)
        else copy.deepcopy(value)
        for name, value in sample.items()
    }
