"""What is published survives a loss of power: bytes before names, shards before their index.

Whether the disk obeys cannot be seen from here. In which order it is told can.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock import CSVWriter, MDSWriter, merge_index
from penstock.storage.local import LocalStore

Event = tuple[str, str]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Record what is flushed and named, in this order."""
    seen: list[Event] = []

    def record(name: str, path_of: Any) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **more: Any) -> Any:
            path = path_of(*arguments)
            result = real(*arguments, **more)
            seen.append((name, path))
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("fdatasync", "fsync"):
        record(name, lambda descriptor: str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    record("replace", lambda _, target: os.fspath(target))
    return seen


def check_files(events: list[Event], folder: Path) -> list[Path]:
    """Every file was flushed under its hidden name right before it got its own."""
    named = [Path(path) for kind, path in events if kind == "replace" and Path(path).parent == folder]
    for path in named:
        at = events.index(("replace", str(path)))
        before = [Path(there) for kind, there in events[:at] if kind == "fdatasync"]
        assert any(part.parent == folder and part.name.startswith(f".{path.name}.") for part in before), path
    return named


@pytest.mark.parametrize("kind", [MDSWriter, CSVWriter])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_shards_are_on_the_disk_before_their_index(
    tmp_path: Path, events: list[Event], kind: type[MDSWriter | CSVWriter], compression: str | None
) -> None:
    folder = tmp_path / "data"
    with kind(out=folder, columns={"x": "str"}, compression=compression, size_limit=2000) as writer:
        for _ in range(50):
            writer.write({"x": "0" * 100})
    named = check_files(events, folder)
    assert len(named) > 3
    assert named[-1] == folder / "index.json"
    kinds = [event if event[0] != "fdatasync" else ("fdatasync", "") for event in events]
    index = kinds.index(("replace", str(folder / "index.json")))
    last_shard = max(at for at, event in enumerate(kinds) if event[0] == "replace" and at != index)
    assert ("fsync", str(folder)) in kinds[last_shard:index]  # the shards' names
    assert ("fsync", str(folder)) in kinds[index:]  # the index's
    assert ("fsync", str(tmp_path)) in kinds[index:]  # the folder's, which is new


def test_an_old_index_cannot_come_back(tmp_path: Path, events: list[Event]) -> None:
    for _ in range(2):
        events.clear()
        with MDSWriter(out=tmp_path / "data", columns={"x": "int"}, exist_ok=True) as writer:
            writer.write({"x": 1})
    named = [at for at, event in enumerate(events) if event == ("replace", str(tmp_path / "data" / "index.json"))]
    first, second = named  # the shards get their names in between, when no index says that these are of the old dataset
    assert ("fsync", str(tmp_path / "data")) in events[:first]
    assert events[first:second].count(("fsync", str(tmp_path / "data"))) == 2  # the new index, then the names


def test_a_joint_index(tmp_path: Path, events: list[Event]) -> None:
    with MDSWriter(out=tmp_path / "a", columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    events.clear()
    merge_index(tmp_path)
    assert check_files(events, tmp_path) == [tmp_path / "index.json"]
    assert events[-1][0] == "fsync"
    assert ("fsync", str(tmp_path)) in events[-2:]


def test_uploads_to_a_folder(tmp_path: Path, events: list[Event]) -> None:
    (tmp_path / "x").write_bytes(b"1")
    LocalStore(tmp_path / "store").upload(tmp_path / "x", "a/b")
    assert check_files(events, tmp_path / "store" / "a") == [tmp_path / "store" / "a" / "b"]
    assert events[-1] == ("fsync", str(tmp_path / "store" / "a"))


def test_what_only_passes_through_is_not_flushed(tmp_path: Path, events: list[Event]) -> None:
    for out in ("memory://flush/train", (tmp_path / "local", "memory://flush/pair")):
        with MDSWriter(out=out, columns={"x": "int"}) as writer:
            writer.write({"x": 1})
    assert not [event for event in events if event[0] in ("fdatasync", "fsync")]
