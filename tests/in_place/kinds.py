"""The same samples in files of every format that is read in place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.types import Sample

Rows = Sequence[int]


def text_of(number: int) -> str:
    """The text of a sample, which tells its number."""
    return f"row {number} " + "ü" * (number % 7)


def sample(number: int) -> Sample:
    """A sample, as most formats can hold it."""
    return {"id": number, "text": text_of(number)}


def _parquet(path: Path, rows: Rows) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": pa.array(rows, pa.int64()), "text": [text_of(row) for row in rows]})
    # Groups of many rows that are cut off before they are large would be joined: these are large enough by padding.
    pq.write_table(table, path, row_group_size=25)


def _arrow(path: Path, rows: Rows) -> None:
    import pyarrow as pa

    table = pa.table({"id": pa.array(rows, pa.int64()), "text": [text_of(row) for row in rows]})
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)


def _json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(sample(row)) + "\n" for row in rows).encode()


def _jsonl(path: Path, rows: Rows) -> None:
    path.write_bytes(_json_lines(rows))


def _jsonl_gz(path: Path, rows: Rows) -> None:
    path.write_bytes(gzip.compress(_json_lines(rows)))


def _separated(path: Path, rows: Rows, separator: str) -> None:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator)
    writer.writerow(["id", "text"])
    writer.writerows([row, text_of(row)] for row in rows)
    path.write_text(out.getvalue())


def _csv(path: Path, rows: Rows) -> None:
    _separated(path, rows, ",")


def _tsv(path: Path, rows: Rows) -> None:
    _separated(path, rows, "\t")


def _text(path: Path, rows: Rows) -> None:
    path.write_text("".join(f"{text_of(row)}\n" for row in rows))


def _tar(path: Path, rows: Rows) -> None:
    with tarfile.open(path, "w") as out:
        for row in rows:
            for extension, data in (("cls", str(row)), ("txt", text_of(row))):
                member = tarfile.TarInfo(f"{row:06}.{extension}")
                encoded = data.encode()
                member.size = len(encoded)
                out.addfile(member, io.BytesIO(encoded))


@dataclass(frozen=True)
class Kind:
    """One format: how a file of it is written, and which sample is which."""

    name: str
    suffix: str
    write: Callable[[Path, Rows], None]
    number: Callable[[Any], int] = lambda row: int(row["id"])
    text: str = "text"  # the column of the text
    format: str = ""  # what users call it
    needs_unpacking: bool = False

    def write_files(self, folder: Path, num_files: int = 4, per_file: int = 50) -> Path:
        """Write samples, numbered through, in files of their own."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in range(num_files):
            rows = range(file * per_file, (file + 1) * per_file)
            self.write(folder / f"part-{file}{self.suffix}", rows)
        return folder

    def numbers(self, samples: Any) -> list[int]:
        """Return which samples these are, checking that they are whole."""
        found = []
        for each in samples:
            number = self.number(each)
            assert each[self.text] == text_of(number)
            found.append(number)
        return found

    def batch_numbers(self, batch: Any) -> list[int]:
        """Return which samples a collated or columnar batch holds."""
        names = list(batch)
        count = len(batch[self.text])
        return self.numbers([{name: batch[name][row] for name in names} for row in range(count)])


def _number_in_text(row: Any) -> int:
    return int(row["text"].split()[1])


KINDS = {
    kind.name: kind
    for kind in (
        Kind("parquet", ".parquet", _parquet, format="parquet", needs_unpacking=True),
        Kind("arrow", ".arrow", _arrow, format="arrow", needs_unpacking=True),
        Kind("jsonl", ".jsonl", _jsonl, format="jsonl"),
        Kind("jsonl.gz", ".jsonl.gz", _jsonl_gz, format="jsonl", needs_unpacking=True),
        Kind("csv", ".csv", _csv, format="csv"),
        Kind("tsv", ".tsv", _tsv, format="tsv"),
        Kind("text", ".txt", _text, number=_number_in_text, format="text"),
        Kind("webdataset", ".tar", _tar, number=lambda row: int(row["cls"]), text="txt", format="webdataset"),
    )
}
