"""What every store must do, as a test class that plug-ins inherit."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, ObjectChangedError, ObjectNotFoundError, StoreError
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.storage.base import Store


class StoreContract:
    """Run by pytest through a subclass that says how to make an empty store:

    ```python
    class TestMyStore(StoreContract):
        def make_store(self, folder):
            return open_store(f"mine://{folder.name}")
    ```
    """

    def make_store(self, folder: Path) -> Store:
        """Give an empty store; `folder` is an empty folder of the test's own."""
        raise NotImplementedError

    def put(self, store: Store, folder: Path, key: str, data: bytes) -> None:
        """Upload bytes."""
        path = folder / "upload-source"
        path.write_bytes(data)
        store.upload(path, key)

    def test_what_is_uploaded_is_read(self, tmp_path: Path) -> None:
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

    def test_ranges(self, tmp_path: Path) -> None:
        """Ranges come back exactly; one past the end is an error, not a shorter answer."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"0123456789")
        for begin, end in ((0, 10), (0, 1), (9, 10), (3, 7), (4, 4)):
            assert store.read("x", Span(begin, end)) == b"0123456789"[begin:end]
            store.download("x", tmp_path / "part", Span(begin, end))
            assert (tmp_path / "part").read_bytes() == b"0123456789"[begin:end]
        self.check_raises(StoreError, lambda: store.read("x", Span(5, 11)))

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

    def test_empty_objects(self, tmp_path: Path) -> None:
        """An object may have no bytes."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "empty", b"")
        assert store.read("empty") == b""
        assert store.stat("empty").num_bytes == 0

    def test_overwriting(self, tmp_path: Path) -> None:
        """A second upload replaces the first."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"old and long")
        self.put(store, tmp_path, "x", b"new")
        assert store.read("x") == b"new"
        assert [info.num_bytes for info in store.list()] == [3]

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
        assert [info.key for info in store.list("a")] == ["a/10", "a/2", "a/b/c", "ab"]
        assert list(store.list("nothing")) == []

    def test_deleting(self, tmp_path: Path) -> None:
        """A deleted object is gone, and deleting it again is an error."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "x", b"1")
        store.delete("x")
        assert list(store.list()) == []
        self.check_raises(ObjectNotFoundError, lambda: store.delete("x"))

    def test_missing_objects(self, tmp_path: Path) -> None:
        """What is not there is a FileNotFoundError, and leaves no file behind."""
        store = self.make_store(tmp_path / "store")
        self.put(store, tmp_path, "folder/x", b"1")
        for key in ("missing", "folder", "folder/x/y"):
            self.check_raises(ObjectNotFoundError, lambda key=key: store.read(key))  # type: ignore[misc]
            self.check_raises(ObjectNotFoundError, lambda key=key: store.stat(key))  # type: ignore[misc]
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
            self.check_raises(ConfigError, lambda key=key: store.upload(tmp_path / "secret", key))  # type: ignore[misc]

    def check_raises(self, kind: type[Exception], action: Callable[[], object]) -> None:
        """Assert that an action raises an error of this kind."""
        try:
            action()
        except kind:
            return
        raise AssertionError(f"expected {kind.__name__}")
