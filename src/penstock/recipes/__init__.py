"""Datasets that people know, from their raw files to the training loop. See `docs/recipes.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.recipes.base import Recipe as Recipe
    from penstock.recipes.base import run_module as run_module
    from penstock.recipes.table import recipes as recipes
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
