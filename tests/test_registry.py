"""Names that stand for code."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError, MissingExtraError
from penstock.extras import require
from penstock.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path


def make() -> Registry[Any]:
    return Registry(
        "animal", group="penstock.test", builtin={"loads": "json:loads", "encode": "json:JSONEncoder.encode"}
    )


def test_builtins_are_loaded_by_path() -> None:
    import json

    assert make().get("loads") is json.loads
    assert make().get("encode") is json.JSONEncoder.encode


def test_registered_names() -> None:
    animals = make()

    @animals.register("cat")
    class Cat:
        pass

    assert animals.get("cat") is Cat
    assert animals.names() == ["cat", "encode", "loads"]
    assert "cat" in animals
    assert "dog" not in animals
    with pytest.raises(ConfigError, match="animal 'cat' is already registered"):
        animals.register("cat")(Cat)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown animal 'load' \(did you mean 'loads'\?\): use one of encode, loads"
    ):
        make().get("load")


def test_outside_packages_add_names_but_do_not_replace_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [EntryPoint("dump", "json:dump", "penstock.test"), EntryPoint("loads", "os:system", "penstock.test")]
    )
    monkeypatch.setattr("penstock.registry._entry_points", lambda: points)
    import json

    animals = make()
    assert animals.get("dump") is json.dump
    assert animals.get("loads") is json.loads


def test_an_entry_point_may_lead_to_what_registers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("json", "json:JSONDecoder", "penstock.test")])
    monkeypatch.setattr("penstock.registry._entry_points", lambda: points)
    import json

    class JSONDecoder:
        __module__ = "json"
        __qualname__ = "JSONDecoder"

    animals = make()
    assert "json" in animals.names()
    assert animals.register("json")(JSONDecoder) is animals.get("json")
    other = make()
    assert "json" in other.names()
    with pytest.raises(ConfigError, match="'json' is already registered"):
        other.register("json")(json.JSONEncoder)


@pytest.mark.parametrize("path", ["no_such_zoo:Cat", "json:no_such_cat", "json"])
def test_what_cannot_be_loaded_says_where_it_should_be(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    points = EntryPoints([EntryPoint("cat", path, "penstock.test")])
    monkeypatch.setattr("penstock.registry._entry_points", lambda: points)
    with pytest.raises(ConfigError, match=f"cannot load animal 'cat' from {path}: "):
        make().get("cat")


def test_a_missing_extra_names_the_command() -> None:
    with pytest.raises(MissingExtraError, match=r"a zoo needs no_such_zoo.*pip install '.*\[zoo\]'") as caught:
        require("no_such_zoo.gate", extra="zoo", purpose="a zoo")
    assert isinstance(caught.value, ImportError)


def test_a_library_that_cannot_load_its_own_is_missing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_zoo.py").write_text("raise RuntimeError('no libcage\\nand a long story')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"imported \(no libcage\): .*; it also needs iron$"):
        require("half_a_zoo", extra="zoo", purpose="a zoo", needs="iron")
