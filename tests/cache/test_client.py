"""Many processes and one fetcher: forks, spawns, deaths and silence."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.cache.cache import Cache
from penstock.errors import ConfigError, FetcherError
from tests.cache.kit import (
    check_shard,
    fetcher_pids,
    finish,
    left_over,
    open_dataset,
    start_client,
    wait_until,
    write_dataset,
)


def check_all(cache: Cache, folder: Path) -> None:
    for shard in open_dataset(folder).shards:
        check_shard(cache, shard)


def run_child(context: str, cache: Cache, folder: Path) -> None:
    child = cast("Any", multiprocessing.get_context(context)).Process(target=check_all, args=(cache, folder))
    child.start()
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("is_used", [False, True])
def test_a_cache_goes_to_children(tmp_path: Path, context: str, is_used: bool) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        if is_used:
            check_shard(cache, data.shards[0])
        run_child(context, cache, tmp_path)
        check_shard(cache, data.shards[5])


def fork_again(cache: Cache, folder: Path) -> None:
    check_shard(cache, open_dataset(folder).shards[1])
    run_child("fork", cache, folder)
    check_shard(cache, open_dataset(folder).shards[2])


def test_forks_of_forks(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=300_000) as cache:
        check_shard(cache, data.shards[0])
        child = multiprocessing.get_context("fork").Process(target=fork_again, args=(cache, tmp_path))
        child.start()
        child.join(60)
        assert child.exitcode == 0


def test_a_child_does_not_hold_its_parents_lease(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=100_000) as cache:
        lease = cache.lease(0, data.shards[0])
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            lease.close()  # says nothing, and unlocks nothing
            os.read(reading, 1)  # lives until the parent is done
            os._exit(0)
        try:
            rival = threading.Thread(target=check_shard, args=(cache, data.shards[1]))
            rival.start()
            wait_until(lambda: cache.node_stats().get("queued"))
            assert data.cached_names() == {"shard.00000.data"}  # the child's close freed nothing
            lease.close()
            rival.join(60)
            assert data.cached_names() == {"shard.00001.data"}  # and the child's copy holds nothing
        finally:
            os.write(writing, b"x")
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)


def test_a_fetcher_of_shards_never_loads_numpy(tmp_path: Path, runtime: Path) -> None:
    """It would take half of the time that a fetcher needs to start, and a third of its memory."""
    data = write_dataset(tmp_path, compression="zstd")
    with data.cache() as cache:
        check_shard(cache, data.shards[0])
        [pid] = fetcher_pids(runtime)
        assert "numpy" not in Path(f"/proc/{pid}/maps").read_text()


def test_the_fetcher_is_one_and_goes_with_its_last_client(tmp_path: Path, runtime: Path) -> None:
    one, two = write_dataset(tmp_path / "1"), write_dataset(tmp_path / "2")
    with one.cache() as first:
        check_shard(first, one.shards[0])
        with two.cache() as second:
            check_shard(second, two.shards[0])
            assert len(fetcher_pids(runtime)) == 1
        check_shard(first, one.shards[1])
        assert len(fetcher_pids(runtime)) == 1
    assert not left_over(runtime)


CLIENT = """
import sys
from pathlib import Path
from typing import Any, cast
from tests.cache.kit import check_shard, open_dataset
data = open_dataset(Path(sys.argv[1]))
with data.cache() as cache:
    for shard in data.shards:
        check_shard(cache, shard)
