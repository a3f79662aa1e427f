"""Damages Parquet and Arrow files, and what is unpacked from them, and reads them in a process of its own.

    python -m tests.formats.columnar.fuzzing KIND SEED CASES

KIND is what to damage: `parquet` and `arrow` (bytes of files), `parquet footer` and `arrow footer` (of the files in
tests/golden/fuzz, read in place and by sources), `raw` (bytes of unpacked files), `index` (what the index keeps of a
shard). Every case has a generator of its own, so a failure repeats from its number alone. Prints what happened as JSON:
how many cases were read and refused, the failures, and how much the memory grew.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock import ArrowShardedSource, ParquetShardedSource
from penstock.errors import PenstockError
from penstock.formats.base import ReadOptions
from tests.formats.columnar.test_nodes import write_ipc, write_parquet
from tests.formats.fuzzing import WORDS, damaged, read_all, respelled
from tests.formats.hostile import limit_memory, most_memory
from tests.formats.in_place import InPlace, MemoryFile

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2] / "golden" / "fuzz"
CORPUS = {name: [path.read_bytes() for path in sorted(ROOT.glob(f"*.{name}"))] for name in ("parquet", "arrow")}
MORE_MB = 3072  # that can be mapped; a page may say that it unpacks to 2 GB, which pyarrow asks for and does not touch


def some_table() -> Any:
    rows = range(60)
    texts = [None if row % 7 == 0 else f"row {row} " * (row % 5) for row in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "text": texts,
            "kind": pa.array([f"kind {row % 3}" for row in rows]).dictionary_encode(),
            "tokens": [list(range(row % 6)) for row in rows],
            "vector": pa.array([[1.0, None, row] for row in rows], pa.list_(pa.float32(), 3)),
            "about": [{"a": row, "b": texts[:2]} if row % 5 else None for row in rows],
            "pairs": pa.array([[("k", row)] for row in rows], pa.map_(pa.string(), pa.int16())),
            "price": [Decimal(row).scaleb(-2) for row in rows],
            "at": pa.array(rows, pa.timestamp("ms", "UTC")),
            "flag": [row % 2 == 0 for row in rows],
        }
    )


def files() -> dict[str, list[tuple[str, bytes]]]:
    table = some_table()
    parquet = [
        write_parquet(table, compression="none", use_dictionary=False, row_group_size=25),
        write_parquet(table, compression="snappy", data_page_version="2.0"),
        write_parquet(table.select(["id", "text"]), compression="zstd", store_schema=False),
    ]
    ipc = [
        write_ipc(table, 20, is_file=True, compression=None),
        write_ipc(table, 20, is_file=False, compression=None),
        write_ipc(table, 60, is_file=False, compression="lz4"),
    ]
    return {"parquet": [("parquet", data) for data in parquet], "arrow": [("arrow", data) for data in ipc]}


def read_file(name: str, data: bytes, rng: random.Random) -> None:
    with InPlace(name, MemoryFile("a.file", data)).opened() as readers:
        for reader in readers:
            read_all(reader, rng)


def damage_file(cases: list[tuple[str, bytes]], rng: random.Random) -> None:
    name, data = rng.choice(cases)
    begin = rng.choice((0, 0, len(data) * 2 // 3))  # what says where everything is stands at the end
    read_file(name, data[:begin] + damaged(data[begin:], rng), rng)


def with_other_footer(data: bytes, rng: random.Random) -> bytes:
    """Damage the footer alone, and have its length fit."""
    magic = 4 if data.endswith(b"PAR1") else 6
    end = len(data) - magic
    begin = end - 4 - int.from_bytes(data[end - 4 : end], "little")
    footer = data[begin : end - 4]
    if rng.random() < 0.5:  # a number of Thrift's
        at = rng.randrange(len(footer))
        footer = footer[:at] + varint(rng.choice((*WORDS, 2**63 - 1, 2**64 - 1, 10**30))) + footer[at + 1 :]
    else:
        footer = damaged(footer, rng)
    return data[:begin] + footer + len(footer).to_bytes(4, "little") + data[end:]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def damage_footer(name: str, rng: random.Random, folder: Path) -> None:
    """Read a file with a damaged footer in place and by a source: both refuse it, or read it."""
    data = with_other_footer(rng.choice(CORPUS[name]), rng)
    path = folder / f"a.file.{name}"
    path.write_bytes(data)
    refused = None
    try:
        read_file(name, data, rng)
    except PenstockError as error:
        refused = error
    source = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource}[name](path)
    source.shard_lengths()
    samples = source.open_shard_at_row(str(path), rng.choice((0, 0, 1, 5)))
    samples.take(100)
    if refused is not None:
        raise refused


def damage_raw(opened: list[tuple[InPlace, int, bytes]], rng: random.Random) -> None:
    file, number, raw = rng.choice(opened)
    begin = rng.choice((0, len(raw) * 3 // 4))
    reader = file.form.open([raw[:begin] + damaged(raw[begin:], rng)], file.infos[number], ReadOptions())
    read_all(reader, rng)


def damage_index(opened: list[tuple[InPlace, int, bytes]], rng: random.Random) -> None:
    file, number, _ = rng.choice(opened)
    info = file.infos[number]
    settings = copy.deepcopy(dict(info.layout.settings))
    if rng.random() < 0.5:
        respelled(settings, rng)
        info = replace(info, layout=replace(info.layout, settings=settings))
    else:
        info = replace(info, details=damaged(info.details, rng), num_samples=rng.choice((info.num_samples, 10**9)))
    read_all(file.form.open([file.raw(info)], info, ReadOptions()), rng)


def make_damage(kind: str, folder: Path) -> Callable[[random.Random], None]:
    if kind.endswith(" footer"):
        return lambda rng: damage_footer(kind.partition(" ")[0], rng, folder)
    cases = files()
    if kind in cases:
        return lambda rng: damage_file(cases[kind], rng)
    opened = []
    for name, data in (*cases["parquet"], *cases["arrow"]):
        file = InPlace(name, MemoryFile("a.file", data))
        opened += [(file, number, file.raw(info)) for number, info in enumerate(file.infos)]
    damage = damage_raw if kind == "raw" else damage_index
    return lambda rng: damage(opened, rng)


def main(kind: str, seed: int, cases: int) -> None:
    with TemporaryDirectory() as folder:
        run(kind, seed, cases, make_damage(kind, Path(folder)))


def run(kind: str, seed: int, cases: int, damage: Callable[[random.Random], None]) -> None:
    np.seterr(all="ignore")
    before = most_memory()
    limit_memory(MORE_MB)
    counts = {"read": 0, "refused": 0}
    failures: list[Any] = []
    for number in range(cases):
        rng = random.Random(f"{kind} {seed} {number}")
        print(number, file=sys.stderr, flush=True)  # a crash shows where it was
        try:
            damage(rng)
            counts["read"] += 1
        except PenstockError as error:
            counts["refused"] += 1
            if "a.file" not in str(error):
                failures.append([number, f"names no file: {error}"])
        except BaseException as error:  # noqa: BLE001  reported to the test
            failures.append([number, repr(error)[:300]])
    print(json.dumps({**counts, "failures": failures, "memory": most_memory() - before}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
