"""Planted secrets show up nowhere: not in what is shown, not in what is kept, whatever goes wrong."""

from __future__ import annotations

import base64
import json
import logging
import re
import traceback
import uuid
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import MDSWriter, Stream, StreamingDataset, merge_index
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.storage.base import open_store, resolve_store
from tests.cache.kit import fetcher_pids
from tests.servers.process import free_port
from tests.servers.script import Answer, Request, run_script
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.s3 import S3Server

# By name, not spelled out where they are used: a traceback shows lines of this file.
USER, PASSWORD = "planted-user", "planted-password"
HEADER, SIGNATURE, VARIABLE = "planted-header", "planted-sig", "planted-env"
KEY, SECRET, TOKEN = "planted-key", "planted-secret", "planted-token"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = (PASSWORD, BASIC, HEADER, SIGNATURE, VARIABLE, KEY, SECRET, TOKEN)
VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "DATABRICKS_TOKEN", "AZURE_STORAGE_KEY")


class Everything:
    """All that was shown so far."""

    def __init__(self, places: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.texts: list[str] = []
        self.failures: list[str] = []
        self._places = places
        self._caplog = caplog

    def show(self, *values: object) -> None:
        self.texts += [f"{value!r} {value}" for value in values]

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Do something that must fail, and keep all there is to see of the error."""
        try:
            with self.watching():
                yield
        except PenstockError as error:
            self.failures.append(type(error).__name__)
            self.texts += traceback.format_exception(error)
            step: BaseException | None = error
            while step is not None:
                self.show(step, getattr(step, "facts", {}), getattr(step, "__notes__", []), step.args)
                step = step.__cause__
        else:
            raise AssertionError("it did not fail")

    @contextmanager
    def watching(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self.texts += [str(warning.message) for warning in caught]
                for pid in fetcher_pids(self._places / "run"):
                    self.texts += [
                        (Path("/proc") / str(pid) / name).read_bytes().decode() for name in ("cmdline", "environ")
                    ]

    def check(self, *folders: Path) -> None:
        """Search all that was shown, logged and kept."""
        kept = [path for folder in (self._places, *folders) for path in folder.rglob("*") if path.is_file()]
        assert any(path.suffix == ".log" for path in kept)  # the fetcher's
        found = [*self.texts, *self._caplog.messages, self._caplog.text, *map(str, kept)]
        found += [path.read_bytes().decode("latin-1") for path in kept]
        for secret in SECRETS:
            assert not [text for text in found if secret in text], f"{secret} is shown"


@pytest.fixture
def everything(places: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Everything:
    caplog.set_level(logging.DEBUG)
    for name in VARIABLES:
        monkeypatch.setenv(name, VARIABLE)
    return Everything(places, caplog)


class Folder:
    """A folder over HTTP for those who know the password, with objects that can be broken."""

    def __init__(self, files: Path) -> None:
        self.files = files
        self.broken: dict[str, Answer] = {}

    def __call__(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Basic {BASIC}" or request.headers.get("x-api-key") != HEADER:
            return Answer(401)
        key = request.path.removeprefix("/data/")
        if key in self.broken:
            return self.broken[key]
        path = self.files / key
        if not path.is_file():
            return Answer(404)
        return ranged(path.read_bytes(), request.headers.get("range"))


def ranged(data: bytes, wanted: str | None) -> Answer:
    headers = {"ETag": '"tag"', "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
    if match is None:
        return Answer(200, data, headers)
    begin, end = int(match.group(1)), min(int(match.group(2)) + 1, len(data))
    return Answer(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})


def stream(url: str, local: Path | None, **options: Any) -> StreamingDataset:
    return StreamingDataset(remote=url, local=None if local is None else str(local), download_retry=0, **options)


def read_all(everything: Everything, url: str, local: Path | None, **options: Any) -> None:
    with everything.watching(), stream(url, local, **options) as dataset:
        assert sorted(ids_of(dataset)) == list(range(30))
        everything.show(dataset, dataset.state_dict(), *dataset.streams)


def test_http(tmp_path: Path, everything: Everything) -> None:
    files = write_samples(tmp_path / "files", 30, compression="zstd", hashes="sha1")
    folder = Folder(files)
    options: dict[str, Any] = {"storage_options": {"headers": {"x-api-key": HEADER}}, "validate_hash": "sha1"}
    with run_script(folder) as server:
        url = server.url.replace("://", f"://{USER}:{PASSWORD}@") + "/data"
        read_all(everything, url, None, **options)
        read_all(everything, url, tmp_path / "local", **options)
        everything.show(Stream(remote=url, **options), resolve_store(url, options["storage_options"]))
        everything.show(open_store(resolve_store(url, options["storage_options"])))
        broken: dict[str, list[Answer]] = {
            "part.001/shard.00000.mds.zstd": [
                Answer(404),
                Answer(403),
                Answer(503),
                whole(b"x" * 999),
                Answer(302, b"", {"Location": f"/else?sig={SIGNATURE}"}),
            ],
            "index.json": [
                Answer(404),
                Answer(401),
                whole(b"{"),
                whole(json.dumps({"version": 2, "shards": [{}]}).encode()),
                whole(b'{"version": 2, "shards": []}'),
            ],
        }
        for key, answers in broken.items():
            for answer in answers:
                folder.broken = {key: answer}
                with everything.failing(), stream(url, tmp_path / uuid.uuid4().hex, **options) as dataset:
                    list(dataset)
        folder.broken = {}
        with everything.failing():
            stream(f"{url}?sig={SIGNATURE}", None, **options)
        with everything.failing():
            stream(url.replace(PASSWORD, f"{PASSWORD}/x"), None, **options)
        with everything.failing(), stream(url, tmp_path / "local", **options) as dataset:
            dataset.fetch(f"{url}x/other")
        for out in (url, (f"https://u:{PASSWORD}@h/x", url)):
            with everything.failing():
                MDSWriter(out=out, columns={"x": "int"}, storage_options=options["storage_options"])
        with everything.failing():
            merge_index([f"{url}/missing/index.json"], tmp_path / "merged", storage_options=options["storage_options"])
        folder.broken = {"index.json": Answer(503)}
        with (
            everything.watching(),
            stream(url, tmp_path / "local", **options) as dataset,
        ):  # the copy that it fetched last serves
            assert sorted(ids_of(dataset)) == list(range(30))
        assert any("the copy that it fetched last" in text for text in everything.texts)
    with everything.failing():
        stream(url.replace(server.url.rpartition(":")[2], str(free_port())), tmp_path / "new", **options)
    kinds = {
        "ObjectNotFoundError",
        "AccessDeniedError",
        "StoreError",
        "CorruptIndexError",
        "IndexFieldError",
        "ConfigError",
    }
    assert kinds <= set(everything.failures)
    everything.check(tmp_path)


def whole(data: bytes) -> Answer:
    return ranged(data, f"bytes=0-{len(data)}")


S3_OPTIONS = {"key": KEY, "secret": SECRET, "token": TOKEN, "region": "us-east-1"}
DENIED = Answer(403, b"<Error><Code>AccessDenied</Code></Error>")


def test_s3(tmp_path: Path, everything: Everything, moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = f"secrets-{uuid.uuid4().hex[:8]}"
    moto.make_bucket(bucket)
    options: dict[str, Any] = {"storage_options": {**S3_OPTIONS, "endpoint_url": moto.endpoint}}
    url = f"s3://{bucket}/data"
    with everything.watching():
        for part in range(3):
            with MDSWriter(out=f"{url}/{part}", columns={"id": "int"}, progress_bar=True, **options) as writer:
                for number in range(part * 10, part * 10 + 10):
                    writer.write({"id": number})
                everything.show(writer)
        merge_index(url, **options)
    read_all(everything, url, None, **options)
    read_all(everything, url, tmp_path / "local", **options)
    store = open_store(resolve_store(url, options["storage_options"]))
    everything.show(store, Stream(remote=url, **options), resolve_store(url, options["storage_options"]))
    with everything.failing():
        MDSWriter(out=f"{url}/0", columns={"id": "int"}, **options)
    with everything.failing():
        merge_index(f"s3://{bucket}/nothing", **options)
    with everything.failing():
        stream(f"s3://{bucket}-missing/data", None, **options)
    with everything.failing():
        stream(f"s3://{KEY}:{SECRET}@{bucket}/data", None, **options)
    (tmp_path / "junk").write_bytes(b"junk")
    store.upload(tmp_path / "junk", "1/shard.00000.mds")
    with everything.failing(), stream(url, tmp_path / "replaced", **options) as dataset:
        list(dataset)
    store.delete("1/shard.00000.mds")
    with everything.failing(), stream(url, tmp_path / "deleted", **options) as dataset:
        list(dataset)
    store.upload(tmp_path / "junk", "index.json")
    with everything.failing():
        stream(url, tmp_path / "wrong", **options)
    with run_script(lambda _: DENIED) as server:
        denied: dict[str, Any] = {"storage_options": {**S3_OPTIONS, "endpoint_url": server.url}}
        with everything.failing():
            stream(url, tmp_path / "denied", **denied)
        login = server.url.replace("://", f"://{USER}:{PASSWORD}@")
        with everything.failing():
            stream(url, tmp_path / "login", storage_options={**S3_OPTIONS, "endpoint_url": login})
    with everything.failing():
        away = {**S3_OPTIONS, "endpoint_url": f"http://127.0.0.1:{free_port()}"}
        stream(url, tmp_path / "away", storage_options=away)
    main(["merge", f"https://{USER}:{PASSWORD}@127.0.0.1:9/x?sig={SIGNATURE}"])
    everything.show(*capsys.readouterr())
    kinds = {
        "OutputExistsError",
        "ObjectNotFoundError",
        "BucketNotFoundError",
        "CorruptIndexError",
    }
    assert {*kinds, "AccessDeniedError", "StoreError", "ConfigError"} <= set(everything.failures)
    everything.check(tmp_path)
