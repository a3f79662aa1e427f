"""Registries of code by name, and what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock.as_streaming  # noqa: F401
from penstock import Stream
from penstock.as_streaming.helpers import (
    construct_from_registry,
    create_registry,
    import_file,
    streams_registry,
)
from penstock.errors import ConfigError, UserCodeError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_last_thing_that_was_registered_counts() -> None:
    registry = create_registry("mine", "things", generic_type=int, description="Things.")
    assert (registry.namespace, registry.description) == (("mine", "things"), "Things.")
    registry.register("a", func=1)
    assert registry.register("a", func=2) == 2
    assert registry.register("b")(len) is len
    assert registry.get_all() == {"a": 2, "b": len}
    assert "a" in registry
    assert "c" not in registry
    with pytest.raises(ConfigError, match="unknown things 'c'"):
        registry.get("c")


def test_classes_are_made_and_functions_are_called_later() -> None:
    registry = create_registry("mine", generic_type=Any)
    registry.register("power", func=pow)
    registry.register("number", func=3)
    assert construct_from_registry("power", registry, kwargs={"exp": 3})(2) == 8
    assert construct_from_registry("power", registry, partial_function=False, kwargs={"base": 2, "exp": 5}) == 32
    with pytest.raises(ConfigError, match="Expected number to be a class or function"):
        construct_from_registry("number", registry)
    made = construct_from_registry("stream", streams_registry, pre_validation_function=Stream, kwargs={"local": "x"})
    assert isinstance(made, Stream)
    with pytest.raises(ConfigError, match="Expected stream to be of type"):
        construct_from_registry("stream", streams_registry, pre_validation_function=int)

    def refuse(found: Any) -> None:
        raise ValueError(f"refused {found}")

    with pytest.raises(ValueError, match="refused"):
        construct_from_registry("power", registry, pre_validation_function=refuse)
    with pytest.raises(ValueError, match="refused"):
        construct_from_registry("power", registry, post_validation_function=refuse)


def test_a_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("answer = 6 * 7\n")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    assert import_file(tmp_path / "good.py").answer == 42
    with pytest.raises(UserCodeError, match=r"Error executing .*bad\.py: ZeroDivisionError") as failed:
        import_file(str(tmp_path / "bad.py"))
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with pytest.raises(FileNotFoundError, match=r"none\.py does not exist"):
        import_file(tmp_path / "none.py")
