"""Damages recorded datasets at random and reads them, in a process of its own with bounded memory.

    python -m tests.formats.fuzzing KIND SEED CASES FOLDER

KIND is what to damage: `shards` (bytes of open shards), `index` (fields and bytes of index files), `files` (whole
datasets on disk), or files of other programs: `lines`, `tars`, `packed` (compressed). Every case has a generator of its
own, so a failure repeats from its number alone. Prints what happened as JSON: how many cases were read and refused, the
failures, and the most memory used.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import LocalDataset
from penstock.errors import PenstockError
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.files import get_file_format
from penstock.formats.parts import load_part
from penstock.index.catalog import parse_index
from penstock.index.model import Column, FileInfo, Part
from tests.formats.golden import ROOT, recordings
from tests.formats.hostile import limit_memory, most_memory
from tests.formats.rows_damage import damage_files, damage_packed, lines, tars

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.base import ShardReader
    from penstock.index.model import IndexedShard

MORE_MB = 1024
WORDS = (0, 1, 3, 4, 8, 255, 256, 65535, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2,
    2**31,
    2**32 - 1,
    2**32,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../x",
    "/etc/passwd",
    "\0",
    "\ud800",
    "x" * 300,
    "int",
    "str",
    "bytes",
    "jpeg",
    "pil",
    "json",
    "pkl",
    "ndarray",
    "ndarray:int8:3",
    "ndarray:float64",
    "list[png]",
    "mds",
    "json",
    "csv",
    "tsv",
    "xsv",
    "zstd",
    "gz:99",
    "br",
    "snappy",
    [],
    {},
    [None],
    ["x"],
    {"x": 1},
]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A few random injuries to some bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(8)
        if what == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif what == 1 and out:
            out[at % len(out)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x5B, rng.randrange(256)))
        elif what in (2, 3):
            at = at // 4 * 4 if rng.random() < 0.7 else at
            word = rng.choice((*WORDS, len(out), len(out) - 1, len(out) + 1, rng.randrange(2 * len(out) + 1)))
            out[at : at + 4] = max(word, 0).to_bytes(4, "little")
        elif what == 4:
            del out[at:]
        elif what == 5:
            out[at:at] = rng.randbytes(rng.randrange(1, 20))
        elif what == 6:
            del out[at : at + rng.randrange(1, 20)]
        else:
            begin = rng.randrange(len(out) + 1)
            out[at:at] = out[begin : begin + rng.randrange(1, 40)]
    return bytes(out)


def respelled(document: Any, rng: random.Random) -> None:
    """Change a random field of a JSON document."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        spot = document
        while True:
            keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(spot[key], (dict, list)) and spot[key] and rng.random() < 0.9:
                spot = spot[key]
                continue
            what = rng.random()
            if what < 0.1:
                del spot[key]
            elif what < 0.2 and isinstance(spot, list):
                spot.append(copy.deepcopy(rng.choice(spot)))
            elif what < 0.3 and isinstance(spot[key], int):
                spot[key] += rng.choice((-1, 1, 8, 256))
            else:
                spot[key] = copy.deepcopy(rng.choice(VALUES))
            break


def read_all(reader: ShardReader, rng: random.Random) -> None:
    rows = [rng.randrange(len(reader)) for _ in range(min(len(reader), 40))] if len(reader) else []
    reader.read(range(min(len(reader), 100)))
    reader.read(rows)
    reader.read_columns(rows)
    reader.close()


# --- Kinds of damage ----------------------------------------------------------------------------------------


def make_shard_case() -> Callable[[random.Random], None]:
    shards: list[tuple[IndexedShard, list[bytes]]] = []
    for recording in recordings():
        for info in parse_index((recording.path / "index.json").read_bytes(), "here").shards:
            parts = [bytes(load_part(recording.path, part, info.layout.compression, None, None)) for part in info.parts]
            shards.append((_without_pickles(info), parts))

    def run(rng: random.Random) -> None:
        info, parts = rng.choice(shards)
        parts = list(parts)
        which = rng.randrange(len(parts))
        parts[which] = damaged(parts[which], rng)
        layout = info.layout
        if rng.random() < 0.3:
            layout = replace(layout, columns=_other_encodings(layout.columns, rng))
        infos = tuple(
            Part(FileInfo(part.raw.basename, len(data))) for part, data in zip(info.parts, parts, strict=True)
        )
        decoder: Any = rng.choice(("pil", "pil", "raw", "array"))
        num_samples = max(info.num_samples + rng.choice((0, 0, 0, 0, 0, 1, -1)), 0)
        shard = replace(info, layout=layout, parts=infos, num_samples=num_samples)
        read_all(get_format(layout.format).open(parts, shard, ReadOptions(image_decoder=decoder)), rng)

    return run


