"""What the fetcher asks a store for, seen from the store: how often, and what it makes of the answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from penstock.cache.cache import Cache, CachedStream
from penstock.errors import ObjectChangedError
from penstock.storage.base import resolve_store
from penstock.types import Span
from tests.servers.script import Answer, Request, ScriptedServer, run_script

if TYPE_CHECKING:
    from pathlib import Path

DATED = {"Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}


INDEX = b'{"shards": [], "version": 2}'


def serve(body: bytes, request: Request, etag: str = "one") -> Answer:
    """The range that is asked for, or that there is such an object."""
    if request.path.endswith("index.json"):
        body = INDEX
    headers = {**DATED, "ETag": f'"{etag}"'}
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if asked is None:
        return Answer(200, body, headers)
    begin, end = int(asked[1]), min(int(asked[2]) + 1, len(body))
    return Answer(206, body[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(body)}"})


def open_cache(folder: Path, server: ScriptedServer) -> Cache:
    return Cache([CachedStream(directory=folder, store=resolve_store(f"{server.url}/data"))], limit_bytes=None)


def test_a_small_object_of_unknown_size_takes_one_request(tmp_path: Path) -> None:
    with (
        run_script(lambda request: serve(b"{}" * 500, request)) as server,
        open_cache(tmp_path, server) as cache,
    ):
        assert cache.fetch_object(0, "object", refresh=True).read_bytes() == b"{}" * 500
        assert [request.method for request in server.requests] == ["GET", "GET"]  # the index, and the object


@pytest.mark.parametrize("num_bytes", [0, 1, (1 << 20) + 1, (8 << 20) + 1])
def test_objects_of_unknown_size(tmp_path: Path, num_bytes: int) -> None:
    body = bytes(range(251)) * (num_bytes // 251 + 1)
    body = body[:num_bytes]

    def answer(request: Request) -> Answer:
        if not body and "range" in request.headers and not request.path.endswith("index.json"):
            return Answer(416, b"", DATED)  # nothing has no first byte
        return serve(body, request)

    with run_script(answer) as server, open_cache(tmp_path, server) as cache:
        assert cache.fetch_object(0, "object", refresh=True).read_bytes() == body


def test_an_object_that_is_replaced_between_two_pieces_is_no_mixture(tmp_path: Path) -> None:
    body = bytes(20_000_000)

    def answer(request: Request) -> Answer:
        is_first = request.headers.get("range", "").startswith("bytes=0-")
        return serve(body, request, "one" if is_first else "two")

    with run_script(answer) as server, open_cache(tmp_path, server) as cache:
        with pytest.raises(ObjectChangedError, match="data/shard was replaced while it was being read"):
            cache.fetch_object(0, "shard", num_bytes=len(body))
        assert not (tmp_path / "shard").exists()


def test_near_ranges_are_one_request_and_far_ones_come_side_by_side(tmp_path: Path) -> None:
    body = bytes(range(256)) * 20_000

    with run_script(lambda request: serve(body, request)) as server, open_cache(tmp_path, server) as cache:
        places = [
            (key, Span(begin, begin + size))
            for key in ("a", "b")
            for begin, size in [(4_000_000, 10), (5, 3), (1000, 200), (0, 0), (900, 200)]
        ]
        assert cache.read_many(0, places) == [body[span.begin : span.end] for _, span in places]
        asked = sorted((request.path[-1], request.headers["range"]) for request in server.requests[1:])
        assert asked == [(key, f"bytes={span}") for key in "ab" for span in ("4000000-4000009", "5-1199")]
