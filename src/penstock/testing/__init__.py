"""Contracts: what every plug-in of a kind must do, as tests that its author runs.

`OrderContract` draws its cases with hypothesis and `SourceContract` streams them: all are loaded on first use only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.catalogs import CatalogContract as CatalogContract
    from penstock.testing.encodings import EncodingContract as EncodingContract
    from penstock.testing.file_formats import FileFormatContract as FileFormatContract
    from penstock.testing.formats import FormatContract as FormatContract
    from penstock.testing.orders import OrderContract as OrderContract
    from penstock.testing.recipes import RecipeContract as RecipeContract
    from penstock.testing.recipes import write_lines as write_lines
    from penstock.testing.sources import SourceContract as SourceContract
    from penstock.testing.stores import LargeObjectContract as LargeObjectContract
    from penstock.testing.stores import StoreContract as StoreContract
    from penstock.testing.stores import StoreReadContract as StoreReadContract
    from penstock.testing.targets import TargetContract as TargetContract
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
