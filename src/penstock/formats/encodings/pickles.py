"""Pickled objects: reading them runs whatever their writer wished, so readers must be told to allow it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from penstock.formats.encodings.base import VariableEncoding

if TYPE_CHECKING:
    from collections.abc import Sequence


class PickleEncoding(VariableEncoding):
    """Any object that pickles."""

    def encode(self, value: Any) -> bytes:
        """Pickle with the default protocol."""
        return pickle.dumps(value)

    def decode(self, pieces: Sequence[bytes]) -> list[Any]:
        """Unpickle: the format's `open` has made sure that this was asked for."""
        return [pickle.loads(piece) for piece in pieces]  # noqa: S301
