"""The Hugging Face Hub: the contract on a stub of its API, one commit per process, and answers that fail."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from tests.servers.faults import FaultProxy, Faults
from tests.servers.hub import SIGNATURE, TOKEN, HubServer, Repo, git_name, running_hub, sha256
from tests.servers.script import Answer, run_script

from penstock.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    ObjectNotFoundError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.storage.base import open_store, resolve_store
from penstock.storage.hub import HubStore
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.testing.stores import StoreContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.base import Store

# huggingface_hub's own way to send a file, which its HTTP library does not like.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

QUICK = RetryPolicy(attempts=4, base_s=0.001, stall_s=60, patience_s=0.05)
NOTHING = {"HOME": "/nowhere"}


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with running_hub() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the stub has no such storage
        disable_progress_bars()
        yield server
        enable_progress_bars()


@pytest.fixture
def repo(hub: HubServer, request: pytest.FixtureRequest) -> str:
    """An empty repository of the test's own."""
    name = f"org/{sha256(request.node.nodeid.encode())[:16]}"
    hub.repos[f"datasets/{name}"] = Repo()
    return name


def store_of(
    hub: HubServer, url: str, *, hooks: RetryHooks | None = None, retry: RetryPolicy = QUICK, **options: object
) -> HubStore:
    store = open_store(resolve_store(url, hub.options(**options), environ=NOTHING), retry=retry, hooks=hooks)
    assert isinstance(store, HubStore)
    return store


class TestHubStore(StoreContract):
    secrets = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _serve(self, hub: HubServer, repo: str) -> None:
        self.hub, self.repo = hub, repo

    def make_store(self, folder: Path) -> Store:
        return store_of(self.hub, f"hf://datasets/{self.repo}/deep/in it")


class TestHubRoot(TestHubStore):
    def make_store(self, folder: Path) -> Store:
        return store_of(self.hub, f"hf://datasets/{self.repo}")


def files_of(hub: HubServer, repo: str) -> Repo:
    return hub.repos[f"datasets/{repo}"]


def test_a_process_reads_one_commit(hub: HubServer, repo: str, tmp_path: Path) -> None:
    files_of(hub, repo).commit("main", {"x": b"old"})
    store = store_of(hub, f"hf://datasets/{repo}")
    first = store.commit()
    assert store.read("x") == b"old"
    second = files_of(hub, repo).commit("main", {"x": b"new and longer", "y": b"1"})
    assert store.read("x") == b"old"
    assert [info.key for info in store_of(hub, f"hf://datasets/{repo}").list()] == ["x"]
    assert store_of(hub, f"hf://datasets/{repo}@{second}").read("x") == b"new and longer"
    (tmp_path / "z").write_bytes(b"mine")
    store.upload(tmp_path / "z", "z")  # what it writes itself it sees, and all that came before
    assert store.commit() not in (first, second)
    assert [info.key for info in store.list()] == ["x", "y", "z"]


def test_revisions(hub: HubServer, repo: str, tmp_path: Path) -> None:
    there = files_of(hub, repo)
    commit = there.commit("main", {"x": b"of main"})
    there.commit("v2/odd", {"x": b"of a branch"})
    there.commit("refs/convert/parquet", {"a/x": b"of parquet"})
    assert store_of(hub, f"hf://datasets/{repo}@{commit}").read("x") == b"of main"
    assert store_of(hub, f"hf://datasets/{repo}@v2%2Fodd/").read("x") == b"of a branch"
    assert store_of(hub, f"hf://datasets/{repo}", revision="v2/odd").read("x") == b"of a branch"
    assert store_of(hub, f"hf://datasets/{repo}@refs/convert/parquet/a").read("x") == b"of parquet"
    (tmp_path / "y").write_bytes(b"1")
    with pytest.raises(RequestRefusedError, match="a commit cannot be changed"):
        store_of(hub, f"hf://datasets/{repo}@{commit}").upload(tmp_path / "y", "y")
    with pytest.raises(BucketNotFoundError, match="no such revision"):
        store_of(hub, f"hf://datasets/{repo}@nowhere").read("x")


def test_models_spaces_and_buckets(hub: HubServer) -> None:
    for kind in ("models", "spaces", "buckets"):
        hub.repos[f"{kind}/org/other"] = Repo()
        hub.repos[f"{kind}/org/other"].commit("main", {"a b/x": kind.encode()})
        assert store_of(hub, f"hf://{kind}/org/other/a b").read("x") == kind.encode()
    assert store_of(hub, "hf://org/other/a b").read("x", Span(1, 4)) == b"ode"


