"""Who is evicted, who waits for space, who may keep how much open: the budget as tables of plain values."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import CacheTooSmallError
from penstock.fetcher import budget as budget_module
from penstock.fetcher import queue as queue_module
from penstock.fetcher.budget import (
    Budget,
    Disk,
    EvictionOrder,
    Limit,
    Reservation,
    Shelf,
    Step,
    Victim,
    check_possible,
    fair_shares,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

NAMES = st.sampled_from([f"n{number}" for number in range(8)])


def victim_of(
    order: EvictionOrder, look: Callable[[str], float | None], *, is_urgent: bool, tried: Collection[str] = ()
) -> tuple[tuple[int, float], str] | None:
    """Look at candidates until one is the one to go."""
    while (found := order.candidate(is_urgent=is_urgent, tried=tried)) is not None:
        if order.looked(*found, look(found[1])):
            return found
    return None


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
        found = victim_of(self.eviction_order, self.used.get, is_urgent=is_urgent, tried=tried)
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
        while (found := victim_of(self.eviction_order, self.used.get, is_urgent=True)) is not None:
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
        found = victim_of(order, look, is_urgent=False)
        assert found is not None
        assert found[1] == str(2 * number + 1)
        order.drop(found[1])
    assert num_looks <= 2 * 2500 + 1  # once for each use, and once for each victim


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


# --- Who is evicted, and who waits ------------------------------------------------------------------------------

A, B, AB = frozenset({"/a"}), frozenset({"/b"}), frozenset({"/a", "/b"})


def budget_of(held: dict[str, int], limit: Limit | None = None, *, is_given: bool = True) -> Budget:
    """Return a budget of directories that hold entries of these sizes, used in this order."""
    budget = Budget()
    for name in ("/a", "/b", "/c"):
        budget.shelves[name] = Shelf()
    for number, (where, num_bytes) in enumerate(held.items()):
        directory, _, name = where.rpartition("/")
        budget.shelves[directory].order.put(name, num_bytes, float(number))
    if limit is not None:
        budget.open("group", limit.directories, limit, is_given=is_given)
    return budget


def evict_for(budget: Budget, limit: Limit, wanted: int, temporary: int = 0, **how: object) -> tuple[list[str], Step]:
    """Do what the budget says; return what went, and how it ended.

    What is `in_use` cannot go, what is `used` was used meanwhile, what is `gone` is there no more.
    """
    in_use, used, gone = (set(how.get(name, ())) for name in ("in_use", "used", "gone"))  # type: ignore[call-overload]
    went: list[str] = []
    tried: dict[str, set[str]] = {name: set() for name in limit.directories}
    while True:
        step = budget.next_step(limit, wanted, temporary, is_urgent=bool(how.get("is_urgent")), tried=tried)
        if isinstance(step, Step):
            return went, step
        where, order = f"{step.directory}/{step.name}", budget.shelves[step.directory].order
        if not order.looked(step.rank, step.name, None if where in gone else 100.0 if where in used else -1.0):
            continue
        if where in in_use:
            tried[step.directory].add(step.name)
            order.touch(step.name, 200.0)
            continue
        budget.evicted(step.directory, step.name)
        went.append(where)


HELD = {"/a/old": 40, "/b/older": 30, "/a/new": 20}
FITS, WAITS = Step.FITS, Step.WAITS
EVICTIONS: dict[str, tuple[int, int, dict[str, object], list[str], Step]] = {
    # what it is: (limit of /a and /b together, bytes wanted, how, what goes, how it ends)
    "what fits comes": (100, 10, {}, [], FITS),
    "the last byte counts": (100, 11, {}, ["/a/old"], FITS),
    "the least recently used goes first, of all directories": (100, 60, {}, ["/a/old", "/b/older"], FITS),
    "all goes that is needed": (100, 100, {}, ["/a/old", "/b/older", "/a/new"], FITS),
    "what is read stays, and the next goes": (100, 30, {"in_use": ["/a/old"]}, ["/b/older"], FITS),
    "with all in use one waits": (100, 11, {"in_use": list(HELD)}, [], WAITS),
    "what can go goes even if that is too little": (100, 61, {"in_use": ["/a/old"]}, ["/b/older", "/a/new"], WAITS),
    "a use that is seen late counts": (100, 20, {"used": ["/a/old"]}, ["/b/older"], FITS),
    "what is gone already makes room": (100, 50, {"gone": ["/a/old"]}, [], FITS),
    "what is gone suffices not always": (100, 60, {"gone": ["/a/old"]}, ["/b/older"], FITS),
    "a limit that came later is obeyed at once": (50, 0, {}, ["/a/old"], FITS),
    "unpacking needs room besides": (100, 10, {"temporary": 5}, ["/a/old"], FITS),
    "which a reader that stands still may pass": (100, 10, {"temporary": 5, "is_urgent": True}, [], FITS),
    "what is expected stays": (100, 20, {"ahead": {"/a/old": 3}}, ["/b/older"], FITS),
    "also if nothing else is left": (100, 80, {"ahead": dict.fromkeys(HELD, 3)}, [], WAITS),
    "a reader that stands still takes what is needed latest": (
        100, 20, {"is_urgent": True, "ahead": {"/a/old": 3, "/b/older": 9, "/a/new": 5}}, ["/b/older"], FITS,
    ),
    "but what is not expected before it": (
        100, 20, {"is_urgent": True, "ahead": {"/a/old": 3, "/b/older": 9}}, ["/a/new", "/b/older"][:1], FITS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EVICTIONS)
def test_who_goes_and_who_waits(case: str) -> None:
    limit_bytes, wanted, how, expected, end = EVICTIONS[case]
    budget, limit = budget_of(HELD), Limit(limit_bytes, AB)
    ahead = how.get("ahead", {})
    for directory in AB:
        found = {where.rpartition("/")[2]: n for where, n in ahead.items() if where.startswith(directory)}  # type: ignore[attr-defined]
        budget.shelves[directory].order.expect(found)
    temporary = how.get("temporary", 0)
    assert isinstance(temporary, int)
    rest = {name: value for name, value in how.items() if name not in ("ahead", "temporary")}
    assert evict_for(budget, limit, wanted, temporary, **rest) == (expected, end)


def test_directories_without_the_limit_keep_what_they_have() -> None:
    budget = budget_of({"/c/oldest": 1000, **HELD})
    assert evict_for(budget, Limit(100, AB), 60) == (["/a/old", "/b/older"], Step.FITS)


def test_room_that_is_reserved_counts_until_it_is_claimed_or_given_back() -> None:
    limit = Limit(100, A)
    budget = budget_of({}, limit)
    coming = budget.take(Reservation("/a", "x", 60, 30))
    assert budget.usage() == {"/a": 90, "/b": 0, "/c": 0}
    assert budget.next_step(limit, 40, 0, is_urgent=True, tried={}) is Step.FITS
    assert budget.next_step(limit, 40, 0, is_urgent=False, tried={}) is Step.WAITS  # what is unpacked counts, too
    assert budget.next_step(limit, 41, 0, is_urgent=True, tried={}) is Step.WAITS
    budget.claim(coming, "x", 60, 1.0)
    assert budget.usage()["/a"] == 60
    assert budget.next_step(limit, 40, 0, is_urgent=False, tried={}) is Step.FITS
    assert budget.next_step(limit, 41, 0, is_urgent=False, tried={}) == Victim((0, 1.0), "/a", "x")
    budget.claim(budget.take(Reservation("/a", "y", 30, 0)), None, 0, 2.0)
    assert budget.usage()["/a"] == 60


def test_a_copy_larger_than_its_estimate_has_the_limit_looked_at_again() -> None:
    limit = Limit(100, A)
    budget = budget_of({}, limit)
    budget.too_full.clear()
    budget.claim(budget.take(Reservation("/a", "x", 60, 0)), "x", 60, 1.0)
    assert not budget.too_full
    budget.claim(budget.take(Reservation("/a", "y", 30, 0)), "y", 50, 2.0)
    assert budget.too_full == {limit}
    budget.close("group")
    assert not budget.too_full


def test_a_copy_that_was_handed_over_waits_for_its_reader() -> None:
    budget = budget_of({"/a/x": 1})
    assert not budget.is_handed_over("/a", "x", 100.0)
    budget.hand_over("/a", "x", 100.0)
    assert budget.is_handed_over("/a", "x", 104.0)
    assert not budget.is_handed_over("/a", "x", 106.0)  # its reader died
    budget.is_taken("/a", ["x", "y"])
    assert not budget.is_handed_over("/a", "x", 101.0)


@pytest.mark.parametrize(("num_bytes", "fits"), [(10, True), (11, False)])
def test_what_is_not_waited_for_has_nothing_evicted_for_it(num_bytes: int, fits: bool) -> None:
    budget = budget_of(HELD, Limit(110, AB))
    budget.take(Reservation("/b", "y", 6, 4))  # while it is unpacked it takes ten
    assert budget.fits_unused(Reservation("/a", "x", num_bytes - 5, 5)) == fits
    assert budget.fits_unused(Reservation("/c", "x", 10**9, 0))  # no limit binds it


def test_what_is_too_large_for_a_limit_never_comes() -> None:
    check_possible(Limit(100, A), "x", 100)
    with pytest.raises(CacheTooSmallError, match=r"x takes .* raise cache_limit"):
        check_possible(Limit(100, A), "x", 101)
    check_possible(Limit(100, A), "x", 60, index_bytes=40)
    with pytest.raises(CacheTooSmallError, match="x takes 60 B and the index 41 B"):
        check_possible(Limit(100, A), "x", 60, index_bytes=41)


# --- Who is bound by what -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "warned"),
    [(None, True), (200, True), (100, False), (50, False)],  # the limit of another on the same directory is 100
)
def test_a_smaller_limit_of_others_is_told(mine: int | None, warned: bool) -> None:
    budget = budget_of({}, Limit(100, AB))
    limit = None if mine is None else Limit(mine, A)
    warnings = budget.open("other", A, limit, is_given=mine is not None)
    assert bool(warnings) == warned
    assert all("limits /a to" in text for text in warnings)


def test_a_share_of_the_disk_that_was_not_given_is_no_reason_to_warn() -> None:
    budget = budget_of({}, Limit(100, A), is_given=False)
    assert budget.open("other", A, None, is_given=False) == []
    assert budget.limits_of("/a") == [Limit(100, A)]


def test_directories_compete_that_share_a_limit_or_a_full_disk() -> None:
    budget = budget_of({}, Limit(100, AB))
    assert budget.competitors() == {"/a": AB, "/b": AB}
    budget.open("other", frozenset({"/b", "/c"}), Limit(50, frozenset({"/b", "/c"})), is_given=True)
    assert budget.competitors()["/b"] == {"/a", "/b", "/c"}
    budget.close("group")
    assert budget.competitors() == dict.fromkeys(("/b", "/c"), frozenset({"/b", "/c"}))
    budget.close("other")
    budget.note_full(Disk(7, 1000, 10), Limit(5, AB))
    assert budget.competitors() == {"/a": AB, "/b": AB}


# --- Disks --------------------------------------------------------------------------------------------------------

DISKS = [
    # free bytes, bytes being fetched, bytes wanted, to be left free, whether it fits
    (100, 0, 50, 50, True),
    (100, 0, 51, 50, False),
    (100, 20, 30, 50, True),
    (100, 20, 31, 50, False),
    (40, 0, 0, 50, False),
]


@pytest.mark.parametrize(("free", "coming", "wanted", "reserve", "fits"), DISKS)
def test_a_disk_keeps_its_reserve(free: int, coming: int, wanted: int, reserve: int, fits: bool) -> None:
    budget = budget_of({})
    budget.take(Reservation("/b", "y", coming, 0))
    assert (
        budget.fits_disk(Reservation("/a", "x", wanted - wanted // 2, wanted // 2), Disk(1, 1000, free), reserve)
        == fits
    )


def test_a_full_disk_binds_its_caches_until_there_is_plenty_of_room() -> None:
    budget, wanted = budget_of(HELD), Reservation("/a", "x", 10, 0)
    assert not budget.may_evict("/a", Disk(1, 1 << 50, 1 << 40), 50)
    assert budget.may_evict("/a", Disk(1, 1 << 50, 100), 50)  # so little is left that it may be gone soon
    ceiling = budget.ceiling(AB, -20)
    assert ceiling == Limit(70, AB)
    budget.note_full(Disk(1, 1000, 30), ceiling)
    assert budget.has_news
    assert budget.may_evict("/a", None, 0)
    assert evict_for(budget, ceiling, 10) == (["/a/old"], Step.FITS)
    budget.has_news = False
    assert budget.fits_disk(wanted, Disk(1, 1000, 119), 50)
    assert not budget.has_news  # it might be full again with the next one
    assert budget.fits_disk(wanted, Disk(1, 1000, 120), 50)
    assert budget.has_news
    assert not budget.competitors()


# --- The law of both modules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [budget_module, queue_module], ids=lambda module: module.__name__)
def test_it_decides_and_does_nothing_else(module: object) -> None:
    """No files, no threads, no clocks: what comes in are values, and what goes out are decisions."""
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    typing_only = {id(node) for branch in ast.walk(tree) if isinstance(branch, ast.If) for node in ast.walk(branch)}
    imported = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    allowed = {"__future__", "collections", "dataclasses", "enum", "heapq", "itertools", "math", "typing"}
    assert imported <= allowed | {"penstock.errors", "penstock.units", "penstock.wire.quota"}
