"""Messages on the wire: what is packed comes back, and what makes no sense is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.cachedir.items import item_of_object, item_of_shard
from penstock.errors import CacheError, CacheTooSmallError, CorruptShardError, FetcherError, ObjectNotFoundError
from penstock.wire.encoding import load
from penstock.wire.frames import (
    PREFIX_BYTES,
    dump_error,
    load_error,
    pack_message,
    unpack_header,
    unpack_prefix,
)
from penstock.wire.item import Item
from tests.cache.kit import HASH, write_dataset

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_items_travel_as_json(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    for item in (item_of_shard(data.infos[0], 0, "e", HASH), item_of_object("key", "name", refresh=True)):
        sent = pack_message({"item": item})
        assert load(Item, unpack_header(sent[PREFIX_BYTES:])["item"]) == item


def test_messages() -> None:
    data = pack_message({"op": "x", "text": "é"}, 10)
    num_header, num_payload = unpack_prefix(data)
    assert num_payload == 10
    assert unpack_header(data[PREFIX_BYTES : PREFIX_BYTES + num_header]) == {"op": "x", "text": "é"}


@pytest.mark.parametrize("data", [b"\xff" * PREFIX_BYTES, b"GET / HTTP/1.1"])
def test_strange_sizes_are_refused_before_anything_is_allocated(data: bytes) -> None:
    with pytest.raises(FetcherError):
        unpack_prefix(data)


@pytest.mark.parametrize("data", [b"[1]", b"{", b"\xff"])
def test_strange_headers_are_refused(data: bytes) -> None:
    with pytest.raises(FetcherError):
        unpack_header(data)


def test_errors_keep_their_class_facts_and_cause() -> None:
    error = CacheTooSmallError("no such thing", key="k", num_bytes=3)
    error.__cause__ = OSError("the reason")
    copy = load_error(dump_error(error))
    assert type(copy) is CacheTooSmallError
    assert copy.facts == {"key": "k", "num_bytes": 3}
    assert str(copy) == "no such thing (cause: OSError: the reason)"
    missing = ObjectNotFoundError("no such thing")
    missing.__cause__ = OSError("404, over many lines")
    assert str(load_error(dump_error(missing))) == "no such thing"  # a client's words would add nothing
    assert isinstance(load_error(dump_error(CorruptShardError("x"))), ValueError)
    assert type(load_error(dump_error(KeyError("odd")))) is CacheError
    assert type(load_error({"class": "SystemExit", "message": "no"})) is CacheError
