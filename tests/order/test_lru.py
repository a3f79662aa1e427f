from __future__ import annotations

import pickle

from penstock.order.lru import LRU


def test_the_values_used_last_are_kept() -> None:
    recent: LRU[str] = LRU(3)
    computed = []

    def get(key: str, weight: int = 1) -> str:
        def compute() -> str:
            computed.append(key)
            return key.upper()

        return recent(key, compute, weight)

    assert [get(key) for key in "abcab"] == list("ABCAB")
    assert computed == list("abc")
    get("d")  # throws out c, which was used longest ago
    get("a")
    get("c")
    assert computed == list("abcdc")
    assert get("large", weight=9) == "LARGE"
    get("large", weight=9)
    assert computed == [*"abcdc", "large"]


def test_values_stay_behind_when_it_travels() -> None:
    recent: LRU[bytes] = LRU(3)
    recent("a", lambda: bytes(10**6))
    assert len(pickle.dumps(recent)) < 1000
