"""What every store must do, as test classes that plug-ins inherit."""

from __future__ import annotations

import pickle
import random
import time
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, ObjectChangedError, ObjectNotFoundError, StoreError
from penstock.storage.base import ReadsFirst
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.storage.base import Store

# Names that people give to files, each of which some store has got wrong.
ODD_KEYS = (
    "é ü/ß",
    "日本語/データ.mds",
    "🙂",
    "sp ace+%25",
    "a%2Fb",
    "a=b/c&d=e",
    "semi;colon,comma",
    "(brackets)[and]{more}",
    "quote's",
    "at@sign:colon!",
    "tilde~dollar$",
    "dots..in...names",
    ".hidden",
    "upper/CASE",
    "k" * 200,
)


_A_DAY_NS = 86_400 * 10**9  # clocks of servers differ, and units of time by far more


class StoreReadContract:
    """What a store does that is only read from. A subclass says how to make it, and how to put something there."""

    secrets: tuple[str, ...] = ()  # of the credentials that the store is opened with
    odd_keys: tuple[str, ...] = ODD_KEYS
    missing_keys: tuple[str, ...] = ("missing", "folder", "folder/x/y")  # beside an object folder/x

    def make_store(self, folder: Path) -> Store:
        """Return an empty store; `folder` is a folder of the test's own, which need not exist."""
        raise NotImplementedError

    def put(self, store: Store, folder: Path, key: str, data: bytes) -> None:
        """Put bytes under a key."""
        raise NotImplementedError

    def test_what_is_there_is_read(self, tmp_path: Path) -> None:
        """Whole objects come back, by read and by download, also through a pickled copy."""
        store = self.make_store(tmp_path / "store")
        data = bytes(range(256)) * 40
        self.put(store, tmp_path, "a/b.bin", data)
        copy: Store = pickle.loads(pickle.dumps(store))  # noqa: S301
        for reader in (store, copy):
            assert reader.read("a/b.bin") == data
            reader.download("a/b.bin", tmp_path / "new" / "b.bin")
            assert (tmp_path / "new" / "b.bin").read_bytes() == data
            info = reader.stat("a/b.bin")
            assert (info.key, info.num_bytes) == ("a/b.bin", len(data))

    def test_objects_of_several_pieces(self, tmp_path: Path) -> None:
        """Objects that are larger than a piece come back whole."""
        store = self.make_store(tmp_path / "store")
        data = random.Random(0).randbytes(9 << 20)  # noqa: S311
        self.put(store, tmp_path, "large", data)
        assert store.read("large") == data
        store.download("large", tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == data
        span = Span(1234, len(data) - 99)
        assert store.read("large", span) == data[span.begin : span.end]
        store.download("large", tmp_path / "part", span)
        assert (tmp_path / "part").read_bytes() == data[span.begin : span.end]

    def test_ranges(self, tmp_path: Path) -> None:
        """Ranges come back exactly; one past the end is an error, not a shorter answer."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"0123456789")
        for begin, end in ((0, 10), (0, 1), (9, 10), (3, 7), (4, 4)):
            assert store.read("x", Span(begin, end)) == b"0123456789"[begin:end]
            store.download("x", tmp_path / "part", Span(begin, end))
            assert (tmp_path / "part").read_bytes() == b"0123456789"[begin:end]
        for span in (Span(5, 11), Span(10, 11), Span(20, 30)):
            self.check_raises(StoreError, lambda span=span: store.read("x", span))  # type: ignore[misc]
            self.check_raises(StoreError, lambda span=span: store.read_piece("x", span))  # type: ignore[misc]

    def test_pieces_of_one_version(self, tmp_path: Path) -> None:
        """A piece says what the whole object is; after a change, a piece of the old version is an error."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"0123456789")
        data, info = store.read_piece("x", Span(2, 5))
        assert (bytes(data), info.key, info.num_bytes) == (b"234", "x", 10)
        assert bytes(store.read_piece("x", Span(5, 10), info.etag)[0]) == b"56789"
        self.put(store, tmp_path, "x", b"abcdefghijk")
        if info.etag is not None:
            self.check_raises(ObjectChangedError, lambda: store.read_piece("x", Span(5, 10), info.etag))

    def test_versions_and_times(self, tmp_path: Path) -> None:
        """Every way to ask what an object is tells one version and one time, which is about now."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"0123456789")
        info = store.stat("x")
        pieces = [store.read_piece("x", Span(0, 0)), store.read_piece("x", Span(2, 5))]
        if isinstance(store, ReadsFirst):
            pieces.append(store.read_first("x", 4))
        for _, found in pieces:
            assert (found.etag, found.modified_ns) == (info.etag, info.modified_ns)
        assert info.modified_ns is None or abs(info.modified_ns - time.time_ns()) < _A_DAY_NS
        self.put(store, tmp_path, "x", b"abcdefghijk")
        after = store.stat("x")
        assert info.etag is None or after.etag != info.etag
        if info.modified_ns is not None:
            assert after.modified_ns is not None
            assert after.modified_ns >= info.modified_ns

    def test_empty_objects(self, tmp_path: Path) -> None:
        """An object may have no bytes."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "empty", b"")
        assert store.read("empty") == b""
        assert store.stat("empty").num_bytes == 0
        store.download("empty", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b""
        assert store.read("empty", Span(0, 0)) == b""

    def test_odd_keys(self, tmp_path: Path) -> None:
        """Keys may hold what file names hold."""
        store = self.make_store(tmp_path / "store")
        for key in self.odd_keys:
            self.put(store, tmp_path, key, key.encode())
        for key in self.odd_keys:
            assert store.read(key) == key.encode(), key
            assert store.stat(key).key == key

    def test_missing_objects(self, tmp_path: Path) -> None:
        """What is not there is a FileNotFoundError, and leaves no file behind."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "folder/x", b"1")
        for key in self.missing_keys:
            self.check_raises(ObjectNotFoundError, lambda key=key: store.read(key))  # type: ignore[misc]
            self.check_raises(ObjectNotFoundError, lambda key=key: store.stat(key))  # type: ignore[misc]
            self.check_raises(
                ObjectNotFoundError,
                lambda key=key: store.read_piece(key, Span(0, 1)),  # type: ignore[misc]
            )
            self.check_raises(
                ObjectNotFoundError,
                lambda key=key: store.download(key, tmp_path / "out" / "file"),  # type: ignore[misc]
            )
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())

    def test_keys_stay_inside(self, tmp_path: Path) -> None:
        """A key cannot leave the root."""
        store = self.make_store(tmp_path / "store")
        (tmp_path / "secret").write_bytes(b"secret")
        for key in ("../secret", "/etc/hostname", "a/../../secret", "", "a//b", "./a"):
            self.check_raises(ConfigError, lambda key=key: store.read(key))  # type: ignore[misc]
            self.check_raises(ConfigError, lambda key=key: store.read_piece(key, Span(0, 1)))  # type: ignore[misc]
            self.check_raises(ConfigError, lambda key=key: store.stat(key))  # type: ignore[misc]
            self.check_raises(
                ConfigError,
                lambda key=key: store.download(key, tmp_path / "out"),  # type: ignore[misc]
            )

    def test_no_secret_is_shown(self, tmp_path: Path) -> None:
        """Neither a store nor its errors show what it was opened with."""
        store = self.make_store(tmp_path / "store")
        shown = repr(store) + str(store)
        try:
            store.read("missing")
        except ObjectNotFoundError as error:
            shown += f"{error} {error!r} {error.__cause__} {error.facts}"
        for secret in self.secrets:
            assert secret not in shown

    def check_raises(self, kind: type[Exception], action: Callable[[], object]) -> None:
        """Assert that an action raises an error of this kind."""
        try:
            action()
        except kind:
            return
        raise AssertionError(f"expected {kind.__name__}")


class StoreContract(StoreReadContract):
    """Run by pytest through a subclass that says how to make an empty store:

    ```python
    class TestMyStore(StoreContract):
        def make_store(self, folder):
            return open_store(f"mine://{folder.name}")
    ```
    """

    def put(self, store: Store, folder: Path, key: str, data: bytes) -> None:
        """Upload bytes."""
        path = folder / "upload-source"
        path.write_bytes(data)
        store.upload(path, key)

    def test_overwriting(self, tmp_path: Path) -> None:
        """A second upload replaces the first."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"old and long")
        self.put(store, tmp_path, "x", b"new")
        assert store.read("x") == b"new"
        assert [info.num_bytes for info in store.list()] == [3]

    def test_a_missing_file_is_not_uploaded(self, tmp_path: Path) -> None:
        """What is to be uploaded must be there."""
        store = self.make_store(tmp_path / "store")
        self.check_raises(ObjectNotFoundError, lambda: store.upload(tmp_path / "missing", "x"))
        assert list(store.list()) == []

    def test_listing(self, tmp_path: Path) -> None:
        """Lists are complete, sorted, and cut by prefix."""
        store = self.make_store(tmp_path / "store")
        assert list(store.list()) == []
        keys = ["z", "a/2", "a/10", "a/b/c", "ab", "é ü/ß", "sp ace+%25"]
        for number, key in enumerate(keys):
            self.put(store, tmp_path, key, b"x" * number)
        assert [info.key for info in store.list()] == sorted(keys)
        assert {info.key: info.num_bytes for info in store.list()} == {key: i for i, key in enumerate(keys)}
        assert [info.key for info in store.list("a/")] == ["a/10", "a/2", "a/b/c"]
        assert [info.key for info in store.list("a/b")] == ["a/b/c"]
        assert [info.key for info in store.list("a")] == ["a/10", "a/2", "a/b/c", "ab"]
        assert list(store.list("nothing")) == []

    def test_odd_keys_are_listed(self, tmp_path: Path) -> None:
        """Lists give keys as they were given, with what `stat` says of them."""
        store = self.make_store(tmp_path / "store")
        for key in self.odd_keys:
            self.put(store, tmp_path, key, key.encode())
        found = {info.key: info for info in store.list()}
        assert sorted(found) == sorted(self.odd_keys)
        for key, info in found.items():
            there = store.stat(key)
            assert info.num_bytes == len(key.encode())
            assert info.etag in (None, there.etag)
            assert info.modified_ns in (None, there.modified_ns)

    def test_deleting(self, tmp_path: Path) -> None:
        """A deleted object is gone, and deleting it again is an error."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"1")
        store.delete("x")
        assert list(store.list()) == []
        self.check_raises(ObjectNotFoundError, lambda: store.delete("x"))

    def test_nothing_is_written_outside(self, tmp_path: Path) -> None:
        """A key cannot leave the root."""
        store = self.make_store(tmp_path / "store")
        (tmp_path / "source").write_bytes(b"1")
        for key in ("../x", "/x", "a/../../x", "", "a//b", "./a"):
            self.check_raises(ConfigError, lambda key=key: store.upload(tmp_path / "source", key))  # type: ignore[misc]
            self.check_raises(ConfigError, lambda key=key: store.delete(key))  # type: ignore[misc]


class LargeObjectContract(StoreReadContract):
    """For stores that can be given an object of 5 GB without writing it."""

    def put_sparse(self, store: Store, folder: Path, key: str, num_bytes: int) -> Path:
        """Make an empty file of that size that the store shows under that key, and give its path."""
        raise NotImplementedError

    def test_beyond_four_gigabytes(self, tmp_path: Path) -> None:
        """Sizes and ranges do not end where 32 bits do."""
        store = self.make_store(tmp_path / "store")
        num_bytes = 5 << 30
        with self.put_sparse(store, tmp_path, "huge", num_bytes).open("r+b") as file:
            for begin in (0, (1 << 31) - 4, (1 << 32) - 4, num_bytes - 8):
                file.seek(begin)
                file.write(b"01234567")
        assert store.stat("huge").num_bytes == num_bytes
        for begin in (0, (1 << 31) - 4, (1 << 32) - 4, num_bytes - 8):
            assert store.read("huge", Span(begin, begin + 8)) == b"01234567"
            data, info = store.read_piece("huge", Span(begin + 1, begin + 8))
            assert (bytes(data), info.num_bytes) == (b"1234567", num_bytes)
        self.check_raises(StoreError, lambda: store.read("huge", Span(num_bytes - 1, num_bytes + 1)))
