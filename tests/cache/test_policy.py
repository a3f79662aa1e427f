"""Whom to evict, against a model that sorts; who may keep what; and how many to read at once."""

from __future__ import annotations

import json
import math
import os

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.cache.shares import share_of_each
from penstock.cachedir.holders import Holder, describe_holders, find_holders
from penstock.cachedir.policy import EvictionOrder, Limit, fair_shares, shortage
from penstock.fetcher.pieces import HIGHEST, LOWEST, Concurrency, next_concurrency
from penstock.wire.encoding import load, plain
from penstock.wire.share import Share, is_news

NAMES = st.sampled_from([f"n{number}" for number in range(8)])


class EvictionOrderMachine(RuleBasedStateMachine):
    """Readers use files without a word; the order must still name the least recently used."""

    def __init__(self) -> None:
        super().__init__()
        self.eviction_order = EvictionOrder()
        self.sizes: dict[str, int] = {}
        self.used: dict[str, float] = {}  # as the files say
        self.ahead: dict[str, int] = {}
        self.clock = 0.0

    def tick(self) -> float:
        self.clock += 1
        return self.clock

    @rule(name=NAMES, num_bytes=st.integers(1, 100))
    def put(self, name: str, num_bytes: int) -> None:
        self.sizes[name], self.used[name] = num_bytes, self.tick()
        self.eviction_order.put(name, num_bytes, self.clock)

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        if name in self.sizes:
            self.used[name] = self.tick()  # the order hears of it only when it looks

    @rule(name=NAMES)
    def delete_behind_its_back(self, name: str) -> None:
        self.used.pop(name, None)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        assert self.eviction_order.drop(name) == self.sizes.pop(name, 0)
        self.used.pop(name, None)

    @rule(ahead=st.dictionaries(NAMES, st.integers(0, 5)))
    def expect(self, ahead: dict[str, int]) -> None:
        self.ahead = ahead
        self.eviction_order.expect(ahead)

    @rule(is_urgent=st.booleans(), tried=st.sets(NAMES, max_size=3))
    def choose(self, is_urgent: bool, tried: set[str]) -> None:
        found = self.eviction_order.next_victim(self.used.get, is_urgent=is_urgent, tried=tried)
        there = self.used.keys() & self.sizes.keys() - tried
        idle = sorted((self.used[name], name) for name in there if name not in self.ahead)
        expected = sorted((-self.ahead[name], name) for name in there if name in self.ahead)
        if idle:
            assert found == ((0, idle[0][0]), idle[0][1])
        elif expected and is_urgent:
            assert found is not None
            assert found[0] == (1, expected[0][0])
        else:
            assert found is None
        self.forget_gone()

    def forget_gone(self) -> None:
        for name in self.sizes.keys() - self.used.keys():
            if name not in self.eviction_order:
                del self.sizes[name]

    @precondition(lambda self: bool(self.sizes))
    @rule()
    def evict_all(self) -> None:
        while (found := self.eviction_order.next_victim(self.used.get, is_urgent=True, tried=set())) is not None:
            self.eviction_order.drop(found[1])
            self.sizes.pop(found[1])
            self.used.pop(found[1])
        self.forget_gone()
        assert not self.used.keys() & self.sizes.keys()

    @invariant()
    def bytes_add_up(self) -> None:
        assert self.eviction_order.used_bytes == sum(self.sizes.values())
        assert len(self.eviction_order) == len(self.sizes)


TestEvictionOrder = EvictionOrderMachine.TestCase


def test_a_decision_among_many_looks_at_few() -> None:
    order = EvictionOrder()
    num_shards = 100_000
    for number in range(num_shards):
        order.put(str(number), 1, number)
    num_looks = 0
    uses = {str(number): float(number) for number in range(num_shards)}

    def look(name: str) -> float:
        nonlocal num_looks
        num_looks += 1
        return uses[name]

    for number in range(0, 5000, 2):
        uses[str(number)] = float(num_shards + number)
    for number in range(2500):
        found = order.next_victim(look, is_urgent=False, tried=set())
        assert found is not None
        assert found[1] == str(2 * number + 1)
        order.drop(found[1])
    assert num_looks <= 2 * 2500 + 1  # once for each use, and once for each victim


def test_shortage() -> None:
    limit = Limit(100, frozenset({"a", "b"}))
    assert shortage(limit, {"a": 50, "b": 20, "c": 1000}, 30) == 0
    assert shortage(limit, {"a": 50, "b": 20}, 31) == 1


DIRECTORIES = st.frozensets(st.sampled_from("abcd"), min_size=1)


@given(
    st.dictionaries(st.integers(0, 20), DIRECTORIES, max_size=12),
    st.lists(st.builds(Limit, st.integers(0, 10_000), DIRECTORIES), max_size=4),
    st.sets(st.sampled_from("abcd")),
)
def test_what_all_keep_open_together_is_at_most_half_of_every_limit(
    groups: dict[int, frozenset[str]], limits: list[Limit], tight: set[str]
) -> None:
    shares = fair_shares(groups, limits, tight)
    assert shares.keys() == groups.keys()
    for limit in limits:
        bound = [shares[group].num_bytes for group, names in groups.items() if names & limit.directories]
        assert all(size is not None for size in bound)
        assert 2 * sum(size or 0 for size in bound) <= limit.num_bytes
    for group, names in groups.items():
        is_bound = any(names & limit.directories for limit in limits)
        assert (shares[group].num_bytes is not None) == is_bound
        assert shares[group].is_tight == bool(names & tight)


@given(st.builds(Share, st.none() | st.integers(0, 10_000), st.booleans()))
def test_a_share_is_news_once(share: Share) -> None:
    assert is_news(None, share)
    assert not is_news(share, share)
    assert is_news(share, Share(share.num_bytes, not share.is_tight))
    assert is_news(share, Share(1 if share.num_bytes is None else None, share.is_tight))
    assert load(Share, json.loads(json.dumps(share, default=plain))) == share


@given(
    st.dictionaries(st.sampled_from("abc"), st.builds(Share, st.none() | st.integers(0, 10_000), st.booleans())),
    st.integers(1, 5),
)
def test_several_keepers_heed_all_shares_together(shares: dict[str, Share], num_keepers: int) -> None:
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
