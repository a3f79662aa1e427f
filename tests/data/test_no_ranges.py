"""A web server that sends whole files, whatever it is asked for: no file is fetched twice, and the user is told."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from penstock import MDSWriter, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LARGER_THAN_A_PIECE = 9 << 20


@contextmanager
def python_server(folder: Path) -> Iterator[tuple[str, Counter[str]]]:
    """The server of the standard library, and how often it was asked for each file."""
    asked: Counter[str] = Counter()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked[self.path.rpartition("/")[2]] += 1
            super().do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "hunter2"}])
def test_every_shard_is_fetched_once(tmp_path: Path, headers: dict[str, str]) -> None:
    with MDSWriter(out=tmp_path / "remote", columns={"x": "int", "data": "bytes"}, size_limit=100_000) as writer:
        for number in range(60):
            large = _LARGER_THAN_A_PIECE if number == 30 and not headers else 10_000
            writer.write({"x": number, "data": bytes([number]) * large})
    with python_server(tmp_path / "remote") as (url, asked):
        with pytest.warns(UserWarning, match=r"this server does not support range requests") as told:
            dataset = StreamingDataset(
                remote=url,
                local=tmp_path / "local",
                storage_options={"headers": headers},
                batch_size=4,
                shuffle=True,
                num_canonical_nodes=1,
            )
        assert len([each for each in told if "range" in str(each.message)]) == 1
        with dataset, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dataset[41]["data"] == bytes([41]) * 10_000
            assert sorted(sample["x"] for sample in dataset) == list(range(60))
        shards = {path.name for path in (tmp_path / "remote").glob("*.mds")}
        assert {name: count for name, count in asked.items() if name in shards} == dict.fromkeys(shards, 1)