@pytest.mark.parametrize("size", [10, 20_000])
def test_tags_are_the_same_everywhere(hub: HubServer, repo: str, size: int) -> None:
    data = random.Random(size).randbytes(size)
    files_of(hub, repo).commit("main", {"x": data})
    store = store_of(hub, f"hf://datasets/{repo}")
    tag = sha256(data) if size > 10 else git_name(data)
    assert store.stat("x").etag == store.read_piece("x", Span(0, 3))[1].etag == next(store.list()).etag == tag
    assert store.read_piece("x", Span(3, 3), tag)[1].num_bytes == size


def test_bodies_that_are_cut_go_on_at_the_byte(hub: HubServer, repo: str) -> None:
    data = random.Random(5).randbytes(300_000)
    files_of(hub, repo).commit("main", {"x": data})
    lost: list[StoreError] = []
    store = store_of(hub, f"hf://datasets/{repo}", hooks=RetryHooks(on_retry=lost.append))
    store.commit()
    hub.cuts[:] = [100_000, 7, 0, 50_000]
    assert bytes(store.read_piece("x", Span(11, 299_999))[0]) == data[11:299_999]
    assert len(lost) == 4


def test_a_bad_network(hub: HubServer, repo: str, tmp_path: Path) -> None:
    data = {f"{number}": random.Random(number).randbytes(1_000 * number) for number in range(12)}
    files_of(hub, repo).commit("main", data)
    lost: list[StoreError] = []
    faults = Faults(rate=0.25, seed=3, kinds=("drop", "reset", "busy", "cut", "short"))
    with FaultProxy(hub.endpoint, faults) as proxy:
        hooks = RetryHooks(on_retry=lost.append, sleep=lambda _: None)
        store = store_of(hub, f"hf://datasets/{repo}", hooks=hooks, endpoint=proxy.url)
        for key, content in data.items():
            assert store.read(key) == content
        assert {info.key: info.num_bytes for info in store.list()} == {key: len(it) for key, it in data.items()}
    assert lost
    with FaultProxy(hub.endpoint, Faults(rate=1, kinds=("reset",))) as proxy:
        with pytest.raises(StoreError, match="the connection was lost"):
            store_of(hub, f"hf://datasets/{repo}@main", endpoint=proxy.url).read("3")


def test_passing_refusals(hub: HubServer, repo: str) -> None:
    files_of(hub, repo).commit("main", {"x": b"there"})
    lost: list[StoreError] = []
    slept: list[float] = []
    hooks = RetryHooks(on_retry=lost.append, now=lambda: sum(slept), sleep=slept.append)
    store = store_of(hub, f"hf://datasets/{repo}", hooks=hooks, retry=replace(QUICK, patience_s=20))
    store.commit()
    hub.refusals[:] = [(503, {}), (429, {"Retry-After": "3"}), (429, {"RateLimit": '"resolvers";r=0;t=5'})]
    assert store.read("x") == b"there"
    assert [error.facts["status"] for error in lost] == [503, 429, 429]
    assert [round(seconds) for seconds in slept] == [0, 3, 5]
    hub.refusals[:] = [(503, {})] * 1000
    with pytest.raises(StoreError, match="the Hub answered 503"):
        store.read("x")
    hub.refusals[:] = [(400, {"X-Error-Message": "nonsense"})]
    with pytest.raises(RequestRefusedError, match="answered 400 .nonsense"):
        store.read("x")
    hub.refusals[:] = [(429, {"Retry-After": "3600"})]
    slept.clear()
    assert store.read("x") == b"there"
    assert [round(seconds) for seconds in slept] == [20]  # not an hour


def test_lists_are_asked_for_as_often_as_was_said() -> None:
    """The client's own list tries each page five times more, for 23 s, whatever is said."""
    lost: list[StoreError] = []
    slept: list[float] = []
    hooks = RetryHooks(on_retry=lost.append, now=lambda: sum(slept), sleep=slept.append)
    with run_script(lambda _: Answer(503)) as server:
        settings = resolve_store(f"hf://datasets/org/name@{'a' * 40}", {"endpoint": server.url, "token": TOKEN})
        with pytest.raises(StoreTimeoutError, match="the list of files: no data arrived for .* the Hub answered 503"):
            open_store(settings, retry=RetryPolicy.of(1, 3), hooks=hooks).list()
        assert len(server.requests) == len(lost) + 1
        assert sum(slept) < 6


