"""What datasets, streams and loaders say of themselves, and what errors of the surroundings say."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import AccessDeniedError, StoreError
from penstock.storage.base import open_store, resolve_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(out: Path, count: int = 12) -> Path:
    with MDSWriter(out=out, columns={"x": "int"}) as writer:
        for number in range(count):
            writer.write({"x": number})
    return out


def test_what_they_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    dataset = StreamingDataset(local=folder, batch_size=4)
    assert repr(dataset) == (
        f"<StreamingDataset of 12 samples in 1 shards, epoch_size=12, batch_size=4,"
        f" streams=[Stream(local={str(folder)!r}, proportion=1.0, repeat=1.0, choose=12)]>"
    )
    loader = StreamingDataLoader(dataset, num_workers=2)
    assert repr(loader) == f"<StreamingDataLoader of batches of 4, 2 workers, of {dataset!r}>"
    columnar = StreamingDataLoader(dataset, columnar=True, num_workers=3)
    assert repr(columnar).startswith("<StreamingDataLoader of batches of 4, 12 batches ahead, of <StreamingDataset ")
    assert repr(LocalDataset(folder)) == f"<LocalDataset of 12 samples in 1 shards, local={str(folder)!r}>"
    many = StreamingDataset(streams=[Stream(local=folder, name=str(number)) for number in range(5)])
    assert repr(many).endswith(", … 2 more]>")


def test_no_secret_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "data")
    with serving(200, (tmp_path / "data" / "index.json").read_bytes()) as url:
        remote = url.replace("http://", "http://user:hidden@") + "/data"
        secret = {"key": "hidden", "secret": "hidden", "headers": {"authorization": "hidden"}}
        stream = Stream(remote=remote, local=tmp_path / "cache", storage_options={"s3": secret})
        with pytest.warns(UserWarning, match="range requests") as told:
            shown = repr(stream) + repr(StreamingDataset(streams=[stream], batch_size=4))
        shown += "".join(str(each.message) for each in told)
    assert "hidden" not in shown
    assert "/data'" in shown


@pytest.mark.parametrize("method", ["stratified", "per_stream"])
def test_unshuffled_batches_by_stream_are_the_same_in_each_epoch(tmp_path: Path, method: Any) -> None:
    folders = [write(tmp_path / name, count) for name, count in (("a", 40), ("b", 24))]
    streams = [Stream(local=folder, repeat=0.5) for folder in folders]
    dataset = StreamingDataset(streams=streams, batch_size=4, batching_method=method, num_canonical_nodes=1)
    first, second = list(dataset), list(dataset)
    assert first == second


# --- What surrounds us ------------------------------------------------------------------------------------------


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("remote", ["http://no-such-host.invalid/data", "s3://bucket/data"])
def test_a_host_whose_name_is_unknown(remote: str) -> None:
    options = {"s3": {"endpoint_url": "http://no-such-host.invalid", "key": "k", "secret": "s"}}
    with pytest.raises(StoreError, match="cannot resolve the host name 'no-such-host.invalid': check its"):
        StreamingDataset(remote=remote, download_retry=0, download_timeout=2, storage_options=options)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_credentials_that_were_not_given(scheme: str) -> None:
    with serving(403, b"<Error><Code>AccessDenied</Code></Error>") as url:
        nameless = resolve_store(f"{scheme}://bucket/data", {"endpoint_url": url}, environ={"HOME": "/nonexistent"})
        with pytest.raises(AccessDeniedError, match="No credentials were found, so the request was not signed: pass"):
            open_store(nameless).read("index.json")
        known = resolve_store("s3://bucket/data", {"endpoint_url": url, "key": "k", "secret": "s"}, environ={})
        with pytest.raises(AccessDeniedError, match="Check the credentials and their permissions$"):
            open_store(known).read("index.json")


def test_a_cache_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """Not even root may make a folder there."""
    write(tmp_path / "data")
    with serving(200, (tmp_path / "data" / "index.json").read_bytes()) as url:
        with pytest.raises(AccessDeniedError, match="cannot write to the cache folder /sys/penstock/cache .*`local`"):
            StreamingDataset(remote=url, local="/sys/penstock/cache")
