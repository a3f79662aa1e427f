"""The native order never changes: a run begun with any release goes on with any later one."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

RECIPE = runpy.run_path(str(Path(__file__).with_name("record_native.py")))
# Not from PENSTOCK_GOLDEN: that names recordings of other libraries, and these are of our own order.
GOLDEN = Path(__file__).parents[1] / "golden"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "order_native" / "orders.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_recorded_order_is_still_the_same(case: dict[str, Any]) -> None:
    ids = RECIPE["read_case"](case)
    assert ids[:16].tolist() == case["first"]
    assert RECIPE["digest"](ids) == case["sha256"]
    assert RECIPE["plan_case"](case).fingerprint == case["fingerprint"]
