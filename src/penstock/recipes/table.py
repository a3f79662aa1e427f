"""The recipes by name: those of penstock, and those that other packages add."""

from __future__ import annotations

from typing import Any

from penstock.registry import Registry

_OWN = {
    "text": ("c4", "enwiki", "enwiki_text", "pile"),
    "vision": (),
    "multimodal": (),
}

recipes: Registry[Any] = Registry(
    "recipe",
    group="penstock.recipes",
    builtin={name: f"penstock.recipes.{area}.{name}:recipe" for area, names in _OWN.items() for name in names},
)
