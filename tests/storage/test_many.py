"""Many small questions to a store at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from tests.cache.kit import wait_until
from tests.servers.faults import FaultProxy, Faults
from tests.servers.hub import Repo, running_hub

from penstock.errors import AccessDeniedError, ObjectNotFoundError
from penstock.storage.base import open_store, resolve_store
from penstock.storage.many import read_many, stat_many
from penstock.storage.retry import RetryPolicy
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.nginx import WebServer

    from penstock.storage.base import Store

NUM_FILES = 90
PATIENT = RetryPolicy(attempts=6, base_s=0.01, max_s=0.05, stall_s=1.0)


def content(number: int) -> bytes:
    return number.to_bytes(2, "big") * 3000


@pytest.fixture(scope="module", params=["many", "unranged/many"])
def folder(nginx: WebServer, request: pytest.FixtureRequest) -> str:
    path = nginx.files / request.param
    path.mkdir(parents=True)
    for number in range(NUM_FILES):
        (path / f"{number}").write_bytes(content(number))
    return str(request.param)


def check(store: Store) -> None:
    questions = [(f"{number}", Span(number, number + 2000)) for number in range(NUM_FILES)]
    found = {number: (bytes(data), info) for number, data, info in read_many(store, questions)}
    assert sorted(found) == list(range(NUM_FILES))
    for number, (data, info) in found.items():
        assert data == content(number)[number : number + 2000]
        assert info == store.stat(f"{number}")


def test_each_comes_with_what_it_is_of(nginx: WebServer, folder: str) -> None:
    check(open_store(f"{nginx.url}/{folder}"))


def test_files_of_this_machine_are_read_so_too(tmp_path: Path) -> None:
    for number in range(NUM_FILES):
        (tmp_path / f"{number}").write_bytes(content(number))
    check(open_store(str(tmp_path)))


def test_what_fails_is_tried_again_as_any_other_piece(nginx: WebServer, folder: str) -> None:
    bad = Faults(rate=0.3, kinds=("drop", "reset", "busy", "cut"), retry_after_s=0.01)
    with FaultProxy(nginx.url, bad) as proxy:
        check(open_store(f"{proxy.url}/{folder}", retry=PATIENT))
        assert proxy.counts["drop"] > 0


def test_what_is_not_there_is_an_error_and_has_no_description(nginx: WebServer, folder: str) -> None:
    store = open_store(f"{nginx.url}/{folder}")
    keys = ["1", "none", "2", "neither"]
    with pytest.raises(ObjectNotFoundError, match="none|neither"):
        list(read_many(store, [(key, Span(0, 5)) for key in keys]))
    assert stat_many(store, keys) == [store.stat("1"), None, store.stat("2"), None]
    assert stat_many(store, ["none"]) == [None]
    assert stat_many(store, []) == []


def test_a_refusal_is_said_as_ever(nginx: WebServer) -> None:
    store = open_store(f"{nginx.url}/private")
    with pytest.raises(AccessDeniedError, match="private/[ab]"):
        list(read_many(store, [("a", Span(0, 5)), ("b", Span(0, 5))]))


def test_a_reader_that_has_enough_leaves_no_thread_behind(nginx: WebServer, folder: str) -> None:
    with FaultProxy(nginx.url, Faults(rate=0.5, kinds=("stall",))) as proxy:
        store = open_store(f"{proxy.url}/{folder}", retry=PATIENT)
        answers: Iterator[object] = read_many(store, [(f"{number}", Span(0, 5)) for number in range(NUM_FILES)])
        next(answers)
        answers.close()  # type: ignore[attr-defined]
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-ask")])


def test_the_hub_is_asked_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the stub has no such storage
    with running_hub() as hub:
        repo = hub.repos["datasets/org/many"] = Repo()
        repo.commit("main", {f"{number}": content(number) for number in range(NUM_FILES)})
        store = open_store(resolve_store("hf://datasets/org/many", hub.options()), retry=PATIENT)
        hub.refusals += [(503, {}), (429, {"Retry-After": "0"})]
        hub.cuts += [100, 5]
        check(store)
        assert stat_many(store, ["1", "none"]) == [store.stat("1"), None]
        with pytest.raises(ObjectNotFoundError, match="none"):
            list(read_many(store, [("1", Span(0, 5)), ("none", Span(0, 5))]))
