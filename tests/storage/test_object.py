"""What object stores do beside moving bytes: who asks, what is refused, which process may."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers.script import Answer, Request, run_script, whole

from penstock.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    ObjectChangedError,
    RequestRefusedError,
    StoreError,
)
from penstock.storage.base import Store, check_writable, open_store, resolve_store
from penstock.storage.many import AsksAsynchronously
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.azurite import AzureServer
    from tests.servers.s3 import S3Server

ONCE = RetryPolicy(attempts=1)
DENIED = Answer(403, b"<Error><Code>AccessDenied</Code></Error>")


def open_at(url: str, endpoint: str, environ: dict[str, str] | None = None, **options: Any) -> Store:
    given = {"key": "test-key", "secret": "test-secret", "endpoint_url": endpoint, **options}
    return open_store(resolve_store(url, given, environ=environ or {}), retry=ONCE)


def is_signed(request: Request) -> bool:
    return "authorization" in request.headers


def test_a_public_bucket_is_read_without_credentials_that_are_refused() -> None:
    with run_script(lambda request: DENIED if is_signed(request) else whole(b"public")) as server:
        store = open_at("s3://public/x", server.url)
        assert store.read("a") == b"public"
        assert [is_signed(request) for request in server.requests] == [True, False]
        assert store.read("b") == b"public"
        assert [is_signed(request) for request in server.requests[2:]] == [False]


def test_who_is_refused_twice_hears_of_the_first_time() -> None:
    with run_script(lambda request: DENIED) as server:
        store = open_at("s3://private/x", server.url)
        with pytest.raises(
            AccessDeniedError, match=r"no access to s3://private/x/a: the server answered 403 \(AccessDen"
        ):
            store.read_piece("a", Span(0, 1))
        assert [is_signed(request) for request in server.requests] == [True, False]


def test_a_user_without_credentials_signs_nothing() -> None:
    with run_script(lambda request: whole(b"public")) as server:
        environ = {"AWS_ENDPOINT_URL": server.url, "HOME": "/nowhere"}
        assert open_store(resolve_store("s3://public/y", environ=environ)).read("a") == b"public"
        assert not is_signed(server.requests[0])


def test_uploads_are_never_anonymous_and_carry_the_acl(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    with run_script(lambda request: Answer(headers={"ETag": '"tag"'})) as server:
        open_at("s3://b/x", server.url, {"S3_CANNED_ACL": "bucket-owner-full-control"}).upload(tmp_path / "x", "k")
        (request,) = server.requests
        assert request.headers["x-amz-acl"] == "bucket-owner-full-control"
        assert "x-amz-acl" in request.headers["authorization"]  # what is not signed is not accepted
    with run_script(lambda request: DENIED) as server:
        with pytest.raises(AccessDeniedError):
            open_at("s3://b/x", server.url).upload(tmp_path / "x", "k")
        assert [is_signed(request) for request in server.requests] == [True]


def test_the_requester_pays() -> None:
    with run_script(lambda request: whole(b"dear")) as server:
        open_at("s3://b/x", server.url, {"MOSAICML_STREAMING_AWS_REQUESTER_PAYS": "b"}).read("k")
        assert server.requests[0].headers["x-amz-request-payer"] == "requester"


def test_the_environment_of_the_opening_process_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_script(lambda request: whole(b"data")) as server:
        settings = resolve_store("s3://b/env", {"key": "test-key", "secret": "s", "endpoint": server.url}, environ={})
        for name in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
            monkeypatch.setenv(name, "of another user")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        assert open_store(settings).read("k") == b"data"
        assert "Credential=test-key/" in server.requests[0].headers["authorization"]
        assert "x-amz-security-token" not in server.requests[0].headers


def test_a_changed_object_is_an_error_also_where_the_server_does_not_look() -> None:
    with run_script(lambda request: whole(b"data")) as server:
        with pytest.raises(ObjectChangedError, match="replaced while it was being read"):
            open_at("s3://b/changed", server.url).read_piece("k", Span(0, 4), '"another tag"')


@pytest.mark.parametrize("status", [400, 405, 501])
def test_final_answers_are_asked_for_once(status: int) -> None:
    with run_script(lambda request: Answer(status)) as server:
        settings = resolve_store("s3://b/final", {"anon": True, "endpoint": server.url}, environ={})
        with pytest.raises(RequestRefusedError, match=f"the server answered {status}"):
            open_store(settings).read_piece("k", Span(0, 4))
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_answers_are_asked_for_again(status: int) -> None:
    answers = [Answer(status), whole(b"data")]
    with run_script(lambda request: answers.pop(0)) as server:
        settings = resolve_store("s3://b/passing", {"anon": True, "endpoint": server.url}, environ={})
        policy = RetryPolicy(attempts=2, base_s=0.001)
        assert open_store(settings, retry=policy).read_piece("k", Span(0, 4))[0] == b"data"


def test_a_range_that_was_not_asked_for_is_an_error() -> None:
    other = Answer(206, b"data", {**whole(b"data").headers, "Content-Range": "bytes 4-7/8"})
    with run_script(lambda request: other) as server:
        with pytest.raises(StoreError):
            open_at("s3://b/other", server.url).read_piece("k", Span(0, 4))


def test_a_missing_bucket_says_what_to_do(moto: S3Server, tmp_path: Path) -> None:
    store = open_store(resolve_store(f"s3://missing-{uuid.uuid4().hex}", moto.options))
    (tmp_path / "x").write_bytes(b"1")
    for action in (
        lambda: store.read("x"),
        lambda: list(store.list()),
        lambda: store.upload(tmp_path / "x", "x"),
        lambda: check_writable(store),
    ):
        with pytest.raises(BucketNotFoundError, match="does not exist there.*: create it, or check its name") as caught:
            action()
        assert isinstance(caught.value, FileNotFoundError)


def test_a_missing_container_too(azurite: AzureServer) -> None:
    store = open_store(resolve_store(f"az://missing-{uuid.uuid4().hex}", azurite.options))
    with pytest.raises(BucketNotFoundError, match="create it"):
        check_writable(store)


def test_azure_denies_a_wrong_key_and_shows_public_containers(azurite: AzureServer) -> None:
    public, private = f"public-{uuid.uuid4().hex}", f"private-{uuid.uuid4().hex}"
    azurite.make_container(public, is_public=True)
    azurite.make_container(private)
    wrong = {**azurite.options, "account_key": "d3Jvbmc="}
    with pytest.raises(AccessDeniedError, match=r"\(AuthorizationFailure\)"):
        check_writable(open_store(resolve_store(f"az://{private}", wrong)))
    unsigned = {**azurite.options, "account_key": None}
    assert list(open_store(resolve_store(f"az://{public}", unsigned, environ={})).list()) == []


def test_checking_before_writing(moto: S3Server, tmp_path: Path) -> None:
    moto.make_bucket("checked")
    check_writable(open_store(resolve_store("s3://checked/x", moto.options)))
    check_writable(open_store(str(tmp_path)))
    with pytest.raises(ConfigError, match="cannot be written to"):
        check_writable(open_store("https://host/x"))
    with run_script(lambda request: DENIED) as server:
        check_writable(open_at("s3://write-only/x", server.url))
    unknown = Answer(403, b"<Error><Code>InvalidAccessKeyId</Code></Error>")
    with run_script(lambda request: unknown) as server, pytest.raises(AccessDeniedError, match="InvalidAccessKeyId"):
        check_writable(open_at("s3://unknown/x", server.url))


def test_a_forked_child_is_told_instead_of_waiting_for_ever() -> None:
    code = """