"""


def test_many_start_it_at_once(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    clients = [start_client(CLIENT, tmp_path) for _ in range(6)]
    for client in clients:
        finish(client)
    assert len(data.cached_names()) == 6


def test_the_fetcher_is_killed_between_requests(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=10**6) as cache:
        for number, shard in enumerate(data.shards[:4]):
            cache.expect([(0, shard, 0)])
            check_shard(cache, shard)
            if number < 3:
                (pid,) = fetcher_pids(runtime)
                os.kill(pid, signal.SIGKILL)
        assert len(fetcher_pids(runtime)) == 1


def test_the_fetcher_is_killed_while_a_client_waits(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=200_000) as cache:
        leases = [cache.lease(0, shard) for shard in data.shards[:2]]
        waiting = threading.Thread(target=check_shard, args=(cache, data.shards[2]))
        waiting.start()
        wait_until(lambda: cache.node_stats().get("queued"))
        (pid,) = fetcher_pids(runtime)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: cache.node_stats().get("queued"))  # the request was made again
        for lease in leases:
            lease.close()
        waiting.join(30)
        assert not waiting.is_alive()


def test_a_fetcher_that_always_dies_is_an_error(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "download.started")
    data = write_dataset(tmp_path)
    with data.cache() as cache, pytest.raises(FetcherError, match="died 5 times"):
        cache.lease(0, data.shards[0])


def test_a_fetcher_that_cannot_start_says_why(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asyncio.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    data = write_dataset(tmp_path / "data")
    with data.cache() as cache, pytest.raises(FetcherError, match="a broken installation"):
        cache.lease(0, data.shards[0])


def test_a_stopped_fetcher_is_an_error(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_FETCHER_SILENCE_S", "5")
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        check_shard(cache, data.shards[0])
        (pid,) = fetcher_pids(runtime)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(FetcherError, match="not answered for 5 s"):
                cache.lease(0, data.shards[1])
        finally:
            os.kill(pid, signal.SIGCONT)
        check_shard(cache, data.shards[1])


def test_strangers_are_refused(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_dataset(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (runtime / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(runtime / "link"))
    with data.cache() as cache, pytest.raises(FetcherError, match="is a link"):
        cache.lease(0, data.shards[0])
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(runtime / ("long" * 30)))
    with data.cache() as cache, pytest.raises(ConfigError, match="too long"):
        cache.lease(0, data.shards[0])
    open_to_all = runtime / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(open_to_all))
    with data.cache() as cache:
        check_shard(cache, data.shards[0])
        assert open_to_all.stat().st_mode & 0o777 == 0o700
    assert not left_over(open_to_all)


WAIT_FOR_EVER = """
import sys
from pathlib import Path
from typing import Any, cast
from tests.cache.kit import open_dataset
data = open_dataset(Path(sys.argv[1]))
cache = data.cache(limit_bytes=100_000, timeout_s=600)
lease = cache.lease(0, data.shards[0])
print("waiting", flush=True)
cache.lease(0, data.shards[1])
"""


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_waiting_client_ends_at_once(tmp_path: Path, runtime: Path, signal_number: signal.Signals) -> None:
    write_dataset(tmp_path)
    client = start_client(WAIT_FOR_EVER, tmp_path)
    assert client.stdout is not None
    assert client.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    client.send_signal(signal_number)
    out, err = client.communicate(timeout=60)
    assert client.returncode != 0, out
    if signal_number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
    assert not left_over(runtime)


def test_a_warning_that_is_an_error_leaves_no_line_behind(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    num_threads = threading.active_count()
    client = start_client(WAIT_FOR_EVER, tmp_path)  # a process of its own with a small limit
    assert client.stdout is not None
    assert client.stdout.readline() == "waiting\n"
    with data.cache() as cache, pytest.raises(UserWarning, match="another dataset on this node limits"):
        cache.lease(0, data.shards[2])
    wait_until(lambda: threading.active_count() <= num_threads)
    client.kill()
    client.communicate()
    assert not left_over(runtime)


class Interrupted(Exception):
    """As Ctrl-C, of which a notebook survives any number."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


def test_what_was_interrupted_is_withdrawn_and_the_line_stays(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with data.cache(limit_bytes=100_000, timeout_s=600) as cache:
            lease = cache.lease(0, data.shards[0])
            for _ in range(3):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(Interrupted):
                    cache.lease(0, data.shards[1])
                assert cache.node_stats()["groups"] == 1
                wait_until(lambda: not cache.node_stats()["queued"])
            lease.close()
            check_shard(cache, data.shards[1])
    finally:
        signal.signal(signal.SIGALRM, old)


def test_a_directory_deleted_under_a_running_job(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=12, num_parts=2, compression="zstd")
    is_over = threading.Event()

    def delete() -> None:
        while not is_over.wait(0.02):
            shutil.rmtree(data.local, ignore_errors=True)

    with data.cache() as cache:
        check_shard(cache, data.shards[0])
        shutil.rmtree(data.local)
        for shard in data.shards:
            check_shard(cache, shard)
        vandal = threading.Thread(target=delete)
        vandal.start()
        try:
            for shard in [*data.shards, *data.shards]:
                cache.lease(0, shard).close()
        finally:
            is_over.set()
            vandal.join()
        for shard in data.shards:
            check_shard(cache, shard)


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_200_caches_in_one_process(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path, num_shards=2, num_bytes=1000)
    before, threads = num_descriptors(), set(threading.enumerate())  # those of other tests may end meanwhile
    caches = []
    for number in range(200):
        stream = open_dataset(tmp_path).stream()
        cache = Cache([type(stream)(directory=tmp_path / f"c{number}", store=stream.store)])
        check_shard(cache, data.shards[0])
        caches.append(cache)
    assert num_descriptors() <= before + 2 + 200  # each has its edition open
    assert len(set(threading.enumerate()) - threads) == 1  # which listens to the fetcher for all of them
    (pid,) = fetcher_pids(runtime)
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 40
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) < 40
    for cache in caches:
        cache.close()
    assert num_descriptors() <= before
    assert set(threading.enumerate()) <= threads


