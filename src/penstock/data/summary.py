"""What is in a dataset: counts, lengths, values and duplicates of its columns; and its samples as a table."""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.extras import require
from penstock.status_line import StatusLine
from penstock.units import check_whole, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.types import Int64Array, Sample

    Note = Callable[[int, int], None]  # hears how many samples of how many were read
    Numbers = slice | Sequence[int] | Int64Array

_NUMBERS = (int, float, np.number, np.bool_)
_ROWS = 256  # read at a time: a sample of a dataset is some runs of rows, so that few shards are read for it
_MOST_VALUES = 16
_SHOWN = 5  # samples, in a notebook
_MOST_CHARACTERS = 200


@dataclass(slots=True)
class Spread:
    """The smallest, the mean and the largest of some numbers, and how many there are below each power of two."""

    count: int = 0
    least: float = 0.0
    mean: float = 0.0
    most: float = 0.0
    below: dict[int, int] = field(default_factory=dict)

    def add(self, numbers: Any) -> None:
        """Count some numbers; those that are not finite are left out."""
        found = np.asarray(numbers, np.float64).ravel()
        found = found[np.isfinite(found)]
        if not len(found):
            return
        least, most = float(found.min()), float(found.max())
        self.least, self.most = (min(self.least, least), max(self.most, most)) if self.count else (least, most)
        self.count += len(found)
        self.mean += (float(found.mean()) - self.mean) * len(found) / self.count
        exponents, counts = np.unique(np.frexp(np.abs(found))[1], return_counts=True)
        for exponent, count in zip(exponents.tolist(), counts.tolist(), strict=True):
            self.below[exponent] = self.below.get(exponent, 0) + count

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}, mean {self.mean:.4g}"


