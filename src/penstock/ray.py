"""Names for users of Ray: `penstock.ray.MDSDatasink`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.conversion.ray import MDSDatasink as MDSDatasink
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