def test_who_may_read(hub: HubServer, repo: str) -> None:
    there = files_of(hub, repo)
    there.commit("main", {"x": bytes(9_000)})
    there.is_private = True
    url = f"hf://datasets/{repo}"
    assert store_of(hub, url).read("x") == bytes(9_000)
    with pytest.raises(BucketNotFoundError, match="private and your token .HF_TOKEN. has no access"):
        store_of(hub, f"{url}@main", token=False, revision="main").read("x", Span(0, 5))
    there.is_gated = True
    with pytest.raises(AccessDeniedError, match="GatedRepo says the Hub") as caught:
        store_of(hub, url).read("x")
    assert TOKEN not in str(caught.value)
    with pytest.raises(BucketNotFoundError, match="no such repository"):
        list(store_of(hub, "hf://datasets/no/nothing").list())


def test_signed_addresses_are_not_shown(hub: HubServer, repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(9_000)
    files_of(hub, repo).commit("main", {"x": data})
    monkeypatch.setattr("tests.servers.hub._Handler.large_file", lambda self, name: (403, b"", {}))
    with pytest.raises(AccessDeniedError) as caught:
        store_of(hub, f"hf://datasets/{repo}").read("x")
    assert SIGNATURE not in "".join(traceback.format_exception(caught.value))


def test_uploads_that_fail_and_go_on(hub: HubServer, repo: str, tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_bytes(bytes(9_000))
    lost: list[StoreError] = []
    store = store_of(hub, f"hf://datasets/{repo}", hooks=RetryHooks(on_retry=lost.append))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.servers.hub._Handler.commit", lambda self, name, revision: (409, b"", {}))
        with pytest.raises(StoreError, match="the Hub answered 409"):
            store.upload(source, "x")
    assert len(lost) >= QUICK.attempts - 1
    store.upload(source, "x")
    assert store.read("x") == bytes(9_000)
    with pytest.raises(ObjectNotFoundError):
        store.upload(tmp_path / "missing", "y")
    files_of(hub, repo).is_gated = True
    with pytest.raises(AccessDeniedError):
        store.upload(source, "y")


def test_silence_is_ended(repo: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = {"endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}", "token": False}
        settings = resolve_store(f"hf://datasets/{repo}", options, environ=NOTHING)
        store = open_store(settings, retry=RetryPolicy(attempts=2, base_s=0.001, stall_s=0.2, patience_s=0.05))
        with pytest.raises(StoreTimeoutError, match="nothing for too long"):
            store.read("x")


def test_who_asks(tmp_path: Path) -> None:
    def place(options: dict[str, object], **environ: str) -> tuple[str | None, str]:
        store = open_store(resolve_store("hf://datasets/o/n", options, environ={**NOTHING, **environ}))
        assert isinstance(store, HubStore)
        assert "secret" not in repr(store)
        return store.location.token, store.location.endpoint

    (tmp_path / "token").write_text("secret of a file\n")
    assert place({}) == (None, "https://huggingface.co")
    assert place({}, HF_TOKEN="secret", HF_ENDPOINT="http://mirror/") == ("secret", "http://mirror")
    assert place({}, HF_HOME=str(tmp_path)) == ("secret of a file", "https://huggingface.co")
    assert place({"token": "secret 2"}, HF_TOKEN="secret")[0] == "secret 2"
    assert place({"token": False}, HF_TOKEN="secret")[0] is None
    assert place({"hf": {"token": "secret 3", "endpoint": "http://a"}}) == ("secret 3", "http://a")
    with pytest.raises(ConfigError, match="one revision, and storage_options another"):
        resolve_store("hf://datasets/o/n@a", {"revision": "b"}, environ=NOTHING)


def test_the_first_request_of_a_process_needs_nothing_imported_before() -> None:
    """huggingface_hub loads its modules when they are asked for, and its helpers not even then."""
    program = """
from penstock.errors import StoreError
from penstock.storage.base import open_store, resolve_store
from penstock.storage.retry import RetryPolicy

options = {"endpoint": "http://127.0.0.1:1", "token": False, "revision": "0" * 40}
store = open_store(resolve_store("hf://datasets/org/name", options), retry=RetryPolicy(attempts=1, patience_s=1))
try:
    store.read("index.json")
except StoreError as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout, done.stderr
