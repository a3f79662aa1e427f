"""Datasets to fetch, clients as processes of their own, and a watch over fetchers that must not survive."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.cache import Cache, CachedStream
from penstock.codecs.compress import most_compressed_bytes, parse_compression
from penstock.codecs.digest import digest
from penstock.index.catalog import parse_index
from penstock.index.model import Column, FileInfo, Index, IndexedShard, Part, ShardLayout
from penstock.index.mosaic_json import dump_index
from penstock.storage.base import resolve_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HASH = "xxh64"


def content(name: str, num_bytes: int) -> bytes:
    """The bytes of a file are known from its name, so that any process can check them."""
    block = random.Random(name).randbytes(997)  # repeats: compression has something to do
    return (block * (num_bytes // len(block) + 1))[:num_bytes]


def compress(data: bytes, compression: str) -> bytes:
    codec, level = parse_compression(compression)
    out = bytearray(most_compressed_bytes(len(data)))
    return bytes(out[: codec.compress_into(data, out, level)])


@dataclass(frozen=True)
class Dataset:
    """A remote folder of shards and the cache directory they are brought to."""

    remote: Path
    local: Path
    index: Index

    @property
    def shards(self) -> range:
        """The numbers of all shards."""
        return range(len(self.index.shards))

    @property
    def infos(self) -> tuple[IndexedShard, ...]:
        """What the index says of them."""
        return tuple(self.index.shards)

    def stream(self, **options: object) -> CachedStream:
        return CachedStream(directory=self.local, store=resolve_store(str(self.remote)), **options)  # type: ignore[arg-type]

    @property
    def index_bytes(self) -> int:
        """What the index takes, which limits count as well."""
        return (self.remote / "index.json").stat().st_size

    def cache(self, limit_bytes: int | None = None, **options: object) -> Cache:
        """Open a cache with room for the index and so many bytes of shards."""
        limit = None if limit_bytes is None else limit_bytes + self.index_bytes
        return Cache([self.stream(**options)], limit_bytes=limit)

    def cached_names(self) -> set[str]:
        """The files of shards that lie in the cache."""
        if not self.local.exists():
            return set()
        return {path.name for path in self.local.iterdir() if path.is_file() and path.name != "index.json"}

    def parts_left(self) -> list[Path]:
        return list(self.local.rglob("*.part"))


def write_dataset(
    folder: Path,
    *,
    num_shards: int = 6,
    num_bytes: int = 100_000,
    num_parts: int = 1,
    compression: str | None = None,
) -> Dataset:
    remote = folder / "remote"
    remote.mkdir(parents=True)
    kind, columns = ("mds", (Column("x", "bytes"),)) if num_parts == 1 else ("json", (Column("x", "str"),))
    layout = ShardLayout(
        format=kind,
        columns=columns,
        compression=compression,
        hashes=(HASH,),
        settings={"newline": "\n"} if num_parts > 1 else {},
    )
    shards = []
    for number in range(num_shards):
        names = [f"shard.{number:05}.{suffix}" for suffix in ("data", "meta")[:num_parts]]
        parts = tuple(_write_part(remote, name, num_bytes, compression) for name in names)
        shards.append(IndexedShard(layout, 1, parts))
    data = Dataset(remote, folder / "local", Index(tuple(shards)))
    write_index(data)
    return data


def write_index(data: Dataset) -> None:
    (data.remote / "index.json").write_bytes(dump_index(data.index))


def open_dataset(folder: Path) -> Dataset:
    """The same, in another process."""
    remote = folder / "remote"
    return Dataset(remote, folder / "local", parse_index((remote / "index.json").read_bytes(), "the test"))


def _write_part(remote: Path, name: str, num_bytes: int, compression: str | None) -> Part:
    data = content(name, num_bytes)
    raw = FileInfo(name, num_bytes, digest([data], [HASH]))
    if compression is None:
        (remote / name).write_bytes(data)
        return Part(raw)
    packed = compress(data, compression)
    stored = f"{name}.{compression.partition(':')[0]}"
    (remote / stored).write_bytes(packed)
    return Part(raw, FileInfo(stored, len(packed), digest([packed], [HASH])))


def check_shard(cache: Cache, shard: int, stream: int = 0) -> None:
    """Lease a shard and compare every byte of it."""
    with cache.lease(stream, shard) as lease:
        for path in lease.paths:
            data = path.read_bytes()
            assert data == content(path.name, len(data)), f"{path} is torn"


# --- Processes ----------------------------------------------------------------------------------------------


@contextmanager
def runtime_dir() -> Iterator[Path]:
    """A meeting place for one test. It must be short; and no fetcher may be left there at the end."""
    folder, server = Path(tempfile.mkdtemp(prefix="pst-", dir="/tmp")), forkserver_pid()
    old = os.environ.get("PENSTOCK_RUNTIME_DIR")
    os.environ["PENSTOCK_RUNTIME_DIR"] = str(folder)
    try:
        yield folder
        assert not left_over(folder), f"fetchers survive: {left_over(folder)}"
    finally:
        if old is None:
            del os.environ["PENSTOCK_RUNTIME_DIR"]
        else:
            os.environ["PENSTOCK_RUNTIME_DIR"] = old
        remove_places(folder, folder, server)


# Of the test in which this process started the server that children are forked from: they find its environment.
_PLACES_OF_FORKSERVER: list[tuple[Path, Path]] = []


def forkserver_pid() -> int | None:
    """The process that children are forked from which are neither forked nor spawned, if there is one yet."""
    server: Any = forkserver._forkserver
    pid: int | None = server._forkserver_pid
    return pid


def remove_places(folder: Path, run: Path, server: int | None) -> None:
    """End the fetchers of a test, and remove its folder; at the end of all tests if children of later ones use it."""
    if server != forkserver_pid():
        _PLACES_OF_FORKSERVER.append((folder, run))
        return
    # What a fetcher does as it leaves would make the folder anew.
    for pid in fetcher_pids(run):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not fetcher_pids(run))
    if folder.exists():  # a test may have removed it
        shutil.rmtree(folder)


def remove_places_of_forkserver() -> None:
    """Remove what is left when all tests of this process are over."""
    while _PLACES_OF_FORKSERVER:
        remove_places(*_PLACES_OF_FORKSERVER.pop(), forkserver_pid())


def left_over(folder: Path) -> list[int]:
    wait_until(lambda: not fetcher_pids(folder), 10, fail=False)
    return fetcher_pids(folder)


def fetcher_pids(folder: Path) -> list[int]:
    """The fetchers that meet in a folder, by what the kernel says of all processes."""
    found = []
    wanted = os.fsencode(folder)
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
                if b"penstock.fetcher.main" not in command or wanted not in command.split(b"\0"):
                    continue
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(int(process.name))
            except OSError:
                continue  # it ended meanwhile
    return found


def wait_until(is_so: Callable[[], object], timeout_s: float = 60, *, fail: bool = True) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            assert not fail, "it never came to pass"
            return
        time.sleep(0.02)


def start_client(code: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Run a script in a process of its own, with this kit at hand."""
    root = Path(__file__).resolve().parents[2]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Undo what shells do to background jobs, which is inherited: let the process be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], timeout_s: float = 120) -> str:
    """Wait for a client, which must end well, and give what it printed."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"a client hangs: {out}\n{err}") from None
    assert process.returncode == 0, f"a client failed ({process.returncode}): {out}\n{err}"
    return out
