"""`LocalDataset`: the samples of a dataset on this machine, by number."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from penstock.codecs.digest import check_hashes
from penstock.data.getitem import nest, resolve_flat, resolve_ids
from penstock.data.mosaic_names import Shards, Spanner
from penstock.data.summary import SamplesAsTables
from penstock.errors import ConfigError, EmptyDatasetError, SampleIndexError
from penstock.formats.base import ReadOptions
from penstock.order.id_spans import IdSpans
from penstock.reading.collected_rows import BatchReader
from penstock.reading.local_folder import LocalFolder
from penstock.reading.open_shards import OpenShards
from penstock.reading.schedule import rows_at_once
from penstock.reading.shard_table import check_layouts
from penstock.reading.source import OpenShard
from penstock.units import checks_making, parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import numpy as np
    from typing_extensions import Self

    from penstock.formats.encodings.base import ImageDecoder
    from penstock.index.model import Index
    from penstock.types import Columns, Int64Array, Sample

    Numbers = slice | Sequence[int] | Int64Array


@checks_making
class LocalDataset(SamplesAsTables):
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
        allow_unsafe_types: Read `pkl` columns, which can run code of their writer.
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
        check_layouts(self.index, options, str(self.local))
        if not self.index.num_samples:
            raise EmptyDatasetError(f"Stream contains no samples: {self.local}", path=str(self.local))
        self._spans = IdSpans(self.index.lengths)
        self._memory_limit = parse_bytes(memory_limit)
        self._open = partial(
            _open_shard,
            folder,
            options,
            validate_hash=None if validate_hash is None else check_hashes(validate_hash)[0],
            unpack_dir=None if unpack_dir is None else Path(unpack_dir).expanduser(),
            memory_limit=self._memory_limit,
        )
        # The memory that each open shard takes.
        self._memory_bytes = self.index.columns.unpacked_sizes * (unpack_dir is None)
        self._start()

    def __repr__(self) -> str:
        return (
            f"<LocalDataset of {len(self):,} samples in {len(self.index.shards):,} shards, local={str(self.local)!r}>"
        )

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self._spans.num_samples

    @property
    def size(self) -> int:
        """The number of samples."""
        return self._spans.num_samples

    @property
    def shards(self) -> Shards:
        """What the index says about each shard."""
        return Shards([self.index])

    @property
    def spanner(self) -> Spanner:
        """Finds the shard of a sample: `shard, row = dataset.spanner[sample]`."""
        return Spanner(self._spans)

    def __len__(self) -> int:
        return self._spans.num_samples

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Sample: ...
    @overload
    def __getitem__(self, key: Numbers) -> list[Sample]: ...
    def __getitem__(self, key: int | np.integer[Any] | Numbers) -> Sample | list[Sample]:
        ids = resolve_ids(key, self._spans.num_samples)
        return self.get_item(ids) if isinstance(ids, int) else nest(self._reader.read(ids).samples(), key)

    def __iter__(self) -> Iterator[Sample]:
        stored = self.index.columns.stored_sizes.sum()
        rows = rows_at_once(float(stored) / self.num_samples)
        for begin in range(0, self.num_samples, rows):
            yield from self._reader.read(range(begin, min(begin + rows, self.num_samples))).samples()

    def get_item(self, sample_id: int) -> Sample:
        """Return one sample by its number, counted from 0."""
        if not 0 <= sample_id < self._spans.num_samples:
            raise SampleIndexError(
                f"sample {sample_id} is out of range: the dataset has {len(self)} samples", sample=sample_id
            )
        return self._reader.read_one(sample_id)

    def read_columns(self, key: Numbers) -> Columns:
        """Return samples as columns, in the order you asked for: each an array if the values allow it, else a list."""
        ids = resolve_flat(key, self._spans.num_samples)
        return self._reader.read(ids, by_column=True).columns()

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
        sizes = self.index.columns.raw_sizes
        self._open_shards = OpenShards(self._open, self._memory_bytes, self._memory_limit, sizes=sizes)
        self._reader = BatchReader(self._spans, self._open_shards)


def _open_shard(folder: LocalFolder, options: ReadOptions, shard: int, **how: Any) -> OpenShard:
    """Open a shard of a folder; one that is compressed is unpacked into memory, or into a folder of its own."""
    return OpenShard(folder.open_shard(folder.index.shards[shard], options, **how))
