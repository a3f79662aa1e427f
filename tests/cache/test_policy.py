"""Whom to evict, against a model that sorts; and how many to read at once."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.cache.climb import HIGHEST, LOWEST, Climb, next_climb
from penstock.cache.policy import Limit, Shelf, shortage

NAMES = st.sampled_from([f"n{number}" for number in range(8)])


class ShelfMachine(RuleBasedStateMachine):
    """Readers use files without a word; the shelf must still name the least recently used."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
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
        self.shelf.put(name, num_bytes, self.clock)

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        if name in self.sizes:
            self.used[name] = self.tick()  # the shelf hears of it only when it looks

    @rule(name=NAMES)
    def delete_behind_its_back(self, name: str) -> None:
        self.used.pop(name, None)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        assert self.shelf.drop(name) == self.sizes.pop(name, 0)
        self.used.pop(name, None)

    @rule(ahead=st.dictionaries(NAMES, st.integers(0, 5)))
    def expect(self, ahead: dict[str, int]) -> None:
        self.ahead = ahead
        self.shelf.expect(ahead)

    @rule(is_urgent=st.booleans(), tried=st.sets(NAMES, max_size=3))
    def choose(self, is_urgent: bool, tried: set[str]) -> None:
        found = self.shelf.next_victim(self.used.get, is_urgent=is_urgent, tried=tried)
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
            if name not in self.shelf:
                del self.sizes[name]

    @precondition(lambda self: bool(self.sizes))
    @rule()
    def evict_all(self) -> None:
        while (found := self.shelf.next_victim(self.used.get, is_urgent=True, tried=set())) is not None:
            self.shelf.drop(found[1])
            self.sizes.pop(found[1])
            self.used.pop(found[1])
        self.forget_gone()
        assert not self.used.keys() & self.sizes.keys()

    @invariant()
    def bytes_add_up(self) -> None:
        assert self.shelf.used_bytes == sum(self.sizes.values())
        assert len(self.shelf) == len(self.sizes)


TestShelf = ShelfMachine.TestCase


def test_a_decision_among_many_looks_at_few() -> None:
    shelf = Shelf()
    num_shards = 100_000
    for number in range(num_shards):
        shelf.put(str(number), 1, number)
    num_looks = 0
    uses = {str(number): float(number) for number in range(num_shards)}

    def look(name: str) -> float:
        nonlocal num_looks
        num_looks += 1
        return uses[name]

    for number in range(0, 5000, 2):
        uses[str(number)] = float(num_shards + number)
    for number in range(2500):
        found = shelf.next_victim(look, is_urgent=False, tried=set())
        assert found is not None
        assert found[1] == str(2 * number + 1)
        shelf.drop(found[1])
    assert num_looks <= 2 * 2500 + 1  # once for each use, and once for each victim


def test_shortage() -> None:
    limit = Limit(100, frozenset({"a", "b"}))
    assert shortage(limit, {"a": 50, "b": 20, "c": 1000}, 30) == 0
    assert shortage(limit, {"a": 50, "b": 20}, 31) == 1


def climb_on(peak: int, num_steps: int = 40) -> list[int]:
    climb, limits = Climb(), []
    for _ in range(num_steps):
        rate = 100.0 * min(climb.limit, peak) - (0 if climb.limit <= peak else 20.0 * (climb.limit - peak))
        climb = next_climb(climb, rate, is_full=True)
        limits.append(climb.limit)
    return limits


def test_the_climb_finds_the_peak() -> None:
    for peak in (4, 8, 16, 32):
        limits = climb_on(peak)
        assert all(LOWEST <= limit <= HIGHEST for limit in limits)
        around = sum(limits[10:]) / len(limits[10:])
        assert math.isclose(around, peak, rel_tol=0.5), (peak, limits)


def test_idle_times_say_nothing() -> None:
    climb = Climb(limit=12, direction=1, rate=100.0)
    assert next_climb(climb, 1.0, is_full=False) == climb
    assert next_climb(climb, 0.0, is_full=True) == climb
