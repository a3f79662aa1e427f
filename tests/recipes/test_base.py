"""What all recipes share: flags, `python -m`, the command, entry points; and readers that pass on every argument."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.main import main
from penstock.data.dataset import StreamingDataset
from penstock.data.stream import Stream
from penstock.errors import ConfigError
from penstock.recipes.table import recipes
from penstock.testing import write_lines
from tests.recipes.readers import own_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AREAS = ("text", "vision", "multimodal")


def readers() -> Iterator[type[StreamingDataset]]:
    for area in AREAS:
        module = import_module(f"penstock.recipes.{area}")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, StreamingDataset):
                yield value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset that every reader can be opened on."""
    folder = tmp_path_factory.mktemp("readers")
    raw = write_lines(
        folder / "raw/val.jsonl", [{"text": "abc", "meta": {"pile_set_name": "ArXiv"}} for _ in range(4)]
    ).parent
    recipes.get("pile").convert(in_root=raw, out_root=folder / "out", splits="val", hashes="sha1", progress_bar=0)
    return folder


# Arguments of `StreamingDataset` with a value that is not their default; those that come later are passed as they are.
VALUES: dict[str, Any] = {
    "split": "val",
    "format": "mds",
    "types": None,  # of files of CSV only
    "subset": None,  # of the Hub only
    "download_retry": 5,
    "download_timeout": 7.0,
    "validate_hash": "sha1",
    "keep_zip": True,
    "epoch_size": 3,
    "predownload": 100,
    "cache_limit": "1gb",
    "sampling_method": "fixed",
    "sampling_granularity": 2,
    "partition_algo": "relaxed",
    "num_canonical_nodes": 2,
    "batch_size": 2,
    "shuffle": True,
    "shuffle_algo": "py1e",
    "shuffle_seed": 1,
    "shuffle_block_size": 1000,
    "batching_method": "stratified",
    "allow_unsafe_types": True,
    "replication": 1,
    "stream_name": "stream",
    "stream_config": {"choose": 2},
    "rank": 0,
    "world_size": 1,
    "num_nodes": 1,
    "on_error": "skip",
    "image_decoder": "raw",
    "columns": ["text"],
    "columnar": False,
    "order": "native",
    "epoch_end": "drop",
    "schedule": [(0, [1.0])],
    "mosaic_version": "0.5",
    "allow_mix_change": True,
    "grow": "epoch",
    "seed_globals": True,
    "storage_options": {},
    "sample_transform": lambda sample: sample,
    "batch_transform": lambda columns: columns,
}
SEAT = {name: VALUES[name] for name in ("rank", "world_size", "num_nodes")}
PLACES = {"streams", "remote", "local"}
DEFAULTS = {name: each.default for name, each in inspect.signature(StreamingDataset.__init__).parameters.items()}
ARGUMENTS = sorted(DEFAULTS.keys() - {"self"})


@pytest.mark.parametrize("reader", list(readers()), ids=lambda reader: reader.__name__)
def test_readers_take_every_argument_of_their_base(reader: type[StreamingDataset], folder: Path) -> None:
    own = own_arguments(reader.__name__, folder)
    place = str(folder / "out" / "val")
    seen: list[dict[str, Any]] = []
    base = StreamingDataset.__init__

    def noted(self: StreamingDataset, **given: Any) -> None:
        seen.append(given)
        base(self, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamingDataset, "__init__", noted)
        for name in ARGUMENTS:
            if name == "streams":
                reader(streams=[Stream(local=place)], **own)
            elif name == "split":
                reader(local=str(folder / "out"), split="val", **own)
            elif name in PLACES:
                reader(**{name: place, **own})
            else:
                together = (
                    {"rank": 0, "world_size": 1, "num_nodes": 1} if name in ("rank", "world_size", "num_nodes") else {}
                )
                reader(local=place, **{**together, name: VALUES.get(name, DEFAULTS[name])}, **own)
            assert name in seen[-1]
            assert not own.keys() & seen[-1].keys()


@pytest.mark.parametrize("reader", list(readers()), ids=lambda reader: reader.__name__)
def test_readers_copy_no_list_of_arguments(reader: type[StreamingDataset]) -> None:
    if reader.__init__ is not StreamingDataset.__init__:
        assert not {*inspect.signature(reader.__init__).parameters} & {*ARGUMENTS} - {"self"}


@pytest.mark.parametrize("name", recipes.names(of_packages=False))
def test_every_recipe_explains_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["convert", "--recipe", name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    actions = recipes.get(name).parser()._actions
    assert all(action.help for action in actions)
    assert all(action.option_strings[0] in shown for action in actions if action.help != "==SUPPRESS==")


@pytest.mark.parametrize("name", recipes.names(of_packages=False))
def test_every_recipe_is_a_program(name: str) -> None:
    module = import_module(type(recipes.get(name)).__module__)
    assert recipes.get(name) is module.recipe
    assert (module.parse_args, module.main) == (module.recipe.parse_args, module.recipe.main)


def test_python_runs_a_recipe_and_shows_one_line_of_what_is_wrong(tmp_path: Path) -> None:
    raw = write_lines(tmp_path / "raw/val.jsonl", [{"text": "a", "meta": {"pile_set_name": "ArXiv"}}]).parent
    roots = ["--in_root", str(raw), "--out_root", str(tmp_path / "out")]
    command = [sys.executable, "-m", "penstock.recipes.text.pile", *roots]
    failed = subprocess.run([*command, "--splits", "test"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("python -m penstock.recipes.text.pile: ")
    assert len(failed.stderr.splitlines()) == 1


def test_wrong_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["--json", "--recipe", "pile"], ["raw", "--recipe", "pile"], ["--recipe"], ["raw"]):
        with pytest.raises(SystemExit):
            main(["convert", *command])
    assert "--recipe NAME first" in capsys.readouterr().err
    assert main(["convert", "--recipe", "piles"]) == 2
    assert "did you mean 'pile'" in capsys.readouterr().err


def test_wrong_flags_are_refused_from_python() -> None:
    with pytest.raises(ConfigError, match="no flag 'worker'"):
        recipes.get("pile").convert(in_root="raw", out_root="out", worker=1)
    with pytest.raises(ConfigError, match="needs out_root="):
        recipes.get("pile").convert(in_root="raw")