def test_nothing_in_shared_memory(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)
        assert not {path for path in set(Path("/dev/shm").iterdir()) - before if "penstock" in path.name}


def test_the_environment_of_the_first_client_does_not_matter(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    code = "import os; os.environ['AWS_REGION'] = 'nowhere'\n" + CLIENT + "    sys.stdin.read()"
    first = start_client(code, tmp_path, AWS_PROFILE="other")
    wait_until(lambda: len(data.cached_names()) == 6)
    (pid,) = fetcher_pids(runtime)
    assert b"AWS_" not in Path(f"/proc/{pid}/environ").read_bytes()
    first.kill()
    first.communicate()


STUCK = (
    "import os; os.fork() and os._exit(0); from penstock.fetcher import main; import time;"
    " main.Scheduler.close = lambda _: time.sleep(1000); main.main()  # penstock.fetcher.main"
)


def test_a_fetcher_that_cannot_leave_holds_up_no_client(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.cache.connection._PROGRAM", STUCK)
        with data.cache() as cache:
            check_shard(cache, 0)
            (stuck,) = fetcher_pids(runtime)
    try:
        wait_until(lambda: not list(runtime.glob("*.sock")))  # it is about to leave
        with data.cache() as cache:
            check_shard(cache, 1)
            assert set(fetcher_pids(runtime)) > {stuck}
    finally:
        os.kill(stuck, signal.SIGKILL)


def test_a_fetcher_whose_runtime_folder_is_gone_does_not_make_it_anew(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        check_shard(cache, 0)
        shutil.rmtree(runtime)
    wait_until(lambda: not fetcher_pids(runtime))
    assert not runtime.exists()


# --- A full disk --------------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_and_passes(tmp_path: Path, runtime: Path) -> None:
    """A small file system of its own if this machine lets us mount one, else a limit on the size of files."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if os.getuid() == 0 and shutil.which("mount") and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            fill_disk(tmp_path, small)
        finally:
            subprocess.run(["umount", "-l", str(small)], check=True)
    else:
        limit_files(tmp_path, runtime)


FULL = """
import json, sys
from pathlib import Path
from typing import Any, cast
from penstock.errors import CacheError
from tests.cache.kit import check_shard, open_dataset
data = open_dataset(Path(sys.argv[1]))
with data.cache() as cache:
    try:
        check_shard(cache, data.shards[0])
    except CacheError as error:
        print(json.dumps(str(error)))
"""


def fill_disk(folder: Path, small: Path) -> None:
    data = write_dataset(folder / "data", num_shards=4, num_bytes=300_000, compression="zstd")
    data.local.symlink_to(small)
    (small / "ballast").write_bytes(bytes(800_000))
    with data.cache() as cache:
        for _ in range(2):
            with pytest.raises(Exception, match=r"disk space in .*small for shard\.00000\.data"):
                check_shard(cache, data.shards[0])
        assert not list(small.rglob("*.part"))
        (small / "ballast").unlink()
        check_shard(cache, data.shards[0])


def limit_files(folder: Path, runtime: Path) -> None:
    write_dataset(folder / "data", num_shards=1, num_bytes=300_000, compression="zstd")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        client = start_client(FULL, folder / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "disk space in" in json.loads(finish(client))
    assert not left_over(runtime)  # the limit goes with it
    finish(start_client(CLIENT, folder / "data"))


def test_a_limit_on_files_acts_like_a_full_disk(tmp_path: Path, runtime: Path) -> None:
    limit_files(tmp_path, runtime)
