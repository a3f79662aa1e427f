"""`LocalDataset`: the samples of a dataset on this machine, by number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from penstock.codecs.digest import check_hashes
from penstock.data.getitem import nest, resolve_flat, resolve_ids
from penstock.data.mosaic_names import Shards, Spanner
from penstock.errors import ConfigError, EmptyDatasetError, SampleIndexError
from penstock.formats.base import ReadOptions
from penstock.reading.collected_rows import BatchReader
from penstock.reading.local_folder import LocalFolder
from penstock.reading.open_shards import OpenShards
from penstock.reading.shard_table import check_layouts
from penstock.reading.source import OpenShard, Source
from penstock.units import parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import numpy as np
    from typing_extensions import Self

    from penstock.formats.encodings.base import ImageDecoder
    from penstock.index.model import Index
    from penstock.types import Columns, Int64Array, Sample

    Numbers = slice | Sequence[int] | Int64Array


class LocalDataset:
    """Reads the samples of a dataset in a folder of this machine, in any order.

        dataset = LocalDataset("data/train")
        dataset[3], dataset[-1], dataset[10:20], dataset[[4, 2]]
        dataset.read_columns(range(100))

    The folder is never changed. Compressed shards are unpacked into memory, where those used last are kept, or into
    `unpack_dir`. Use a dataset from one thread only. It can be pickled and survives a fork, so every process and worker
    can have its own.

    Args:
        local: The folder of the dataset, or the one above it if you pass `split`.
        split: A folder below `local`.
        allow_unsafe_types: Read `pkl` columns, which can run code of whoever wrote them.
        image_decoder: Give images as `"pil"` images, as `"array"`s (RGB or deep gray), or the stored bytes (`"raw"`).
        columns: Read only these columns.
        validate_hash: Name of a digest to check on each file of a shard when it is opened.
        unpack_dir: A folder to keep the unpacked shards of a compressed dataset in, for this reader and later ones.
        memory_limit: How much memory unpacked shards may use. If a single shard needs more, that is an error.
    """

    def __init__(
        self,
        local: str | os.PathLike[str],
        split: str | None = None,
        *,
        allow_unsafe_types: bool = False,
        image_decoder: ImageDecoder = "pil",
        columns: Sequence[str] | None = None,
        validate_hash: str | None = None,
        unpack_dir: str | os.PathLike[str] | None = None,
        memory_limit: int | float | str = "1gb",
    ) -> None:
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is a string: pass a list of column names")
        self.local = Path(local).expanduser() / (split or "")
        self.split = split
        folder = LocalFolder.open(self.local)
        self.index: Index = folder.index
        options = ReadOptions(
            image_decoder=image_decoder,
            allow_unsafe_types=allow_unsafe_types,
            columns=None if columns is None else tuple(columns),
        )
        check_layouts(self.index, options)
        if not self.index.num_samples:
            raise EmptyDatasetError(f"Stream contains no samples: {self.local}", path=str(self.local))
        self._shards = _LocalShards(
            folder,
            options,
            validate_hash=None if validate_hash is None else check_hashes(validate_hash)[0],
            unpack_dir=None if unpack_dir is None else Path(unpack_dir).expanduser(),
            memory_limit=parse_bytes(memory_limit),
        )
        self._start()

    def __repr__(self) -> str:
        return (
            f"<LocalDataset of {len(self):,} samples in {len(self.index.shards):,} shards, local={str(self.local)!r}>"
        )

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self._shards.spans.num_samples

    @property
    def size(self) -> int:
        """The number of samples."""
        return self._shards.spans.num_samples

    @property
    def shards(self) -> Shards:
        """What the index says about each shard."""
        return Shards([self.index])

    @property
    def spanner(self) -> Spanner:
        """Finds the shard of a sample: `shard, row = dataset.spanner[sample]`."""
        return Spanner(self._shards.spans)

    def __len__(self) -> int:
        return self._shards.spans.num_samples

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Sample: ...
    @overload
    def __getitem__(self, key: Numbers) -> list[Sample]: ...
    def __getitem__(self, key: int | np.integer[Any] | Numbers) -> Sample | list[Sample]:
        ids = resolve_ids(key, self._shards.spans.num_samples)
        return self.get_item(ids) if isinstance(ids, int) else nest(self._reader.read(ids).samples(), key)

    def __iter__(self) -> Iterator[Sample]:
        stored = self.index.columns.stored_sizes.sum()
        rows = rows_at_once(float(stored) / self.num_samples)
        for begin in range(0, self.num_samples, rows):
            yield from self._reader.read(range(begin, min(begin + rows, self.num_samples))).samples()

    def get_item(self, sample_id: int) -> Sample:
        """Return one sample by its number, counted from 0."""
        if not 0 <= sample_id < self._shards.spans.num_samples:
            raise SampleIndexError(
                f"sample {sample_id} is out of range: the dataset has {len(self)} samples", sample=sample_id
            )
        return self._reader.read_one(sample_id)

    def read_columns(self, key: Numbers) -> Columns:
        """Return samples as columns, in the order you asked for: each an array if the values allow it, else a list."""
        ids = resolve_flat(key, self._shards.spans.num_samples)
        return self._reader.read_columns(ids).columns()

    def close(self) -> None:
        """Close the open shards; using the dataset again opens them anew."""
        self._open_shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_open_shards"], state["_reader"]  # open files stay in their process
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        shards = self._shards
        self._open_shards = OpenShards(
            shards.open, shards.memory_bytes, shards.memory_limit, sizes=self.index.columns.raw_sizes
        )
        self._reader = BatchReader(shards.spans, self._open_shards)


class _LocalShards(Source):
    """The shards of a folder; those that are compressed are unpacked into memory, or into a folder of their own."""

    def __init__(
        self,
        folder: LocalFolder,
        options: ReadOptions,
        *,
        validate_hash: str | None,
        unpack_dir: Path | None,
        memory_limit: int,
    ) -> None:
        super().__init__(folder.index.lengths)
        self.memory_limit = memory_limit
        self._folder, self._options, self._shards = folder, options, folder.index.shards
        self._validate_hash, self._unpack_dir = validate_hash, unpack_dir

    @property
    def memory_bytes(self) -> Int64Array:
        """The memory that each open shard takes."""
        return self._folder.index.columns.unpacked_sizes * (self._unpack_dir is None)

    def open(self, shard: int) -> OpenShard:
        """Open a shard, unpacked if need be."""
        reader = self._folder.open_shard(
            self._shards[shard],
            self._options,
            validate_hash=self._validate_hash,
            unpack_dir=self._unpack_dir,
            memory_limit=self.memory_limit,
        )
        return OpenShard(reader)


_ITER_ROWS = 256
_ITER_BYTES = 32 << 20


def rows_at_once(sample_bytes: float) -> int:
    """Return how many samples to read at a time in a pass over a dataset; images take more than they are stored in."""
    return max(1, min(_ITER_ROWS, int(_ITER_BYTES / max(1.0, sample_bytes))))
