"""What was saved, uploaded to the Hub: one commit with a card, nothing stale, nothing of others touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

from penstock import ParquetShardedSource, Pipeline, StreamingDataset
from penstock.errors import AccessDeniedError
from tests.pipeline.texts import settings
from tests.servers.hub import TOKEN, HubServer, Repo, running_hub
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# huggingface_hub's own way to send a file, which its HTTP library does not like.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with running_hub() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the stub has no such storage
        disable_progress_bars()
        yield server
        enable_progress_bars()


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def push(data: Path, hub: HubServer, repo: str, **save: Any) -> Pipeline:
    options = {"hf": {"endpoint": hub.endpoint}}
    config = settings(data, storage_options=options)
    config["save"] = {"enabled": True, "output_dir": f"{data}/out", "push_to_hub": True, "hub_repo_id": repo, **save}
    config["save"].setdefault("hub_token", TOKEN)
    pipeline = Pipeline.from_config(config).source().save()
    pipeline.build()
    return pipeline


def files_of(hub: HubServer, repo: str) -> dict[str, bytes]:
    there = hub.repos[f"datasets/{repo}"]
    return there.commits[there.branches["main"]]


def test_one_commit_with_a_card(data: Path, hub: HubServer) -> None:
    push(data, hub, "org/fresh", num_shards=2, hub_private=True)
    repo = hub.repos["datasets/org/fresh"]
    assert repo.is_private
    assert len(repo.commits) == 2  # the empty one that it is made with, and ours
    names = ["shard-00000.parquet", "shard-00001.parquet", "_manifest.json"]
    expected = {f"{dataset}/{name}" for dataset in ("web", "books") for name in names}
    assert set(files_of(hub, "org/fresh")) == expected | {"README.md"}
    card = files_of(hub, "org/fresh")["README.md"].decode()
    assert '- config_name: "web"\n  data_files: "web/shard-*"' in card
    assert "| books | parquet | 100 | 2 |" in card
    url = "hf://datasets/org/fresh/web/shard-*"
    assert f'ParquetShardedSource("{url}")' in card
    assert len(ParquetShardedSource(url, storage_options=hub.options())) == 300  # as the card says


def test_again_it_replaces_what_it_wrote_and_nothing_else(data: Path, hub: HubServer) -> None:
    push(data, hub, "org/again", num_shards=5)
    repo = hub.repos["datasets/org/again"]
    repo.commit("main", {**files_of(hub, "org/again"), "web/notes.txt": b"mine", "other/shard-00000.parquet": b"mine"})
    push(data, hub, "org/again", num_shards=2, overwrite=True)
    after = files_of(hub, "org/again")
    assert sorted(name for name in after if name.startswith("web/shard")) == [
        "web/shard-00000.parquet",
        "web/shard-00001.parquet",
    ]
    assert after["web/notes.txt"] == after["other/shard-00000.parquet"] == b"mine"
    assert "| web | parquet | 300 | 2 |" in after["README.md"].decode()


def test_a_card_written_by_hand_stays(data: Path, hub: HubServer) -> None:
    hub.repos["datasets/org/mine"] = Repo()
    hub.repos["datasets/org/mine"].commit("main", {"README.md": b"# my own words"})
    push(data, hub, "org/mine", format="mds")
    assert files_of(hub, "org/mine")["README.md"] == b"# my own words"
    assert not hub.repos["datasets/org/mine"].is_private
    dataset = StreamingDataset(
        remote="hf://datasets/org/mine/books", storage_options=hub.options(), batch_size=4, shuffle=False
    )
    assert len(dataset) == 100


def test_what_goes_wrong_is_raised_and_shows_no_secret(data: Path, hub: HubServer) -> None:
    with pytest.raises(AccessDeniedError) as raised:
        push(data, hub, "org/secret", hub_token="hf_wrong_secret")
    assert "hf_wrong_secret" not in str(raised.value)
    assert "datasets/org/secret" not in hub.repos
    assert (data / "out" / "web" / "_manifest.json").exists()  # saved, and not lost
    push(data, hub, "org/secret", resume=True)
    assert "web/shard-00000.parquet" in files_of(hub, "org/secret")