def _without_pickles(info: IndexedShard) -> IndexedShard:
    columns = tuple(
        Column(column.name, "bytes") if column.encoding == "pkl" else column for column in info.layout.columns
    )
    return replace(info, layout=replace(info.layout, columns=columns))


def _other_encodings(columns: tuple[Column, ...], rng: random.Random) -> tuple[Column, ...]:
    """The same columns, some of those of variable size read as something else."""
    kinds = [
        "str",
        "json",
        "ndarray",
        "ndarray:int16",
        "pil",
        "png",
        "jpeg",
        "list[pil]",
        "jpeg_array",
        "str_int",
        "str_decimal",
    ]
    return tuple(
        replace(column, encoding=rng.choice(kinds))
        if column.num_bytes is None and column.encoding not in ("int", "float") and rng.random() < 0.5
        else column
        for column in columns
    )


def make_index_case() -> Callable[[random.Random], None]:
    files = [(recording.path / "index.json").read_bytes() for recording in recordings()]
    kept = Path(__file__).parents[1] / "golden" / "fuzz"
    files += [path.read_bytes() for path in sorted(kept.glob("*.json"))]  # of files in place

    def run(rng: random.Random) -> None:
        data = rng.choice(files)
        if rng.random() < 0.5:
            data = damaged(data, rng)
        else:
            document = json.loads(data)
            respelled(document, rng)
            data = json.dumps(document).encode()
        index = parse_index(data, "here")
        for layout in {shard.layout for shard in index.shards}:
            get_format(layout.format).check(layout, ReadOptions())
        for shard in index.shards:
            if shard.parts[0].span is not None:
                get_file_format(shard.layout.format).spans(shard, None)

    return run


def make_file_case(folder: Path) -> Callable[[random.Random], None]:
    sources = [(recording.path, sorted(path.name for path in recording.path.iterdir())) for recording in recordings()]

    def run(rng: random.Random) -> None:
        source, names = rng.choice(sources)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder / "data")
        path = folder / "data" / rng.choice(names if rng.random() < 0.5 else ["index.json"])
        if path.name == "index.json" and rng.random() < 0.7:
            document = json.loads(path.read_bytes())
            respelled(document, rng)
            path.write_text(json.dumps(document))
        else:
            path.write_bytes(damaged(path.read_bytes(), rng))
        unpack_dir = rng.choice((None, folder / "unpacked"))
        validate_hash = rng.choice((None, None, "sha1"))
        with LocalDataset(folder / "data", unpack_dir=unpack_dir, validate_hash=validate_hash) as dataset:
            if len(dataset) < 10_000:
                dataset[:]
                dataset.read_columns([0, -1])
            dataset[-1]

    return run


# --- Running ------------------------------------------------------------------------------------------------


def main(kind: str, seed: str, cases: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    kinds: dict[str, Callable[[], Callable[[random.Random], None]]] = {
        "shards": make_shard_case,
        "index": make_index_case,
        "files": lambda: make_file_case(Path(folder)),
        "lines": lambda: damage_files(lines(), damaged, read_all),
        "tars": lambda: damage_files(tars(), damaged, read_all),
        "packed": lambda: damage_packed(damaged, read_all),
    }
    run = kinds[kind]()
    limit_memory(MORE_MB)
    before = most_memory()
    num_read, num_refused, failures = 0, 0, []
    for number in range(int(cases)):
        try:
            run(random.Random(f"{seed}-{number}"))
            num_read += 1
        except PenstockError as error:
            num_refused += 1
            if "MemoryError" in str(error):
                failures.append([number, str(error)])
        except BaseException as error:  # noqa: BLE001  reported to the test
            failures.append([number, f"{type(error).__name__}: {error}"[:300]])
    outcome = {"read": num_read, "refused": num_refused, "failures": failures[:10], "memory": most_memory() - before}
    print(json.dumps(outcome))


if __name__ == "__main__":
    assert ROOT.is_dir()
    main(*sys.argv[1:])
