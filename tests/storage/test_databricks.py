"""Databricks workspaces: the contract on a stub of their API, logins, and answers that fail."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.servers.databricks import TOKEN, Workspace, running_workspace

from penstock.errors import AccessDeniedError, ConfigError, StoreError
from penstock.storage.base import open_store, resolve_store
from penstock.storage.databricks import DatabricksStore
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.testing.stores import StoreContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.base import Store

QUICK = RetryPolicy(attempts=4, base_s=0.001, stall_s=60, patience_s=0.05)
VOLUME = "dbfs:/Volumes/main/default/data"


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    with running_workspace() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABRICKS_CONFIG_FILE", "/nowhere")  # no profile of the user
        yield server


def store_of(workspace: Workspace, url: str, *, hooks: RetryHooks | None = None, token: str = TOKEN) -> DatabricksStore:
    settings = resolve_store(url, {"host": workspace.host, "token": token}, environ={})
    store = open_store(settings, retry=QUICK, hooks=hooks)
    assert isinstance(store, DatabricksStore)
    return store


class TestVolume(StoreContract):
    secrets = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _serve(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def make_store(self, folder: Path) -> Store:
        return store_of(self.workspace, f"{VOLUME}/{folder.parent.name}/a b")


class TestDbfs(TestVolume):
    def make_store(self, folder: Path) -> Store:
        return store_of(self.workspace, f"dbfs:/{folder.parent.name}/deep")


def test_bodies_that_are_cut_go_on_at_the_byte(workspace: Workspace) -> None:
    data = random.Random(6).randbytes(400_000)
    workspace.write("/Volumes/main/default/data/x", data)
    lost: list[StoreError] = []
    store = store_of(workspace, VOLUME, hooks=RetryHooks(on_retry=lost.append))
    workspace.cuts[:] = [200_000, 100_000]
    assert bytes(store.read_piece("x", Span(5, 399_999))[0]) == data[5:399_999]
    assert len(lost) == 2


def test_passing_refusals(workspace: Workspace) -> None:
    workspace.write("/Volumes/main/default/data/y", b"there")
    lost: list[StoreError] = []
    store = store_of(workspace, VOLUME, hooks=RetryHooks(on_retry=lost.append))
    workspace.refusals[:] = [503, 500]
    assert store.read("y") == b"there"
    assert len(lost) >= 1  # the SDK has an attempt of its own
    workspace.refusals[:] = [500] * 20
    with pytest.raises(StoreError, match="come back later"):
        store.read("y")
    workspace.refusals.clear()


def test_blocks_of_dbfs(workspace: Workspace) -> None:
    data = random.Random(7).randbytes(2_500_000)
    workspace.write("/old/x", data)
    store = store_of(workspace, "dbfs:/old")
    assert store.read("x") == data
    assert store.read("x", Span(1_000_000, 2_400_000)) == data[1_000_000:2_400_000]


def test_a_wrong_token(workspace: Workspace) -> None:
    with pytest.raises(AccessDeniedError, match="Invalid access token") as caught:
        store_of(workspace, VOLUME, token="wrong").read("x")
    assert "wrong" not in str(caught.value)


def test_nothing_to_log_in_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/nowhere")
    settings = resolve_store(VOLUME, {"host": "http://127.0.0.1:9", "auth_type": "pat"}, environ={})
    with pytest.raises(AccessDeniedError, match="DATABRICKS_HOST and DATABRICKS_TOKEN"):
        open_store(settings, retry=QUICK).read("x")


def test_logins() -> None:
    environ = {"DATABRICKS_HOST": "https://here", "DATABRICKS_TOKEN": "secret", "PATH": "/bin"}
    settings = resolve_store(VOLUME, environ=environ)
    assert settings.options == {"host": "https://here", "token": "secret"}
    assert "secret" not in repr(settings) + repr(open_store(settings))
    assert resolve_store(VOLUME, {"profile": "mine"}, environ=environ).options == {"profile": "mine"}
    with pytest.raises(ConfigError, match="no option 'hots' .did you mean 'host'"):
        resolve_store(VOLUME, {"hots": "x"}, environ={})


@pytest.mark.parametrize(
    ("url", "root"),
    [
        (f"{VOLUME}/a b/", "/Volumes/main/default/data/a b"),
        ("dbfs:/old/x", "/old/x"),
        ("dbfs:///old", "/old"),
        ("dbfs:/", "/"),
    ],
)
def test_urls(url: str, root: str) -> None:
    store = open_store(resolve_store(url, environ={}))
    assert isinstance(store, DatabricksStore)
    assert store.root == root


@pytest.mark.parametrize("url", ["dbfs:/Volumes/main/default", "dbfs:/Volumes", "dbfs:/a/../b", "dbfs:/a//b"])
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError):
        resolve_store(url, environ={})
