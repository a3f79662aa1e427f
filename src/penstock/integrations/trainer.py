"""Training with the `Trainer` of transformers. See `docs/trainers.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.loaders.trainer import StreamingTrainerMixin as StreamingTrainerMixin
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