import os, sys
from penstock.errors import StoreError
from penstock.storage.base import open_store, resolve_store
settings = resolve_store("s3://b/x", {"anon": True, "endpoint": sys.argv[1]}, environ={})
assert open_store(settings).read("k") == b"data"
if os.fork() == 0:
    try:
        open_store(settings).read("k")
    except StoreError as error:
        os._exit(0 if "do not survive a fork" in str(error) else 2)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
    with run_script(lambda request: whole(b"data")) as server:
        subprocess.run([sys.executable, "-c", code, server.url], check=True, timeout=60)


def test_a_child_forked_before_first_use_may_use_it() -> None:
    code = """
import os, sys
from penstock.storage.base import open_store, resolve_store
store = open_store(resolve_store("s3://b/x", {"anon": True, "endpoint": sys.argv[1]}, environ={}))
if os.fork() == 0:
    os._exit(0 if store.read("k") == b"data" else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
    with run_script(lambda request: whole(b"data")) as server:
        subprocess.run([sys.executable, "-c", code, server.url], check=True, timeout=60)


def test_signed_queries_are_not_shown(azurite: AzureServer) -> None:
    with run_script(lambda request: Answer(500)) as server:
        options = {"account_name": "acc", "sas_token": "sv=2024&sig=hunter2", "endpoint": server.url}
        with pytest.raises(StoreError) as caught:
            open_store(resolve_store("az://c/x", options, environ={}), retry=ONCE).read("k")
        assert any("hunter2" in request.path for request in server.requests)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in f"{error} {error!r}"
        error = error.__cause__


def test_settings_travel_as_json(moto: S3Server, tmp_path: Path) -> None:
    moto.make_bucket("travel")
    settings = resolve_store("s3://travel/x", moto.options)
    (tmp_path / "x").write_bytes(b"data")
    open_store(settings).upload(tmp_path / "x", "k")
    code = """
