"""Pickled objects: reading them runs whatever their writer wished, so readers must be told to allow it."""

from __future__ import annotations

import pickle
from typing import Any

from penstock.formats.encodings.base import Encoding


class PickleEncoding(Encoding):
    """Any object that pickles."""

    is_unsafe = True

    def encode(self, value: Any) -> bytes:
        """Pickle with the default protocol."""
        return pickle.dumps(value)

    def decode(self, data: bytes) -> Any:
        """Unpickle: the format's `open` has made sure that this was asked for."""
        return pickle.loads(data)  # noqa: S301
