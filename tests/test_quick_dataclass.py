"""Classes made by `quick_dataclass` are what the standard library would have made of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, Generic, TypeVar

import pytest

from penstock import quick_dataclass

T = TypeVar("T")


@quick_dataclass.dataclass(frozen=True, slots=True)
class Point:
    """A value."""

    x: int
    y: int = 2
    seen: list[int] = quick_dataclass.field(default_factory=list, compare=False, repr=False)


@quick_dataclass.dataclass(slots=True, kw_only=True)
class Named(Generic[T]):
    """What can change."""

    name: str
    value: T
    length: int = quick_dataclass.field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.name)


@quick_dataclass.dataclass(frozen=True)
class Derived(Point):
    """One more field, and words of its own."""

    z: str = "z"

    def __repr__(self) -> str:
        return "derived"


def test_values_are_made_compared_hashed_and_shown_as_usual() -> None:
    point = Point(1)
    other: Any = (1, 2, [])
    assert (point.x, point.y, point.seen) == (1, 2, [])
    assert point == Point(1, y=2, seen=[3])
    assert point != Point(2)
    assert point != other
    assert hash(point) == hash(Point(1))
    assert repr(point) == "Point(x=1, y=2)"
    assert replace(point, x=5) == Point(5)
    assert Point(1).seen is not Point(1).seen
    assert [each.name for each in fields(Point)] == ["x", "y", "seen"]
    assert repr(Named(name="a", value=1)) == "Named(name='a', value=1, length=1)"
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)


@pytest.mark.parametrize("value", [Point(1, 3, [4]), Derived(1, z="w")])
def test_what_is_frozen_stays_as_it_is_and_travels(value: Any) -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        value.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del value.x
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert again.seen == value.seen


def test_what_can_change_has_no_hash() -> None:
    named = Named(name="abc", value=1)
    named.value = 2
    assert named == Named(name="abc", value=2)
    assert pickle.loads(pickle.dumps(named)) == named
    with pytest.raises(TypeError, match="unhashable"):
        hash(named)
    plain: Any = quick_dataclass.dataclass(eq=False)(type("Plain", (), {}))
    assert plain.__hash__ is object.__hash__


def test_own_methods_and_inherited_fields_count() -> None:
    assert repr(Derived(1)) == "derived"
    assert Derived(1, 2, [], "w").z == "w"
    assert hash(Derived(1)) != hash(Derived(2))


@pytest.mark.parametrize("kind", [quick_dataclass.dataclass, dataclasses.dataclass])
def test_wrong_arguments_are_refused_as_usual(kind: Any) -> None:
    @kind(frozen=True, slots=True)
    class Pair:
        left: int
        right: int = 0

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'left'"):
        Pair()
    with pytest.raises(TypeError, match="unexpected keyword argument 'middle'"):
        Pair(1, middle=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
        Pair(1, 2, 3)  # type: ignore[call-arg]
