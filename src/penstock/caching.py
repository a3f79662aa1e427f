"""What is kept on this machine, of all datasets: list it, fill it, make room. See `docs/streaming.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cache.cleanup import clear_cache as clear_cache
    from penstock.cache.cleanup import prune_cache as prune_cache
    from penstock.cache.contents import list_cache as list_cache
    from penstock.data.look import warm_cache as warm_cache
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
