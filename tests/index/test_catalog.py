"""The catalog of MosaicML's index keeps the contract of catalogs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock import JSONWriter, MDSWriter
from penstock.testing import CatalogContract

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["mds", "mds zstd", "json"], autouse=True)
def document(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    make = JSONWriter if request.param == "json" else MDSWriter
    compression = "zstd" if "zstd" in request.param else None
    with make(out=tmp_path, columns={"id": "int"}, hashes=["sha1"], compression=compression) as writer:
        for number in range(3):
            writer.write({"id": number})
    written: dict[str, Any] = json.loads((tmp_path / "index.json").read_text())
    return written


class TestMosaic(CatalogContract):
    written: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _keep(self, document: dict[str, Any]) -> None:
        self.written = document

    def make_document(self) -> dict[str, Any]:
        return {**self.written, "catalog": "mosaic"}
