"""The `datasets` library as a reader of repositories whose files penstock does not read itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.order.keys import hash_key
from penstock.storage.base import redacted, safe_cause

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from penstock.storage.base import StoreSettings


@dataclass(frozen=True, slots=True)
class HubPart:
    """A split of a subset of a dataset, at a commit."""

    dataset: str
    commit: str
    subset: str | None
    split: str

    @property
    def name(self) -> str:
        """What its shard is called."""
        return f"{self.dataset}{'' if self.subset is None else f'/{self.subset}'}:{self.split}"

    def fingerprint(self, columns: Sequence[str] | None) -> str:
        """Hash what it is: a commit never changes."""
        chosen = None if columns is None else list(columns)
        return f"hub-{hash_key(repr((self.dataset, self.commit, self.subset, self.split)), repr(chosen)):016x}"


def load_with_library(
    part: HubPart, settings: StoreSettings, cache_dir: str | os.PathLike[str] | None, *, streaming: bool
) -> Any:
    """Have the library open a split; it streams, or downloads and converts everything now."""
    library = require(
        "datasets", extra="datasets", purpose=f"{part.dataset} has no files that penstock reads itself: to read it"
    )
    endpoint = settings.options["endpoint"]
    if endpoint != library.config.HF_ENDPOINT.rstrip("/"):
        raise ConfigError(
            f"{part.dataset} is left to the datasets library, which asks {library.config.HF_ENDPOINT}: set the"
            f" environment variable HF_ENDPOINT to {endpoint} before Python starts"
        )
    try:
        return library.load_dataset(
            part.dataset,
            part.subset,
            split=part.split,
            streaming=streaming,
            cache_dir=cache_dir,
            revision=part.commit,
            token=settings.options["token"] or False,
        )
    except (library.exceptions.DatasetsError, ValueError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"{part.dataset} has no files that penstock reads itself, and the datasets library cannot read them:"
            f" {redacted(str(error))}",
            dataset=part.dataset,
        ) from safe_cause(error)
