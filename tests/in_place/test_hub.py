"""Datasets of the Hugging Face Hub: their files in place, and the commit that a state carries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Stream, StreamingDataset
from penstock.cli.main import main
from penstock.errors import ConfigError, ResumeError, StoreError
from tests.in_place.kinds import KINDS
from tests.servers.hub import TOKEN, HubServer, Repo, running_hub
from tests.servers.script import Answer, Request, run_script
from tests.streaming import private_places, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARQUET, JSONL = KINDS["parquet"], KINDS["jsonl"]

# --- Over the network -------------------------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with running_hub() as server:
        yield server


def files_of(folder: Path, below: str = "") -> dict[str, bytes]:
    return {f"{below}{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}


def open_hub(hub: HubServer, place: str = "hf://datasets/org/data", **options: Any) -> StreamingDataset:
    settings: dict[str, Any] = {"storage_options": hub.options(), "shuffle": True, "batch_size": 10}
    return StreamingDataset(remote=place, **{**settings, **options})


def test_a_split_is_read_in_place(hub: HubServer, tmp_path: Path) -> None:
    train = files_of(PARQUET.write_files(tmp_path / "train"), "data/train/")
    other = files_of(PARQUET.write_files(tmp_path / "test", 1), "data/test/")
    hub.repos["datasets/org/data"] = Repo()
    hub.repos["datasets/org/data"].commit("main", {**train, **other, "README.md": b"# Words"})
    with open_hub(hub, split="train") as dataset:
        assert sorted(PARQUET.numbers(dataset)) == list(range(200))
    with open_hub(hub, "hf://datasets/org/data/data/test/*.parquet") as dataset:
        assert sorted(PARQUET.numbers(dataset)) == list(range(50))
    with pytest.raises(ConfigError, match="several splits: pass split=, one of test, train"):
        open_hub(hub)


def test_a_split_with_an_index_is_what_it_was(hub: HubServer, tmp_path: Path) -> None:
    ours = write_samples(tmp_path / "ours", 20)
    names = {str(path.relative_to(ours)): path.read_bytes() for path in ours.rglob("*") if path.is_file()}
    hub.repos["datasets/org/data"] = Repo()
    hub.repos["datasets/org/data"].commit("main", {f"train/{name}": data for name, data in names.items()})
    with open_hub(hub, split="train") as dataset:
        assert sorted(sample["id"] for sample in dataset) == list(range(20))


def test_loading_a_state_adopts_its_commit(hub: HubServer, tmp_path: Path) -> None:
    hub.repos["datasets/org/data"] = Repo()
    first = hub.repos["datasets/org/data"].commit("main", files_of(JSONL.write_files(tmp_path / "one")))
    with open_hub(hub) as dataset:
        samples = iter(dataset)
        begun = JSONL.numbers(next(samples) for _ in range(50))
        state = json.loads(json.dumps(dataset.state_dict()))
        rest = JSONL.numbers(samples)
    assert state["revisions"] == {"0": first}
    second = hub.repos["datasets/org/data"].commit("main", files_of(JSONL.write_files(tmp_path / "two", 6)))
    with private_places():  # another machine, where the branch is what it is now
        with open_hub(hub) as dataset:
            assert dataset.num_samples == 300
            dataset.load_state_dict(state)
            assert dataset.num_samples == 200
            assert JSONL.numbers(dataset) == rest
            assert sorted(begun + rest) == list(range(200))
        with open_hub(hub, f"hf://datasets/org/data@{second}") as dataset:
            dataset.load_state_dict(state)
            assert dataset.num_samples == 300  # a commit that is named is the one that is read
            with pytest.raises(ResumeError, match="has grown since the state was saved"):
                next(iter(dataset))


def test_a_mix_with_shards_goes_on_at_its_commit(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.repos["datasets/org/data"] = Repo()
    first = repo.commit("main", files_of(PARQUET.write_files(tmp_path / "one"), "en/train/"))
    ours = write_samples(tmp_path / "ours", 60)

    def mixed() -> StreamingDataset:
        there = Stream(
            remote="hf://datasets/org/data", subset="en", split="train", storage_options=hub.options(), proportion=0.5
        )
        streams = [Stream(remote=str(ours), proportion=0.5), there]
        return StreamingDataset(streams=streams, shuffle=True, batch_size=10, epoch_size=80)

    with mixed() as dataset:
        samples = iter(dataset)
        assert len({tuple(next(samples)) for _ in range(30)}) == 2
        state = json.loads(json.dumps(dataset.state_dict()))
        rest = [repr(sample) for sample in samples]
    assert state["revisions"] == {"1": first}
    assert "hf_secret" not in json.dumps(state)
    repo.commit("main", files_of(PARQUET.write_files(tmp_path / "two", 6), "en/train/"))
    with private_places(), mixed() as dataset:
        dataset.load_state_dict(state)
        assert [repr(sample) for sample in dataset] == rest


def test_the_commands_take_places_on_the_hub(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repos["datasets/org/data"] = Repo()
    train = files_of(PARQUET.write_files(tmp_path / "train", 2), "en/train/")
    repo.branches["v1"] = repo.commit("main", {**train, **files_of(PARQUET.write_files(tmp_path / "de", 1), "de/")})
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    place = ["hf://datasets/org/data@v1", "--subset", "en", "--split", "train"]
    assert main(["index", *place, "--out", str(tmp_path / "index")]) == 0
    assert "100 samples in 2 shards of 2 files" in capsys.readouterr().out
    assert main(["inspect", *place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_samples"] == 100
    assert main(["verify", *place, "--values"]) == 0
    assert "100 samples" in capsys.readouterr().out
    assert main(["head", "hf://datasets/org/data@v1/de/*.parquet", "-n", "2", "--columns", PARQUET.text]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1]) == {PARQUET.text: "row 1 ü"}
    assert main(["index", *place, "--store"]) == 0  # in a commit of its own, which is then that of the branch
    monkeypatch.setattr(hub, "requests", [])
    with private_places(), open_hub(hub, place[0], subset="en", split="train") as dataset:
        assert sorted(PARQUET.numbers(dataset)) == list(range(100))
    assert any(".penstock-index" in request for request in hub.requests)
    assert main(["head", "hf://datasets/org/data@v2"]) == 2
    assert "no such revision" in capsys.readouterr().err


def test_how_often_to_ask_is_heeded_from_the_first_question_on() -> None:
    """A name that looks like a glob might be that of a folder: to ask whether it is took two minutes."""
    commit = json.dumps({"id": "org/name", "sha": "a" * 40, "siblings": []}).encode()

    def answer(request: Request) -> Answer:
        return Answer(200, commit) if "/revision/" in request.path else Answer(503)

    with run_script(answer) as server:
        stream = Stream(
            remote="hf://datasets/org/name/**/*.parquet",
            storage_options={"endpoint": server.url, "token": "none"},
            download_retry=0,
        )
        with pytest.raises(StoreError, match="the Hub answered 503"):
            StreamingDataset(streams=[stream], batch_size=1)
        asked = [request.path.rpartition("/")[2].partition("?")[0] for request in server.requests]
    assert asked.count("index.json") == 1
    assert len(asked) < 6
