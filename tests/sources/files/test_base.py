"""Sources of files: every format opens at every row, goes back to every place, and says what is wrong and where."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import threading
import time
from base64 import b64encode
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CsvShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    ShardedSource,
    TextShardedSource,
    expand_data_files,
)
from penstock.codecs.compress import reading_codec
from penstock.errors import (
    ConfigError,
    CorruptShardError,
    ObjectNotFoundError,
    PenstockError,
    SampleIndexError,
    StoreError,
)
from penstock.formats.columnar.parquet import read_ahead
from penstock.storage.base import open_store, resolve_store
from tests.servers.faults import FaultProxy, Faults
from tests.servers.script import Answer, Request, ScriptedServer, run_script
from tests.sources.cutting import check_cut_anywhere, plain
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.servers.azurite import AzureServer
    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server

ROWS: list[dict[str, Any]] = [{"id": n, "text": f"täxt {n}" * (n % 5), "tokens": list(range(n % 4))} for n in range(23)]
TEXTS = [{"id": str(row["id"]), "text": row["text"]} for row in ROWS]


def table() -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("tokens", pa.list_(pa.int32()))])
    return pa.Table.from_pylist(ROWS, schema=schema)


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(), sink, row_group_size=5)
    return sink.getvalue()


def arrow(*, is_file: bool) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table().schema) as writer:
        for batch in table().to_batches(max_chunksize=4):
            writer.write_batch(batch)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    return reading_codec("zstd").compress(data)


def brotli(data: bytes) -> bytes:
    return reading_codec("br").compress(data)


def json_lines(end: str = "\n", blank: str = "") -> bytes:
    return "".join(
        f"{json.dumps(row, ensure_ascii=False)}{end}{blank if row['id'] % 3 == 0 else ''}" for row in ROWS
    ).encode()


def csv_text(end: str = "\n") -> bytes:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    rows = [("id", "text"), *((row["id"], quoted(f'a,\n{row["text"]}\r\n"x"')) for row in TEXTS)]
    return "".join(f"{first},{second}{end}" for first, second in rows).encode()


CSV_ROWS = [{"id": row["id"], "text": f'a,\n{row["text"]}\r\n"x"'} for row in TEXTS]
LINES = [{"text": row["text"]} for row in TEXTS]

KINDS: dict[str, tuple[str, Callable[[], bytes], Any, list[Any]]] = {
    "parquet": ("a.parquet", parquet, ParquetShardedSource, ROWS),
    "arrow file": ("a.arrow", lambda: arrow(is_file=True), ArrowShardedSource, ROWS),
    "arrow stream": ("a.arrow", lambda: arrow(is_file=False), ArrowShardedSource, ROWS),
    "jsonl": ("a.jsonl", json_lines, JsonShardedSource, ROWS),
    "jsonl, blank lines and CRLF": ("a.jsonl", lambda: json_lines("\r\n", " \r\n\n"), JsonShardedSource, ROWS),
    "jsonl, no end": ("a.jsonl", lambda: json_lines().rstrip(), JsonShardedSource, ROWS),
    "jsonl.gz": ("a.jsonl.gz", lambda: gzip.compress(json_lines(blank="\n")), JsonShardedSource, ROWS),
    "jsonl.bz2": ("a.jsonl.bz2", lambda: bz2.compress(json_lines()), JsonShardedSource, ROWS),
    "jsonl.xz": ("a.jsonl.xz", lambda: lzma.compress(json_lines()), JsonShardedSource, ROWS),
    "json array": ("a.json", lambda: json.dumps(ROWS, indent=1).encode(), JsonShardedSource, ROWS),
    "jsonl.zst": ("a.jsonl.zst", lambda: zstd(json_lines(blank="\n")), JsonShardedSource, ROWS),
    "jsonl.br": ("a.jsonl.br", lambda: brotli(json_lines()), JsonShardedSource, ROWS),
    "json array.zst": ("a.json.zst", lambda: zstd(json.dumps(ROWS).encode()), JsonShardedSource, ROWS),
    "json array.br": ("a.json.br", lambda: brotli(json.dumps(ROWS).encode()), JsonShardedSource, ROWS),
    "json array.gz": ("a.json.gz", lambda: gzip.compress(json.dumps(ROWS).encode()), JsonShardedSource, ROWS),
    "csv": ("a.csv", csv_text, CsvShardedSource, CSV_ROWS),
    "csv, CRLF": ("a.csv", lambda: csv_text("\r\n"), CsvShardedSource, CSV_ROWS),
    "csv.gz": ("a.csv.gz", lambda: gzip.compress(csv_text()), CsvShardedSource, CSV_ROWS),
    "text": ("a.txt", lambda: "".join(f"{row['text']}\n" for row in TEXTS).encode(), TextShardedSource, LINES),
    "text, CRLF": ("a.txt", lambda: "".join(f"{row['text']}\r\n" for row in TEXTS).encode(), TextShardedSource, LINES),
}


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, Callable[[], bytes], Any, list[Any]]:
    return KINDS[request.param]


def test_a_file_opens_at_every_row_and_goes_back_to_every_place(
    kind: tuple[str, Callable[[], bytes], Any, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.formats.lines.cut._PIECE", 50)  # rows lie over several pieces
    monkeypatch.setattr("penstock.formats.columnar.format._MOST_ROWS", 3)
    name, content, make, rows = kind
    path = tmp_path / name
    path.write_bytes(content())
    source: ShardedSource = make(str(path))
    assert list(source.shard_names) == [str(path)]
    for row in range(len(rows) + 1):
        assert plain(source.open_shard_at_row(str(path), row=row)) == plain(rows[row:]), row
    for row in (-1, len(rows) + 1):
        with pytest.raises(SampleIndexError, match="does not exist"):
            list(source.open_shard_at_row(str(path), row=row))
    assert plain(check_cut_anywhere(source.__iter__)) == plain(rows)
    info = source.get_shard_info(str(path))
    assert info is not None
    assert info.byte_size == path.stat().st_size
    assert info.url == str(path)


def test_a_state_of_lines_is_a_seek(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"n": %d, "pad": "%s"}\n' % (n, b"x" * 1000) for n in range(3000)))
    samples = JsonShardedSource(str(path)).open_shard(str(path))
    samples.take(2500)
    state = samples.state_dict()
    damaged = bytearray(path.read_bytes())
    damaged[: 1000 * 2000] = b"?" * 1000 * 2000  # reading that would show
    times = path.stat()
    path.write_bytes(damaged)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = JsonShardedSource(str(path)).open_shard(str(path))
    again.load_state_dict(state)
    assert next(again)["n"] == 2500


# --- Finding ------------------------------------------------------------------------------------------------


def test_files_are_found_as_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/2.jsonl", "b/1.jsonl", "a.jsonl", "b/c/3.jsonl", "b/.hidden.jsonl", "b/_SUCCESS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"name": name}) + "\n")

    def named(files: Any) -> list[str]:
        return [sample["name"] for sample in JsonShardedSource(files)]

    root = str(tmp_path)
    assert named(f"{root}/b/*.jsonl") == ["b/1.jsonl", "b/2.jsonl"]
    assert named(f"{root}/**/*.jsonl") == ["a.jsonl", "b/1.jsonl", "b/2.jsonl", "b/c/3.jsonl"]
    assert named(f"{root}/b") == ["b/1.jsonl", "b/2.jsonl", "b/c/3.jsonl"]
    # A list keeps its order, and what is named twice is read twice.
    twice = [f"{root}/b/2.jsonl", f"{root}/a.jsonl", f"{root}/b/2.jsonl"]
    assert named(twice) == ["b/2.jsonl", "a.jsonl", "b/2.jsonl"]
    assert list(JsonShardedSource(twice).shard_names) == [twice[0], twice[1], f"{twice[0]}#2"]
    assert expand_data_files(f"{root}/b/[12].jsonl") == [f"{root}/b/1.jsonl", f"{root}/b/2.jsonl"]
    monkeypatch.chdir(tmp_path)
    relative = JsonShardedSource("b/*.jsonl")
    assert list(relative.shard_names) == ["b/1.jsonl", "b/2.jsonl"]
    for other in ("b/1.jsonl", f"{root}/b/1.jsonl", f"file://{root}/b/1.jsonl", "./b/1.jsonl"):
        assert next(relative.open_shard(other))["name"] == "b/1.jsonl"
    with pytest.raises(ConfigError, match=r"no shard 'b/9.jsonl': did you mean"):
        relative.open_shard("b/9.jsonl")


def test_what_names_nothing_is_an_error(tmp_path: Path) -> None:
    for pattern in ("*.jsonl", "nope.jsonl", "folder"):
        with pytest.raises(ObjectNotFoundError, match=pattern.replace("*", r"\*")):
            JsonShardedSource(str(tmp_path / pattern))
    with pytest.raises(ConfigError, match="does not name any file"):
        JsonShardedSource([])
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ConfigError, match="are empty"):
        JsonShardedSource(str(tmp_path / "a.jsonl"))


def test_fingerprints_follow_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    first = JsonShardedSource(str(path)).fingerprint
    assert first == JsonShardedSource(str(path)).fingerprint
    assert first != JsonShardedSource(str(path), columns=["a"]).fingerprint
    path.write_text('{"a": 1, "b": 2}\n')
    assert first != JsonShardedSource(str(path)).fingerprint


# --- Stores -------------------------------------------------------------------------------------------------


def test_files_in_a_bucket(moto: S3Server, tmp_path: Path) -> None:
    moto.make_bucket("sources")
    store = open_store(resolve_store("s3://sources/data", moto.options))
    for name, content in (
        ("1.parquet", parquet()),
        ("2.parquet", parquet()),
        ("a.jsonl.gz", gzip.compress(json_lines())),
    ):
        (tmp_path / name).write_bytes(content)
        store.upload(tmp_path / name, name)
    source = ParquetShardedSource("s3://sources/data/*.parquet", storage_options=moto.options, columns=["id"])
    assert list(source.shard_names) == ["s3://sources/data/1.parquet", "s3://sources/data/2.parquet"]
    assert [sample["id"] for sample in source] == [*range(23)] * 2
    assert len(source) == 46
    by_scheme = JsonShardedSource("s3://sources/data/a.jsonl.gz", {"s3": moto.options})
    assert plain(by_scheme.open_shard_at_row("s3://sources/data/a.jsonl.gz", row=20)) == plain(ROWS[20:])
    loader = AsyncDataLoader(source, 5, drop_last=False)
    assert sorted(int(x) for batch in loader for x in batch["id"]) == sorted([*range(23)] * 2)
    copied = pickle.loads(pickle.dumps(source))
    assert [sample["id"] for sample in copied] == [*range(23)] * 2
    assert "test-secret" not in repr(source.__dict__)


def test_files_in_a_container(azurite: AzureServer, tmp_path: Path) -> None:
    azurite.make_container("sources")
    store = open_store(resolve_store("az://sources/nested/folder", azurite.options))
    (tmp_path / "a.jsonl").write_bytes(json_lines())
    store.upload(tmp_path / "a.jsonl", "a.jsonl")
    source = JsonShardedSource("az://sources/**/*.jsonl", storage_options=azurite.options)
    assert list(source.shard_names) == ["az://sources/nested/folder/a.jsonl"]
    assert plain(source) == plain(ROWS)
    with pytest.raises(StoreError):
        JsonShardedSource("az://sources/**/*.jsonl", {**azurite.options, "account_key": "d3Jvbmc="})


def test_literal_files_of_a_web_server(nginx: WebServer) -> None:
    (nginx.files / "a.csv").write_bytes(csv_text())
    source = CsvShardedSource(f"{nginx.url}/a.csv")
    assert list(source) == CSV_ROWS
    with pytest.raises(ObjectNotFoundError):
        CsvShardedSource(f"{nginx.url}/nope.csv")


def test_reads_that_break_are_tried_again_in_the_middle_of_a_file(nginx: WebServer) -> None:
    content = b"".join(b'{"n": %d, "pad": "%s"}\n' % (n, b"x" * 2000) for n in range(5000))  # several pieces
    (nginx.files / "broken.jsonl").write_bytes(content)
    with FaultProxy(nginx.url, Faults(rate=0.5, kinds=("reset", "cut", "drop"), seed=4)) as proxy:
        source = JsonShardedSource(f"{proxy.url}/broken.jsonl")
        assert [sample["n"] for sample in source] == list(range(5000))


# --- What is read -------------------------------------------------------------------------------------------


def test_columns_and_types(tmp_path: Path) -> None:
    for name, content in (("a.parquet", parquet()), ("a.arrow", arrow(is_file=True)), ("a.jsonl", json_lines())):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.csv").write_text("n,x,t\n1,0.5,a\n2,,b\n")
    (tmp_path / "a.tsv").write_text("n\tt\n1\ta\n")
    tokens = list(ParquetShardedSource(str(tmp_path / "a.parquet"), columns=["tokens"]))
    assert isinstance(tokens[3]["tokens"], np.ndarray)
    assert tokens[3]["tokens"].dtype == np.int32
    assert list(ArrowShardedSource(str(tmp_path / "a.arrow"), columns=["id"]))[5] == {"id": 5}
    assert list(JsonShardedSource(str(tmp_path / "a.jsonl"), columns=["id"]))[5] == {"id": 5}
    typed = CsvShardedSource(str(tmp_path / "a.csv"), types={"n": "int", "x": "float"}, columns=["n", "x"])
    assert list(typed) == [{"n": 1, "x": 0.5}, {"n": 2, "x": None}]
    assert list(CsvShardedSource(str(tmp_path / "a.tsv"), delimiter="\t")) == [{"n": "1", "t": "a"}]
    (tmp_path / "a.txt").write_text("x\n\ny")
    assert list(TextShardedSource(str(tmp_path / "a.txt"), text_field="line")) == [
        {"line": "x"},
        {"line": ""},
        {"line": "y"},
    ]
    (tmp_path / "b.json").write_text('{"a":\n 1}\n{"a": 2}')
    assert list(JsonShardedSource(str(tmp_path / "b.json"), jsonl=False)) == [{"a": 1}, {"a": 2}]


def test_conditions_are_applied_where_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet())
    path = str(tmp_path / "a.parquet")
    source = ParquetShardedSource(path, columns=["text"], filter=pc.field("id") > 15)
    assert list(source) == [{"text": row["text"]} for row in ROWS[16:]]
    assert list(source.open_shard_at_row(path, row=20)) == [{"text": row["text"]} for row in ROWS[20:]]
    check_cut_anywhere(source.__iter__)
    with pytest.raises(TypeError):
        len(source)


def test_large_arrays_of_json_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.formats.content import FileContent

    rows = [{"n": n, "s": "ü" * 50} for n in range(2000)]
    content = json.dumps(rows, ensure_ascii=False).encode()
    read = 0

    def slowly(*_: Any) -> Iterator[bytes]:
        nonlocal read
        for at in range(0, len(content), 97):
            read += 97
            yield content[at : at + 97]

    (tmp_path / "a.json").write_bytes(content)
    monkeypatch.setattr(FileContent, "read", slowly)
    samples = iter(JsonShardedSource(str(tmp_path / "a.json")))
    assert samples.take(10) == rows[:10]
    assert read < len(content) / 10  # the first character was looked for before, in a few bytes
    assert list(chain(rows[:10], samples)) == rows


def test_the_next_row_group_is_begun_while_one_is_read() -> None:
    begun = [threading.Event() for _ in range(3)]

    def part(number: int) -> Iterator[int]:
        begun[number].set()
        yield from (10 * number, 10 * number + 1)

    items = read_ahead([partial(part, number) for number in range(3)])
    assert next(items) == 0
    assert begun[1].wait(10)
    assert not begun[2].is_set()  # one ahead, and no more
    assert list(items) == [1, 10, 11, 20, 21]
    again = read_ahead([partial(part, number) for number in range(3)])
    next(again)
    again.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 10
    while any(each.name == "penstock-row-group" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- What is wrong ------------------------------------------------------------------------------------------


def test_lines_that_are_wrong_are_named_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1}\n{"n": \n[3]\n{"n": 4}\n')
    samples = JsonShardedSource(str(path)).open_shard(str(path))
    assert samples.take(2) == [{"n": 0}, {"n": 1}]
    for _ in range(2):
        with pytest.raises(CorruptShardError, match=r"a\.jsonl, line 4: the line is not JSON"):
            next(samples)
    skipping = JsonShardedSource(str(path), on_error="skip")
    assert check_cut_anywhere(skipping.__iter__) == [{"n": 0}, {"n": 1}, {"n": 4}]
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n4,5,6\n7,8\n")
    with pytest.raises(CorruptShardError, match=r"a\.csv, line 3: the row has 1 fields, but the header has 2"):
        list(CsvShardedSource(str(tmp_path / "a.csv")))
    assert len(list(CsvShardedSource(str(tmp_path / "a.csv"), on_error="skip"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "make", "text"),
    [
        ("a.parquet", lambda: parquet()[:-20], ParquetShardedSource, r"a\.parquet"),
        ("a.parquet", lambda: b"x" * 100, ParquetShardedSource, r"a\.parquet"),
        ("a.arrow", lambda: arrow(is_file=True)[:300], ArrowShardedSource, r"a\.arrow"),
        ("a.arrow", lambda: b"x" * 100, ArrowShardedSource, r"a\.arrow"),
        ("a.jsonl", lambda: b"\x80\x01\x02" * 50, JsonShardedSource, r"a\.jsonl, line 1"),
        ("a.jsonl.gz", lambda: gzip.compress(json_lines())[:-20], JsonShardedSource, r"a\.jsonl\.gz"),
        ("a.json", lambda: json.dumps(ROWS).encode()[:-9], JsonShardedSource, r"a\.json"),
        ("a.json", lambda: b"[1, 2]", JsonShardedSource, "item 0 is not a JSON object, but of type int"),
        ("a.json", lambda: b"[{}] x", JsonShardedSource, "continues after its array"),
        ("a.txt", lambda: b"\xff\xfd\n", TextShardedSource, r"a\.txt, line 1: the line is not UTF-8"),
    ],
)
def test_broken_files_are_named(name: str, content: Any, make: Any, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content())
    with pytest.raises(CorruptShardError, match=text):
        list(make(str(tmp_path / name)))


def test_a_column_that_one_of_many_files_lacks_names_it(tmp_path: Path) -> None:
    (tmp_path / "1.parquet").write_bytes(parquet())
    pq.write_table(pa.table({"other": [1]}), tmp_path / "2.parquet")
    source = ParquetShardedSource(str(tmp_path / "*.parquet"), columns=["id"])
    with pytest.raises(ConfigError, match=r"2\.parquet has no column 'id': it has other"):
        list(source)
    with pytest.raises(ConfigError, match=r"has no column 'nope': it has id, text, tokens"):
        next(iter(ParquetShardedSource(str(tmp_path / "1.parquet"), columns=["nope"])))
    with pytest.raises(ConfigError, match="on_error='ignore'"):
        JsonShardedSource(str(tmp_path / "1.parquet"), on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not one ASCII character"):
        CsvShardedSource(str(tmp_path / "1.parquet"), delimiter="ab")


# --- Logins in URLs ---------------------------------------------------------------------------------------------


@contextmanager
def behind_a_login(files: Mapping[str, bytes]) -> Iterator[ScriptedServer]:
    """Serve ranges of files to those who know the password."""
    login = f"Basic {b64encode(b'bob:hunter2').decode()}"

    def answer(request: Request) -> Answer:
        data = files.get(request.path.lstrip("/"))
        if request.headers.get("authorization") != login:
            return Answer(401)
        if data is None:
            return Answer(404)
        begin, _, end = (request.headers.get("range") or f"bytes=0-{len(data)}").removeprefix("bytes=").partition("-")
        part = data[int(begin) : int(end) + 1]
        told = {"ETag": '"x"', "Content-Range": f"bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}"}
        if request.method == "HEAD":
            return Answer(200, b"", {"ETag": '"x"', "Content-Length": str(len(data))})
        return Answer(206, part, told)

    with run_script(answer) as server:
        yield server


def test_no_password_is_in_names_states_or_errors() -> None:
    lines = b"".join(b'{"n": %d}\n' % number for number in range(50))
    with behind_a_login({"a.jsonl": lines, "bad.jsonl": b'{"n": 1}\n{"n":\n'}) as server:
        host = server.url.removeprefix("http://")
        urls = [f"http://bob:hunter2@{host}/{name}" for name in ("a.jsonl", "bad.jsonl")]
        source = JsonShardedSource(urls)
        assert list(source.shard_names) == [f"http://{host}/a.jsonl", f"http://{host}/bad.jsonl"]
        infos = [source.get_shard_info(name) for name in source.shard_names]
        assert [info.url for info in infos] == list(source.shard_names)
        assert [sample["n"] for sample in source.open_shard(urls[0])] == list(range(50))  # as it was named
        samples = iter(source)
        assert next(samples)["n"] == 0
        with pytest.raises(PenstockError) as caught:
            list(source)
        everything = f"{infos} {samples.state_dict()} {source.files} {source} {caught.value} {caught.value.facts}"
        assert host in everything
        assert "hunter2" not in everything
        assert "bob" not in everything
        assert expand_data_files(urls) == urls  # which are for opening
        stranger = JsonShardedSource([f"http://bob:hunter2@{host}/a.jsonl"])
        assert source.fingerprint != stranger.fingerprint
        files = stranger.as_files()
        assert files is not None
        assert list(files.urls) == urls[:1]  # for streams that read them in place
