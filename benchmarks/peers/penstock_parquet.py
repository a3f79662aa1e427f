"""penstock on Parquet files as others write them, and what pyarrow takes to unpack the same files alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.common import BATCH, Result, main, timed_warm
from benchmarks.peers.streaming import WORKERS, check_samples, timed_batches, timed_samples

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_shuffled(directory: str, **options: Any) -> Any:
    """The dataset, with copies of all its shards unpacked: the first run makes them, and they are kept."""
    from penstock import StreamingDataset

    where: dict[str, Any] = {"remote": str(Path(directory, "parquet")), "local": str(Path(directory, "unpacked"))}
    for _ in StreamingDataset(**where):
        pass
    return StreamingDataset(**where, shuffle=True, batch_size=BATCH, **options)


def one_by_one(directory: str, kind: str, count: int, seconds: float) -> Result:
    check_samples(kind, iter(open_shuffled(directory)), count)
    dataset = open_shuffled(directory)
    return timed_samples(lambda: dataset, seconds)


def columnar(directory: str, column: str, seconds: float) -> Result:
    dataset = open_shuffled(directory, columnar=True)
    return timed_batches(lambda: dataset, seconds, column)


def loader(directory: str, column: str, seconds: float) -> Result:
    import torch  # loaded before any clock starts, as in a training script

    dataset = open_shuffled(directory)
    batches = torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return timed_batches(lambda: batches, seconds, column)


# --- Unpacking ------------------------------------------------------------------------------------------------


class _Object:
    """A file in memory, as a scan reads it."""

    is_compressed = False
    seek_bytes = 0

    def __init__(self, path: Path) -> None:
        self.name, self.data = path.name, path.read_bytes()
        self.num_bytes = len(self.data)

    def read(self, begin: int, end: int) -> bytes:
        return self.data[begin:end]

    def chunks(self) -> Iterator[bytes]:
        yield self.data


class _Fetched:
    """The same, as it was fetched."""

    def __init__(self, file: _Object) -> None:
        self.name, self.num_bytes, self._view = file.name, file.num_bytes, memoryview(file.data)

    def read(self, begin: int, end: int) -> memoryview:
        return self._view[begin:end]


def unpack(directory: str, out: str) -> Result:
    """Row groups of one file to files of columns, as the fetcher does it in each of its threads."""
    from penstock.formats.files import get_file_format
    from penstock.index.model import FileInfo, ObjectSpan, Part, ShardInfo, ShardLayout

    file = _Object(min(Path(directory, "parquet").iterdir()))
    form = get_file_format("parquet")
    found = form.scan(file, {})
    layout = ShardLayout(format="parquet", columns=found.columns, settings=found.settings)
    infos = []
    for number, shard in enumerate(found.shards):
        span = ObjectSpan(file.name, shard.span.begin, len(shard.span), file.num_bytes)
        raw = FileInfo(f"{number}", shard.raw_bytes, is_exact=False)
        part = Part(raw, FileInfo(f"{number}.packed", len(shard.span)), span)
        infos.append(ShardInfo(layout, shard.num_samples, (part,), shard.details))

    def work() -> int:
        for info in infos:
            with Path(out).open("wb") as target:
                form.unpack(info, None, _Fetched(file), target)
        return sum(info.num_samples for info in infos)

    return timed_warm(work)


def bare_unpack(directory: str, out: str) -> Result:
    """The same row groups decoded by pyarrow and written as Arrow files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = pa.py_buffer(min(Path(directory, "parquet").iterdir()).read_bytes())

    def work() -> int:
        file = pq.ParquetFile(pa.BufferReader(data))
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            with pa.OSFile(out, "wb") as target, pa.ipc.new_file(target, table.schema) as writer:
                writer.write_table(table)
        return int(file.metadata.num_rows)

    return timed_warm(work)


if __name__ == "__main__":
    main(
        {
            "one_by_one": one_by_one,
            "columnar": columnar,
            "loader": loader,
            "unpack": unpack,
            "bare_unpack": bare_unpack,
        }
    )
