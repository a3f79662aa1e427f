"""`DatasetCache`: datasets of the Hugging Face library by key, in folders that appear whole."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.files import translated


class DatasetCache:
    """Keeps a `Dataset` or `DatasetDict` of the Hugging Face library by key, as the library itself saves it.

    Args:
        cache_dir: The folder.
    """

    def __init__(self, cache_dir: str | os.PathLike[str]) -> None:
        self.cache_dir = Path(cache_dir).expanduser()

    def get(self, key: str) -> Any:
        """Load a dataset, or give None."""
        if not self.contains(key):
            return None
        library = require("datasets", extra="datasets", purpose="reading saved datasets")
        return library.load_from_disk(str(self._folder(key)))

    def put(self, key: str, dataset: Any) -> None:
        """Save a dataset, in the place of the one that is there. One that is streamed cannot be saved."""
        if not hasattr(dataset, "save_to_disk"):
            raise ConfigError(
                f"a {type(dataset).__name__} cannot be kept, because it is not all there: use a Dataset, or"
                " save_dataset(wrap_hf_dataset(dataset), ...)"
            )
        folder = self._folder(key)
        part = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.part")
        with translated(folder):
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            try:
                dataset.save_to_disk(str(part))
                self.invalidate(key)
                with suppress(FileExistsError):  # another process was quicker
                    part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)

    def contains(self, key: str) -> bool:
        """Tell whether there is a dataset."""
        return self._folder(key).is_dir()

    def invalidate(self, key: str | None = None) -> None:
        """Remove a dataset, or all."""
        for folder in [self._folder(key)] if key is not None else self.cache_dir.glob("*.dataset"):
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, key: str) -> Path:
        return self.cache_dir / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.dataset"