import json, sys
from penstock.storage.base import StoreSettings, open_store
url, options = json.loads(sys.stdin.read())
sys.stdout.buffer.write(open_store(StoreSettings(url, options)).read("k"))
"""
    message = json.dumps([settings.url, settings.options]).encode()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run([sys.executable, "-c", code], input=message, capture_output=True, check=True, env=environ)
    assert done.stdout == b"data"


class Clock:
    """A clock that goes on when it is waited for, and then has something else done."""

    def __init__(self) -> None:
        self.time = 0.0
        self.meanwhile: Callable[[], object] | None = None

    def sleep(self, seconds: float) -> None:
        self.time += min(seconds, 0.1)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        self.time += max(0.0, seconds - 0.1)

    @property
    def hooks(self) -> RetryHooks:
        return RetryHooks(now=lambda: self.time, sleep=self.sleep, draw=lambda: 0.0)


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_has_too_much_to_do_is_left_alone(scheme: str, status: int) -> None:
    """By all who read it: their client hides for how long the store asks, so they wait a second, then longer."""
    asked_at: list[float] = []
    clock = Clock()

    def answer(request: Request) -> Answer:
        asked_at.append(clock.time)
        return Answer(status, b"", {"Retry-After": "1"}) if len(asked_at) <= 4 else whole(b"data")

    with run_script(answer) as server:
        options = {"key": "k", "secret": "s", "endpoint_url": server.url, "region": "us-east-1"}
        settings = [
            resolve_store(f"{server.url}/{name}", environ={})
            if scheme == "http"
            else resolve_store(f"s3://bucket/{name}", options, environ={})
            for name in ("one", "other")
        ]
        retry = RetryPolicy.of(5, 120)
        one, other = (open_store(each, retry=retry, hooks=clock.hooks) for each in settings)
        clock.meanwhile = lambda: other.read("y")  # which begins when the first has just been refused
        assert one.read("x") == b"data"
        assert one.read("x") == b"data"
    pauses = [later - sooner for sooner, later in pairwise(asked_at)]
    assert [pause >= least for pause, least in zip(pauses[:4], (1, 2, 4, 8), strict=True)] == [True] * 4, pauses
    assert pauses[-1] == 0  # the store has answered


def test_small_questions_leave_a_busy_store_alone_too() -> None:
    """Also those of an event loop: they are asked again by those who wait."""
    asked_at: list[float] = []
    clock = Clock()

    def answer(request: Request) -> Answer:
        asked_at.append(clock.time)
        return Answer(503) if len(asked_at) == 1 else whole(b"d")

    with run_script(answer) as server:
        store = open_store(resolve_store(server.url, environ={}), retry=RetryPolicy(), hooks=clock.hooks)

        async def ask() -> None:
            assert isinstance(store, AsksAsynchronously)
            async with store.asking() as ask_once:
                for _ in range(2):
                    with pytest.raises(StoreError, match="answered .*503"):
                        await ask_once("x", Span(0, 1))

        asyncio.run(ask())
        assert asked_at == [0]
        assert store.read("x") == b"d"
    assert asked_at[1] >= 1


def test_a_single_try_waits_for_a_busy_store_and_is_made() -> None:
    asked_at: list[float] = []
    clock = Clock()

    def answer(request: Request) -> Answer:
        asked_at.append(clock.time)
        return Answer(503) if len(asked_at) == 1 else whole(b"d")

    with run_script(answer) as server:
        store = open_store(resolve_store(server.url, environ={}), retry=RetryPolicy.of(0, 60), hooks=clock.hooks)
        with pytest.raises(StoreError, match="answered 503"):
            store.read("x")
        assert store.read("x") == b"d"
    assert asked_at == [0, 1]


@pytest.mark.parametrize("wish", ["\xb2", "soon", "-1", "9" * 5000, "Mon, 16 Nov 2026 00:00:00 GMT"])
def test_odd_wishes_of_a_server_are_no_error(wish: str) -> None:
    with run_script(lambda _: Answer(503, b"", {"Retry-After": wish})) as server:
        settings = resolve_store(server.url, {"headers": {"X-Api-Key": "k"}}, environ={})
        with pytest.raises(StoreError, match="answered 503"):
            open_store(settings, retry=ONCE).read("x")
