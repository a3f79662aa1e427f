"""The tests that the author of the package runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from penstock.testing import EncodingContract, FormatContract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.types import Sample


class TestAcme(FormatContract):
    format_name = "acme"
    settings: ClassVar[Mapping[str, Any]] = {"moved_by": 200}
    samples: ClassVar[Sequence[Sample]] = [{"a": n, "b": ["x"] * n, "c": None} for n in range(5)]


class TestPoint(EncodingContract):
    encoding = "acme_point"
    values: ClassVar[Sequence[Any]] = [(0.5, 1.0), (2.0, -0.0)]


class TestWords(EncodingContract):
    encoding = "acme_words"
    values: ClassVar[Sequence[Any]] = [["a", "b"], [""], ["é"]]
