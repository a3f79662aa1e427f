"""What was saved to folders, uploaded to a dataset repository of the Hugging Face Hub in one commit, with a card."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ObjectNotFoundError
from penstock.publish.dataset_writer import MANIFEST_NAME, is_saved_file
from penstock.storage.base import open_store, resolve_store, url_scheme
from penstock.storage.hub import HubStore
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CARD_NAME = "README.md"
_MARK = (
    "<!-- Written by penstock, which replaces this text with the next upload. Remove this line to keep your own. -->"
)
_READERS = {
    "parquet": "ParquetShardedSource",
    "arrow": "ArrowShardedSource",
    "jsonl": "JsonShardedSource",
}


@dataclass(frozen=True, slots=True)
class SavedFolder:
    """A dataset that was saved to a folder, as its manifest describes it."""

    name: str
    folder: Path
    format: str
    num_rows: int
    files: tuple[tuple[str, int], ...]  # names and sizes

    @classmethod
    def open(cls, name: str, path: str) -> SavedFolder:
        """Read the manifest of a folder."""
        folder = LocalStore.from_url(path).root
        manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
        files = tuple((file["name"], file["bytes"]) for file in manifest["files"])
        return cls(name, folder, manifest["key"]["format"], manifest["num_rows"], files)

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(size for _, size in self.files)


def check_hub_target(repo_id: str | None, paths: Sequence[str]) -> None:
    """Refuse what cannot be uploaded, before anything is saved."""
    if repo_id is None or repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ConfigError(f"hub_repo_id={repo_id!r} is not the name of a repository: write 'organization/name'")
    for path in paths:
        if url_scheme(path) not in (None, "file"):
            raise ConfigError(
                f"push_to_hub=True uploads what was saved to a folder, and {path} is in a store: set output_dir= to a"
                " folder of this machine"
            )


def push_to_hub(
    saved: Sequence[SavedFolder],
    repo_id: str,
    *,
    private: bool = False,
    token: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Upload datasets, each to a folder of its name, and replace what stood there, all in one commit.

    A card says what there is and how to read it. One that was written by hand stays as it is.
    """
    url = f"hf://datasets/{repo_id}"
    of_hub = (storage_options or {}).get("hf")
    options = {"hf": {**(of_hub if isinstance(of_hub, dict) else {}), **({"token": token} if token else {})}}
    store = open_store(resolve_store(url, options))
    assert isinstance(store, HubStore)  # noqa: S101  which is what such a URL names
    store.make_repo(private=private)
    files: dict[str, Path | bytes] = {}
    for each in saved:
        for name in (*(name for name, _ in each.files), MANIFEST_NAME):
            files[f"{each.name}/{name}"] = each.folder / name
    stale = [
        info.key
        for each in saved
        for info in store.list(f"{each.name}/")
        if info.key not in files and is_saved_file(info.key.removeprefix(f"{each.name}/"))
    ]
    card = ""
    with suppress(ObjectNotFoundError):
        card = store.read(CARD_NAME).decode(errors="replace")
    if not card or _MARK in card:
        files[CARD_NAME] = make_card(repo_id, saved).encode()
    num_rows = sum(each.num_rows for each in saved)
    store.change(files, stale, f"Upload {', '.join(each.name for each in saved)}: {num_rows:,} samples")


def make_card(repo_id: str, saved: Sequence[SavedFolder]) -> str:
    """Describe datasets: what the Hub reads at the top, and what people read below it."""
    configs = "".join(
        f"- config_name: {json.dumps(each.name)}\n  data_files: {json.dumps(f'{each.name}/shard-*')}\n"
        for each in saved
        if each.format in _READERS
    )
    head = f"---\nconfigs:\n{configs}---\n" if configs else ""
    rows = ""
    for each in saved:
        num_shards = sum(name.startswith("shard") for name, _ in each.files)
        rows += f"| {each.name} | {each.format} | {each.num_rows:,} | {num_shards:,} | {each.num_bytes:,} |\n"
    reading = "\n".join(_reading(repo_id, each) for each in saved)
    return (
        f"{head}# {repo_id.partition('/')[2]}\n\n{_MARK}\n\n"
        f"| dataset | format | samples | shards | bytes |\n| --- | --- | --- | --- | --- |\n{rows}\n"
        f"```python\n{reading}\n```\n"
    )


def _reading(repo_id: str, each: SavedFolder) -> str:
    url = f"hf://datasets/{repo_id}/{each.name}"
    if each.format == "mds":
        return f'from penstock import StreamingDataset\n\ndataset = StreamingDataset(remote="{url}", shuffle=True)'
    reader = _READERS[each.format]
    return f'from penstock import {reader}\n\nsource = {reader}("{url}/shard-*")'
