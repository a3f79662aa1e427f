"""Datasets of text that people know: readers and converters. See `docs/recipes.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.recipes.text.c4 import StreamingC4 as StreamingC4
    from penstock.recipes.text.enwiki import StreamingEnWiki as StreamingEnWiki
    from penstock.recipes.text.pile import StreamingPile as StreamingPile
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