@dataclass(slots=True)
class ColumnSummary:
    """What is known of the values of one column, among the samples that were read."""

    kinds: Counter[str] = field(default_factory=Counter)  # types of values, and how often each comes
    nulls: int = 0
    missing: int = 0  # samples that lack it
    duplicates: int = 0  # values that came before
    numbers: Spread = field(default_factory=Spread)  # of columns of numbers
    lengths: Spread = field(default_factory=Spread)  # characters, bytes or items
    values: Counter[Any] = field(default_factory=Counter)  # whole numbers in lists, such as tokens
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # of images: width and height

    def add(self, values: Sequence[Any]) -> None:
        """Count some values."""
        found = [value for value in values if value is not None]
        self.nulls += len(values) - len(found)
        self.kinds.update(type(value).__name__ for value in found)
        self.numbers.add([value for value in found if isinstance(value, _NUMBERS)])
        images = [size for value in found if (size := _image_size(value))]
        self.sizes.update(images)
        if images:
            return
        listed = [value for value in found if isinstance(value, list | tuple | np.ndarray) and np.ndim(value)]
        self.lengths.add([len(value) for value in (listed or found) if hasattr(value, "__len__")])
        arrays = [array for value in listed if (array := np.asarray(value, _kind_of(value))).dtype.kind in "iu"]
        if arrays:
            items, counts = np.unique(np.concatenate([array.ravel() for array in arrays]), return_counts=True)
            self.values.update(dict(zip(items.tolist(), counts.tolist(), strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values; of items and sizes, those that come most often."""
        return {
            "kinds": dict(self.kinds),
            **{name: getattr(self, name) for name in ("nulls", "missing", "duplicates")},
            **{name: asdict(getattr(self, name)) for name in ("numbers", "lengths")},
            "different_values": len(self.values),
            "values": {str(value): count for value, count in self.values.most_common(_MOST_VALUES)},
            "sizes": {f"{w}x{h}": count for (w, h), count in self.sizes.most_common(_MOST_VALUES)},
        }

    def __str__(self) -> str:
        parts = [" or ".join(kind for kind, _ in self.kinds.most_common(3)) or "nothing"]
        parts += [
            f"{name} {spread}" for name, spread in (("values", self.numbers), ("length", self.lengths)) if spread.count
        ]
        if self.sizes:
            parts.append("sizes " + ", ".join(f"{w}×{h} ({n:,})" for (w, h), n in self.sizes.most_common(3)))
        if self.values:
            often = ", ".join(f"{value} ({count:,})" for value, count in self.values.most_common(3))
            parts.append(f"{format_count(len(self.values), 'different item')}, most often {often}")
        counts = {"null": self.nulls, "missing": self.missing, "seen before": self.duplicates}
        return "; ".join(parts + [f"{count:,} {name}" for name, count in counts.items() if count])


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """What is in a dataset; print it, or read its fields."""

    num_samples: int
    num_read: int  # all samples, or as many as were asked for
    duplicates: int  # samples that are the same as one before
    columns: dict[str, ColumnSummary]

    def __str__(self) -> str:
        whole = "all of them" if self.num_read == self.num_samples else f"{self.num_read:,} of them"
        lines = [f"{format_count(self.num_samples, 'sample')}, {whole} read, {self.duplicates:,} seen before"]
        return "\n".join(lines + [f"  {name}: {column}" for name, column in self.columns.items()])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, for JSON; of histograms, what comes most often."""
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        return {
            "num_samples": self.num_samples,
            "num_read": self.num_read,
            "duplicates": self.duplicates,
            "columns": columns,
        }


def summarize_samples(
    dataset: SamplesAsTables,
    columns: Sequence[str] | None,
    sample: int | None,
    seed: int,
    note: Callable[[int, int], None],
) -> DatasetSummary:
    """Read some samples of a dataset, or all, and count what is in them."""
    check_whole("sample", sample, 1)
    found: dict[str, ColumnSummary] = {name: ColumnSummary() for name in columns or ()}
    hashes: dict[str | None, list[int]] = {None: []}
    num_read = 0
    runs = choose_runs(dataset.num_samples, sample, seed)
    total = sum(map(len, runs))
    for run in runs:
        samples: list[Sample] = dataset[run]
        if columns is not None:
            samples = [{name: each[name] for name in columns if name in each} for each in samples]
        for name in dict.fromkeys([*found, *(name for each in samples for name in each)]):
            values = [each[name] for each in samples if name in each]
            column = found.setdefault(name, ColumnSummary(missing=num_read))
            column.add(values)
            column.missing += len(samples) - len(values)
            hashes.setdefault(name, []).extend(_hash(value) for value in values if value is not None)
        hashes[None].extend(map(_hash, samples))
        num_read += len(samples)
        note(num_read, total)
    for name, column in found.items():
        column.duplicates = _count_again(hashes.get(name, []))
    again = _count_again(hashes[None])
    return DatasetSummary(num_samples=dataset.num_samples, num_read=num_read, duplicates=again, columns=found)


def choose_runs(num_samples: int, sample: int | None, seed: int) -> list[range]:
    """Choose runs of rows, spread at random and in stored order, that have as many rows as are wanted."""
    runs = [range(begin, min(begin + _ROWS, num_samples)) for begin in range(0, num_samples, _ROWS)]
    if sample is None or sample >= num_samples:
        return runs
    length = max(1, min(_ROWS, sample // _MOST_VALUES))  # a small sample, too, is of several places
    places = np.random.default_rng(seed).permutation(num_samples // length)[: -(-sample // length)]
    chosen = [range(int(place) * length, int(place + 1) * length) for place in np.sort(places)]
    chosen[-1] = chosen[-1][: sample - length * (len(chosen) - 1)]
    return chosen


def _image_size(value: Any) -> tuple[int, int] | None:
    if hasattr(value, "getbands"):  # an image of PIL
        return int(value.size[0]), int(value.size[1])
    if isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[2] in (1, 3, 4):
        return value.shape[1], value.shape[0]
    return None


def _kind_of(items: Any) -> Any:
    """Return what NumPy is to make of the items of a list: a list of anything but numbers is not looked into."""
    return None if isinstance(items, np.ndarray) or all(isinstance(item, _NUMBERS) for item in items) else object


def _hash(value: Any) -> int:
    import xxhash  # not loaded with LocalDataset

    hasher = xxhash.xxh3_64()
    for piece in _pieces(value):
        hasher.update(piece)
    return hasher.intdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    """Return what tells a value from others: its type, its size, and its bytes."""
    if hasattr(value, "getbands"):
        yield f"image {value.mode} {value.size}".encode()
        yield value.tobytes()
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"array {value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            yield f"field {len(str(name))} {name}".encode()
            yield from _pieces(value[name])
    elif isinstance(value, list | tuple):
        yield f"list {len(value)}".encode()
        for each in value:
            yield from _pieces(each)
    else:
        data = value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
        yield f"{type(value).__name__} {len(data)}".encode()
        yield data


def _count_again(hashes: Sequence[int]) -> int:
    return len(hashes) - len(np.unique(np.array(hashes, np.uint64)))


class SamplesAsTables:
    """What can be asked of the samples of a dataset, and made of them; for notebooks and first looks."""

    if TYPE_CHECKING:

        @property
        def num_samples(self) -> int:
            """The number of samples."""

        def __getitem__(self, key: Any) -> Any: ...

    def stats_of(
        self,
        columns: Sequence[str] | None = None,
        *,
        sample: int | None = 10_000,
        seed: int = 0,
        progress: bool = True,
    ) -> DatasetSummary:
        """Read samples and count: nulls, duplicates, lengths, numbers, tokens in lists, and sizes of images.

        Args:
            columns: Only these columns; by default all.
            sample: How many samples to read, in runs spread over the dataset; None reads all of them.
            seed: Chooses other runs.
            progress: Show on a terminal how far it is.
        """
        line = StatusLine()

        def note(done: int, total: int) -> None:
            if progress and line.is_terminal and line.is_due():
                line.show(f"{done:,} of {total:,} samples")

        try:
            return summarize_samples(self, columns, sample, seed, note)
        finally:
            line.clear()

    def to_arrow(self, key: Numbers | None = None) -> Any:
        """Return samples as a pyarrow Table: all of them, or those of a slice or of some numbers."""
        from penstock.data.getitem import resolve_flat
        from penstock.sources.to_arrow import to_batch

        pa = require("pyarrow", extra="parquet", purpose="to_arrow()")
        ids = resolve_flat(slice(None) if key is None else key, self.num_samples)
        batches = []
        for begin in range(0, len(ids), _ROWS):
            samples: list[Mapping[str, Any]] = self[ids[begin : begin + _ROWS]]
            names = list(samples[0])
            batches.append(pa.Table.from_batches([to_batch([dict(each) for each in samples], names, begin)]))
        return pa.concat_tables(batches, promote_options="permissive") if batches else pa.table({})

    def to_pandas(self, key: Numbers | None = None) -> Any:
        """Return samples as a DataFrame of pandas: all of them, or those of a slice or of some numbers."""
        require("pandas", extra="tables", purpose="to_pandas()")
        return self.to_arrow(key).to_pandas()

    def to_polars(self, key: Numbers | None = None) -> Any:
        """Return samples as a DataFrame of Polars: all of them, or those of a slice or of some numbers."""
        polars = require("polars", extra="tables", purpose="to_polars()")
        return polars.from_arrow(self.to_arrow(key))

    def _repr_html_(self) -> str:
        """Return the first samples as a table, for notebooks."""
        samples = self[: min(_SHOWN, self.num_samples)]
        names = list(dict.fromkeys(name for each in samples for name in each))
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in names)
        rows = ("".join(f"<td>{html.escape(_shown(each.get(name)))}</td>" for name in names) for each in samples)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


def _shown(value: Any) -> str:
    if hasattr(value, "getbands"):
        return f"image of {value.size[0]}×{value.size[1]}"
    text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
