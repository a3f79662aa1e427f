"""Fixtures that the tests of mosaicml-streaming use and that its source distributions lack."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from penstock.as_streaming.modules import refuse
from penstock.errors import NotProvidedError

HERE = Path(__file__).parent
MY_BUCKET = "streaming-test-bucket"
GCS_URL = R2_URL = "http://127.0.0.1:1"  # nothing of this is reached


class Refused:
    """Stands for what penstock refuses to provide, so that a file that imports it has its other tests run.

    Whatever a test does with it raises the error that importing it would have raised.
    """

    def __init__(self, error: NotProvidedError) -> None:
        self.__dict__["error"] = error

    def __call__(self, *args: Any, **settings: Any) -> Any:
        raise self.__dict__["error"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.__dict__["error"]

    def __setattr__(self, name: str, value: Any) -> None:
        raise self.__dict__["error"]


class RefusedModule(ModuleType):
    """A module below one that penstock refuses to provide."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Refused(NotProvidedError(f"penstock does not provide {self.__name__}.{name}"))


class RefusedModules:
    """Finds modules that penstock refuses to provide."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        try:
            refuse(name)
        except NotProvidedError:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return RefusedModule(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "world_size(count): the processes that a distributed test runs in")
    config.addinivalue_line("markers", "remote: reads public buckets")
    sys.meta_path.insert(0, RefusedModules())


def rmtree(path: Any, ignore_errors: bool = False, **options: Any) -> None:
    """Delete a folder, also a cache folder in which the fetcher may be finishing what it had begun to write."""
    for _ in range(100):
        with suppress(OSError):
            delete_folder(path, **options)
            return
    delete_folder(path, ignore_errors, **options)


delete_folder = shutil.rmtree
shutil.rmtree = rmtree  # type: ignore[assignment]  # before any test imports it


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a temporary folder the same in all processes that run tests."""
    return "folder" if isinstance(val, str) and val.startswith(tempfile.gettempdir()) else None


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Have tests draw the same numbers in each run: some hold for most of them only, with the original, too."""
    np.random.seed(0)


@pytest.fixture(autouse=True)
def listing_without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `os.listdir` leave our own entry of a cache folder out, where a test asks."""
    listdir = os.listdir

    def list_for_tests(path: Any = ".") -> list[Any]:
        is_asked_by_test = sys._getframe(1).f_code.co_filename.startswith(str(HERE))
        return [name for name in listdir(path) if not (is_asked_by_test and name == ".penstock")]

    monkeypatch.setattr(os, "listdir", list_for_tests)


@pytest.fixture
def local_remote_dir(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "local"), str(tmp_path / "remote")


@pytest.fixture
def compressed_local_remote_dir(tmp_path: Path) -> tuple[str, str, str]:
    return str(tmp_path / "compressed"), str(tmp_path / "local"), str(tmp_path / "remote")


@pytest.fixture
def mds_dataset_dir(tmp_path: Path) -> tuple[str, str]:
    """A small dataset: where it is, and where it may be kept."""
    from tests.common.datasets import (  # type: ignore[import-not-found]  # of the folder that this is copied to
        SequenceDataset,
        write_mds_dataset,
    )

    dataset = SequenceDataset(117)
    columns = dict(zip(dataset.column_names, dataset.column_encodings, strict=True))
    write_mds_dataset(str(tmp_path / "remote"), columns, dataset, size_limit=1 << 8)
    return str(tmp_path / "remote"), str(tmp_path / "local")
