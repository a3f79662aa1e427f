"""Files on the web whose URLs have a query: presigned ones, which are good for GET alone, and secret."""

from __future__ import annotations

import logging
import re
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from penstock import JsonShardedSource, ParquetShardedSource, Stream, StreamingDataset, expand_data_files, warm_cache
from penstock.errors import AccessDeniedError, ConfigError
from tests.in_place.kinds import KINDS
from tests.servers.script import Answer, Request, ScriptedServer, run_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SECRET = "hunter2"
TODAY = f"X-Amz-Credential=key%2F1&X-Amz-Signature={SECRET}a+b/[1]*"
TOMORROW = f"X-Amz-Credential=key%2F1&X-Amz-Signature={SECRET}c"


@dataclass
class SignedFiles:
    """Files by the paths of requests, and the query that each of these must have."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)
    query: str = TODAY
    refused: int = 0

    def add(self, kind: str, count: int) -> None:
        for path in sorted(KINDS[kind].write_files(self.folder, count).iterdir()):
            self.files[f"/data/{path.name}"] = path.read_bytes()

    def answer(self, request: Request) -> Answer:
        path, _, query = request.path.partition("?")
        if request.method != "GET" or query != f"{self.query}&file={path}":
            self.refused += 1
            return Answer(403)
        data = self.files[path]
        begin, end = map(int, re.findall(r"\d+", request.headers["range"]))
        if begin >= len(data):
            return Answer(416)
        body = data[begin : end + 1]
        about = {"Content-Range": f"bytes {begin}-{begin + len(body) - 1}/{len(data)}", "ETag": f'"{path}"'}
        return Answer(206, body, about)

    def urls(self, server: ScriptedServer) -> list[str]:
        return [f"{server.url}{path}?{self.query}&file={path}" for path in self.files]


@pytest.fixture
def signed(tmp_path: Path) -> SignedFiles:
    return SignedFiles(tmp_path / "files")


@contextmanager
def nothing_told(places: Path, caplog: pytest.LogCaptureFixture) -> Iterator[list[Any]]:
    """Looks for the secret in all files below a folder, in the log, and in what a test adds."""
    caplog.set_level(logging.DEBUG)
    told: list[Any] = []
    yield told
    for path in places.rglob("*"):
        assert SECRET not in path.name
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in caplog.text + repr(told)


def ranges_of(requests: Sequence[Request]) -> set[str]:
    return {request.headers["range"] for request in requests}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_request_has_the_query_and_nothing_shown_has(
    kind: str, signed: SignedFiles, places: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed.add(kind, 2)
    with run_script(signed.answer) as server, nothing_told(places, caplog) as told:
        stream = Stream(remote=signed.urls(server))
        with StreamingDataset(streams=[stream], shuffle=True, batch_size=10) as dataset:
            numbers = KINDS[kind].numbers(dataset)
            assert sorted(numbers) == list(range(100))
            state = dataset.state_dict(30, from_beginning=True)
            told += [state, repr(dataset), repr(stream), vars(dataset).get("remote"), dataset.stats()]
        assert server.requests
        assert signed.refused == 0

        signed.query = TOMORROW  # the same files: neither what was fetched nor the state is another
        server.requests.clear()
        with StreamingDataset(remote=signed.urls(server), shuffle=True, batch_size=10) as dataset:
            dataset.load_state_dict(state)
            assert KINDS[kind].numbers(dataset) == numbers[30:]
        assert ranges_of(server.requests) == {"bytes=0-0"}
        assert signed.refused == 0


def test_an_expired_query_is_an_error_without_it(
    signed: SignedFiles, places: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed.add("jsonl", 1)
    with run_script(signed.answer) as server, nothing_told(places, caplog) as told:
        [url] = signed.urls(server)
        signed.query = TOMORROW
        with pytest.raises(AccessDeniedError, match=r"part-0\.jsonl: the server answered 403.*the query") as caught:
            StreamingDataset(remote=url)
        told += traceback.format_exception(caught.value)
        with pytest.raises(AccessDeniedError) as caught:
            JsonShardedSource(url)
        told += traceback.format_exception(caught.value)


def test_what_was_fetched_outlasts_the_query(signed: SignedFiles, places: Path) -> None:
    signed.add("parquet", 1)
    with run_script(signed.answer) as server:
        [url] = signed.urls(server)
        assert warm_cache(url).num_shards
        with StreamingDataset(remote=url) as dataset:
            signed.query = TOMORROW
            assert sorted(KINDS["parquet"].numbers(dataset)) == list(range(50))
    assert signed.refused == 0


def test_names_that_only_a_query_makes_a_file(signed: SignedFiles) -> None:
    signed.add("jsonl", 1)
    [data] = signed.files.values()
    signed.files = {"/download": data, "/a%20b/c=1/%C3%BC.jsonl": data, "/empty.jsonl": b""}
    with run_script(signed.answer) as server:
        download, escaped, empty = signed.urls(server)
        for remote in (download, [escaped], [escaped, empty]):
            with StreamingDataset(remote=remote, format="jsonl") as dataset:
                assert sorted(KINDS["jsonl"].numbers(dataset)) == list(range(50))
    assert signed.refused == 0


def test_paths_are_sent_as_they_are_written(
    signed: SignedFiles, places: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed.add("jsonl", 3)
    paths = ["/data//x%20y.jsonl", "/data/a%2fb%2B+c.jsonl", "/data/%7e.jsonl"]
    signed.files = dict(zip(paths, signed.files.values(), strict=True))
    with run_script(signed.answer) as server, nothing_told(places, caplog) as told:
        urls = signed.urls(server)
        source = JsonShardedSource(urls)
        for stream in (Stream(remote=urls), Stream(source=source), Stream(remote=expand_data_files(urls))):
            with StreamingDataset(streams=[stream]) as dataset:
                assert sorted(KINDS["jsonl"].numbers(dataset)) == list(range(150))
        assert source.shard_names == [f"{server.url}{path}" for path in paths]
        told += [source.shard_names, source.fingerprint]
        with pytest.raises(ConfigError, match="is named twice, with different queries"):
            JsonShardedSource([urls[0], f"{server.url}/data//x y.jsonl?sig=2"])
    assert signed.refused == 0


def test_sources(signed: SignedFiles, places: Path, caplog: pytest.LogCaptureFixture) -> None:
    signed.add("parquet", 2)
    with run_script(signed.answer) as server, nothing_told(places, caplog) as told:
        source = ParquetShardedSource(signed.urls(server))
        assert source.shard_names == [f"{server.url}{path}" for path in signed.files]
        samples = [sample for name in source.shard_names for sample in source.open_shard(name)]
        assert sorted(KINDS["parquet"].numbers(samples)) == list(range(100))
        with StreamingDataset(streams=[Stream(source=source)]) as dataset:
            assert sorted(KINDS["parquet"].numbers(dataset)) == list(range(100))
        told += [source, source.fingerprint, source.files, source.as_files()]
        signed.query = TOMORROW
        assert ParquetShardedSource(signed.urls(server)).fingerprint == source.fingerprint
    assert signed.refused == 0


def test_what_cannot_be_meant() -> None:
    for remote, reason in [
        ("https://host/*.parquet?sig=hunter2", r"https://host/\*\.parquet\?… cannot be a glob and have a query"),
        (["https://host/a?id=hunter2", "https://host/a?id=3"], "https://host/a is named twice, with different queries"),
        ("https://host/a.parquet?sig=hunter2#part", r"https://host/a\.parquet\?… has a fragment"),
    ]:
        with pytest.raises(ConfigError, match=f"^{reason}") as caught:
            Stream(remote=remote)
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match="only URLs of single files have queries"):
        StreamingDataset(remote="https://host/a?sig=hunter2", format="mds")


def test_a_query_goes_to_its_server_alone(signed: SignedFiles) -> None:
    signed.add("jsonl", 1)
    with run_script(signed.answer) as server, run_script(lambda _: Answer(404)) as other:
        urls = [*signed.urls(server), f"{other.url}/data/part-0.jsonl"]
        with pytest.raises(FileNotFoundError):
            JsonShardedSource(urls)
        assert {request.path for request in other.requests} == {"/data/part-0.jsonl"}
