"""`import penstock.as_streaming`: every public name of MosaicML Streaming is ours, or says what to use instead."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from fnmatch import fnmatchcase as fnmatch
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock.as_streaming
from penstock.as_streaming.modules import _SHARED, INSTEAD, NAMES
from penstock.errors import NotProvidedError

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = json.loads((Path(__file__).parents[1] / "golden/mosaic_names.json").read_text())


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def is_refused(name: str) -> bool:
    """Return whether a name is listed as one that has no counterpart, or lies below one."""
    return any(name == known or name.startswith(f"{known}.") for known in INSTEAD)


@pytest.mark.parametrize("release", RECORDED)
def test_every_public_name_is_ours_or_says_what_to_use_instead(release: str) -> None:
    for module, names in RECORDED[release].items():
        for name in names:
            full = f"{module}.{name}"
            if is_refused(full):
                with pytest.raises(ImportError, match=r"^penstock does not provide streaming\..*: ") as refused:
                    getattr(import_module(module), name)
                assert isinstance(refused.value, NotProvidedError)
            elif full in NAMES:
                assert import_module(full) is getattr(import_module(module), name)
            else:
                assert getattr(import_module(module), name) is not None, full


def is_of_scripts_or_transport(name: str) -> bool:
    """Return whether a name belongs to a script, to shared memory, or to what uploads and downloads."""
    parts = name.split(".")
    return "convert" in parts or INSTEAD.get(name) == _SHARED or {"shared", "constant", "storage"} & {*parts} != set()


@pytest.mark.parametrize("release", RECORDED)
def test_nearly_all_names_are_ours(release: str) -> None:
    names = {f"{module}.{name}" for module, names in RECORDED[release].items() for name in names}
    counted = {name for name in names if not is_of_scripts_or_transport(name)}
    assert sum(map(is_refused, counted)) <= 0.05 * len(counted)
    scripts = {name for name in names if ".convert." in name and name.endswith((".main", ".parse_args"))}
    assert scripts
    assert not [name for name in scripts if is_refused(name)]


# What a class or function of the original has and ours has not, by patterns of names; docs/migrating.md says so.
INTERNALS = (
    "*.create_pretraining_data.main",  # is given what is left of the command line
    "*.tfrecord.make_train_parallel.main",  # has an argument of another name than its body
    "compression.*.each",  # of release 0.5.0: all of a class's levels, as texts
    "*.Streaming*.cache_usage",  # our number, where release 0.13 has a number and 0.5 a method
    "*.Streaming*.evict_coldest_shard",
    "*.Streaming*.next_epoch",  # as `cache_usage`
    "*.Streaming*.on_exception",
    "*.Streaming*.resample_streams",
    "format.*Writer.cancel_future_jobs",
    "format.*Writer.encode_*",
    "format.*Writer.exception_callback",
    "format.*Writer.flush_shard",
    "format.*Reader.__init__",  # ours is made by `reader_from_json`
    "format.*Reader.decode_sample",
    "format.*Reader.evict",
    "format.*Reader.get_full_size",
    "format.*Reader.get_persistent_size",
    "format.*Reader.get_sample_data",
    "format.*Reader.init_local_dir",
    "format.*Reader.set_up_local",
    "format.mds.encodings.*List.underlying_encoder",
    "registry_utils.TypedRegistry.get_entry_point*",
    "stream.Stream.apply_default",  # takes other defaults
    "stream.Stream.apply_weights",
    "stream.Stream.download_shard",
    "stream.Stream.get_index_size",
    "stream.Stream.get_shards",
    "stream.Stream.init_local_dir",
    "stream.Stream.prepare_shard",
    "stream.Stream.set_up_local",
    "stream.Stream.validate_weights",
)


def described(release: str) -> Iterator[tuple[str, object, list[str] | None]]:
    """Yield each function and method of the original that is ours: its name, ours or None, and its arguments."""
    for module, names in RECORDED[release].items():
        for name, what in names.items():
            full = f"{module}.{name}"
            if what is None or is_refused(full):
                continue
            ours = getattr(import_module(module), name)
            if isinstance(what, list):
                yield full, ours, what
            else:
                for member, arguments in what.items():
                    yield f"{full}.{member}", ours if member == "__init__" else getattr(ours, member, None), arguments


def takes(ours: object, arguments: list[str]) -> bool:
    """Return whether something can be called with these arguments, each by its name."""
    if not callable(ours):
        return False
    given = inspect.signature(ours).parameters
    return any(each.kind is each.VAR_KEYWORD for each in given.values()) or set(arguments) <= given.keys()


def full_pattern(pattern: str) -> str:
    return pattern if pattern.startswith("*") else f"streaming.base.{pattern}"


def missing(release: str) -> set[str]:
    return {
        name
        for name, ours, arguments in described(release)
        if ours is None or (arguments is not None and not takes(ours, arguments))
    }


@pytest.mark.parametrize("release", RECORDED)
def test_methods_are_there_and_arguments_have_the_same_names(release: str) -> None:
    patterns = [full_pattern(pattern) for pattern in INTERNALS]
    assert sorted(name for name in missing(release) if not any(fnmatch(name, pattern) for pattern in patterns)) == []
    assert len(list(described(release))) > 200


def test_no_method_that_is_there_is_called_missing() -> None:
    names = {name for release in RECORDED for name in missing(release)}
    assert [pattern for pattern in INTERNALS if not any(fnmatch(name, full_pattern(pattern)) for name in names)] == []


def test_the_table_names_nothing_that_neither_release_has() -> None:
    known = {f"{module}.{name}" for modules in RECORDED.values() for module, names in modules.items() for name in names}
    known |= {module for modules in RECORDED.values() for module in modules}
    ours = {f"{module}.{name}" for module, names in NAMES.items() for name in names if not name.startswith("_")}
    of_releases_between = {name for name in ours if name.endswith(".dataframeToMDS")}  # 0.6 to 0.9
    of_scripts = {
        name for name in ours if name.endswith((".main", ".parse_args"))
    }  # some have one of them alone, or none
    assert ours - of_releases_between - of_scripts <= known
    assert INSTEAD.keys() <= known
    assert NAMES.keys() <= known
    assert not [name for name in ours if is_refused(name)]


def test_names_are_the_same_objects_wherever_they_are_imported_from() -> None:
    import streaming
    from streaming.base import MDSWriter
    from streaming.base.dataset import StreamingDataset
    from streaming.base.format.mds.writer import MDSWriter as SameWriter

    assert StreamingDataset is streaming.StreamingDataset is penstock.StreamingDataset
    assert MDSWriter is SameWriter is penstock.MDSWriter
    assert streaming.base.util.clean_stale_shared_memory() is None
    assert streaming.__version__ == "0.13.0"


def test_a_star_import_gives_the_names_that_are_ours() -> None:
    found: dict[str, object] = {}
    exec("from streaming import *", found)
    assert found["StreamingDataset"] is penstock.StreamingDataset
    assert "text" not in found


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("from streaming.base.shared import SharedBarrier", "nothing in shared memory"),
        ("import streaming.base.shared.memory", "nothing in shared memory"),
        ("from streaming.text.convert.c4 import each", "an inside of a script"),
        ("from streaming.base.util import wait_for_file_to_exist", r"torch\.distributed\.barrier"),
        ("import streaming.text.convert.enwiki.mds.tokenization", "penstock convert --recipe"),
    ],
)
def test_what_has_no_counterpart_says_what_to_use_instead(statement: str, advice: str) -> None:
    with pytest.raises(ImportError, match=advice):
        exec(statement)


def test_names_that_never_existed_are_missing_in_the_usual_way() -> None:
    import streaming

    with pytest.raises(AttributeError, match="module 'streaming' has no attribute 'nothing'"):
        _ = streaming.nothing
    with pytest.raises(ModuleNotFoundError, match=r"streaming\.nothing"):
        import_module("streaming.nothing")


def test_it_is_refused_once_the_real_one_is_imported() -> None:
    done = run(
        "import sys, types\n"
        "real = types.ModuleType('streaming'); real.__file__ = '/somewhere/streaming/__init__.py'\n"
        "sys.modules['streaming'] = real\n"
        "import penstock.as_streaming"
    )
    assert done.returncode != 0
    assert "streaming has already been imported, from /somewhere/streaming/__init__.py" in done.stderr
    assert "above all other imports" in done.stderr


def test_importing_it_loads_neither_torch_nor_images() -> None:
    done = run("import sys, penstock.as_streaming, streaming.base.util; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not {"torch", "PIL", "obstore", "cramjam"} & set(done.stdout.split())
