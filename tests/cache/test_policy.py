"""Who may keep what, who holds what, and how many to read at once."""

from __future__ import annotations

import json
import math
import os

from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.shares import share_of_each
from penstock.cachedir.lock import Holder, describe_holders, find_holders
from penstock.fetcher.pieces import HIGHEST, LOWEST, Concurrency, next_concurrency
from penstock.wire.encoding import load, plain
from penstock.wire.quota import OpenShardQuota, is_news


@given(st.builds(OpenShardQuota, st.none() | st.integers(0, 10_000), st.booleans()))
def test_a_share_is_news_once(share: OpenShardQuota) -> None:
    assert is_news(None, share)
    assert not is_news(share, share)
    assert is_news(share, OpenShardQuota(share.num_bytes, not share.is_tight))
    assert is_news(share, OpenShardQuota(1 if share.num_bytes is None else None, share.is_tight))
    assert load(OpenShardQuota, json.loads(json.dumps(share, default=plain))) == share


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.builds(OpenShardQuota, st.none() | st.integers(0, 10_000), st.booleans())
    ),
    st.integers(1, 5),
)
def test_several_keepers_heed_all_shares_together(shares: dict[str, OpenShardQuota], num_keepers: int) -> None:
    each = share_of_each(shares, num_keepers)
    for share in shares.values():
        assert each.is_tight or not share.is_tight
        assert share.num_bytes is None or (each.num_bytes or 0) * num_keepers <= share.num_bytes
    assert (each.num_bytes is None) == all(share.num_bytes is None for share in shares.values())


# --- Who holds what ---------------------------------------------------------------------------------------------

LOCKS = """\
1: POSIX  ADVISORY  WRITE 700 08:01:11 1073741826 1073742335
2: FLOCK  ADVISORY  READ 4711 08:01:11 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4713 08:01:11 0 EOF
3: FLOCK  ADVISORY  READ 4712 08:01:11 0 EOF
4: FLOCK  ADVISORY  READ 4712 08:01:12 0 EOF
5: FLOCK  ADVISORY  READ 4712 08:01:12 0 EOF
6: FLOCK  ADVISORY  WRITE 99 08:01:12 0 EOF
7: FLOCK  ADVISORY  READ 4711 00:2a:12 0 EOF
"""


def test_the_kernel_knows_who_holds_what() -> None:
    device = os.makedev(8, 1)
    found = find_holders({(device, 11): 100, (device, 12): 50, (device, 13): 7}, LOCKS)
    assert found == [Holder(4712, 2, 150), Holder(4711, 1, 100)]
    assert find_holders({(device, 13): 7}, LOCKS) == []
    overlay = os.makedev(0, 99)  # shown under another number
    assert find_holders({(overlay, 11): 100}, LOCKS) == [Holder(4711, 1, 100), Holder(4712, 1, 100)]


def test_holders_in_words() -> None:
    words = describe_holders([Holder(pid, 1, 1000) for pid in range(1, 12)], {1: "python"})
    assert words.startswith("process 1 [python] holds 1 of them, 0.977 kB; process 2 holds 1")
    assert words.endswith("3 others hold 2.93 kB")
    assert describe_holders([], {}) == ""


def climb_on(peak: int, num_steps: int = 40) -> list[int]:
    now, limits = Concurrency(), []
    for _ in range(num_steps):
        rate = 100.0 * min(now.limit, peak) - (0 if now.limit <= peak else 20.0 * (now.limit - peak))
        now = next_concurrency(now, rate, is_full=True)
        limits.append(now.limit)
    return limits


def test_the_climb_finds_the_peak() -> None:
    for peak in (4, 8, HIGHEST):
        limits = climb_on(peak)
        assert all(LOWEST <= limit <= HIGHEST for limit in limits)
        around = sum(limits[10:]) / len(limits[10:])
        assert math.isclose(around, peak, rel_tol=0.5), (peak, limits)


def test_idle_times_say_nothing() -> None:
    now = Concurrency(limit=12, direction=1, rate=100.0)
    assert next_concurrency(now, 1.0, is_full=False) == now
    assert next_concurrency(now, 0.0, is_full=True) == now
