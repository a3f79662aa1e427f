"""What the fetcher does with a store for somebody else: one call, with plain values in and out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import FetcherError
from penstock.storage.base import check_writable, open_store
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.wire.messages import StoreAnswer

if TYPE_CHECKING:
    import threading

    from penstock.storage.base import Store
    from penstock.wire.messages import CallStore


def call_store(call: CallStore, is_over: threading.Event) -> tuple[StoreAnswer, bytes]:
    """Do one thing with a store: give what it says of an object, and bytes if it is bytes that were asked for.

    It is not tried again once `is_over` says that whoever wanted it has left.
    """

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise FetcherError(f"whoever wanted to {call.action} has left")

    return _act(open_store(call.store, retry=RetryPolicy(**call.retry), hooks=RetryHooks(sleep=pause)), call)


def _act(store: Store, call: CallStore) -> tuple[StoreAnswer, bytes]:
    data = b""
    info = None
    if call.action == "read":
        data = store.read(call.key, call.span)
    elif call.action == "read_piece" and call.span is not None:
        piece, info = store.read_piece(call.key, call.span, call.etag)
        data = bytes(piece)
    elif call.action == "stat":
        info = store.stat(call.key)
    elif call.action == "list":
        data = json.dumps([asdict(found) for found in store.list(call.key)]).encode()
    elif call.action == "check":
        check_writable(store)
    elif call.action == "upload" and call.path is not None:
        store.upload(Path(call.path), call.key)
    elif call.action == "download" and call.path is not None:
        store.download(call.key, Path(call.path), call.span)
    elif call.action == "delete":
        store.delete(call.key)
    else:
        raise FetcherError(f"a client asked to {call.action!r} a store, which cannot be done")
    return StoreAnswer(info), data
