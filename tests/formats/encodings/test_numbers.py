"""Numbers of other makes are stored as what they are, or refused with what to do: never as something else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ColumnRangeError, ColumnTypeError, ColumnValueError
from penstock.formats.base import get_format
from penstock.formats.encodings.table import infer_encodings
from penstock.testing.reading import is_same
from tests.formats.making import build, make_layout, open_parts, store_and_read

INTEGERS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
TENSORS = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
numbers = st.integers() | st.floats(allow_nan=False) | st.integers(-300, 300)


# --- Tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_stored_as_arrays(name: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    for value in (tensor, tensor.T, tensor[:, ::2]):
        expected = np.asarray(value)
        shape = ",".join(map(str, expected.shape))
        for encoding in ("ndarray", f"ndarray:{name}", f"ndarray:{name}:{shape}"):
            assert is_same(store_and_read(encoding, value), expected)


def test_tensors_that_need_a_gradient_are_stored() -> None:
    tensor = torch.ones(3, requires_grad=True) * 2
    assert is_same(store_and_read("ndarray:float32", tensor), np.full(3, 2, np.float32))


def test_bfloat16_is_stored_as_float32_which_holds_all_of_it() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    for encoding in ("ndarray", "ndarray:float32", "ndarray:float32:65536"):
        found = store_and_read(encoding, every)
        np.testing.assert_array_equal(found, every.float().numpy())
        assert found.dtype == np.float32
    assert store_and_read("float32", torch.tensor(0.1, dtype=torch.bfloat16)) == np.float32(0.10009765625)
    with pytest.raises(ColumnValueError, match=r"got bfloat16: use columns=\{...: 'ndarray:float32'\}, or pass value"):
        store_and_read("ndarray:float16", every)


@pytest.mark.parametrize(
    ("encoding", "value", "words"),
    [
        ("ndarray:float32", torch.ones(2, dtype=torch.float64), r"float32, got float64: use .*'ndarray:float64'.*, or"),
        ("ndarray:int32", torch.ones(2, dtype=torch.int64), "int32, got int64: use .*ndarray:int64.*astype"),
        ("ndarray:uint8", torch.ones(2, dtype=torch.bool), "float64, got bool: convert"),
        ("ndarray:float32", torch.ones(2).to(torch.float8_e4m3fn), "float8_e4m3fn and shape .*pass .*float"),
        ("ndarray:float32", torch.ones(2, 2).to_sparse(), "which NumPy cannot hold"),
        (
            "int",
            torch.tensor([3]),
            r"got a tensor of int64 and shape \(1,\): use .*'ndarray:int64'.*or pass value.item",
        ),
        ("float32", np.zeros((2, 1), np.float32), r"got an array of float32 and shape \(2, 1\): use .*ndarray:float32"),
        ("str", torch.tensor(1), "expects a str, got Tensor: pass str"),
    ],
)
def test_what_an_encoding_cannot_take_names_dtype_and_remedy(encoding: str, value: Any, words: str) -> None:
    with pytest.raises((ColumnTypeError, ColumnValueError), match=rf"^column 'x' .*{words}"):
        store_and_read(encoding, value)


@pytest.mark.parametrize("kind", [np.int16, torch.tensor, lambda number: np.array(number, np.uint8)])
def test_one_number_in_any_wrapping(kind: Any) -> None:
    assert is_same(store_and_read("int", kind(7)), 7)
    assert is_same(store_and_read("str_int", kind(7)), 7)
    assert is_same(store_and_read("int32", kind(7)), np.int32(7))
    assert is_same(store_and_read("float16", kind(7)), np.float16(7))
    assert is_same(store_and_read("json", kind(7)), 7)


def test_json_holds_numbers_of_other_makes_at_any_depth() -> None:
    value = {"a": [np.float32(0.5), torch.tensor([1, 2])], "b": np.bool_(True), "c": (np.arange(2), {"d": np.int8(1)})}
    assert is_same(store_and_read("json", value), {"a": [0.5, [1, 2]], "b": True, "c": [[0, 1], {"d": 1}]})


@pytest.mark.parametrize("value", [{1: 2}, [{"a": {None: 2}}], ({True: 1},), {"a": [[{2.5: "x"}]]}])
def test_json_refuses_keys_that_would_become_text(value: Any) -> None:
    with pytest.raises(ColumnTypeError, match="^column 'x' expects keys of type str, got .*: pass str"):
        store_and_read("json", value)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_text_formats_take_them_too(kind: str) -> None:
    layout = make_layout({"f": "float", "i": "int", "s": "str"}, kind)
    sample = {"f": np.float32(0.5), "i": torch.tensor(3), "s": np.str_("x")}
    assert get_format(kind).infer(sample) == {"f": "float", "i": "int", "s": "str"}
    found = open_parts(layout, build(layout, [sample]), 1).read([0])
    assert is_same(found, [{"f": 0.5, "i": 3, "s": "x"}])


def test_encodings_are_guessed_of_them() -> None:
    sample = {
        "a": torch.zeros(2, 3),
        "b": torch.zeros(2, dtype=torch.bfloat16),
        "c": torch.tensor(3),
        "d": np.bool_(True),
        "e": np.str_("x"),
        "f": np.array(1.5),
    }
    names = ["ndarray:float32", "ndarray:float32", "int64", "json", "str", "float64"]
    assert infer_encodings(sample) == dict(zip(sample, names, strict=True))
    with pytest.raises(ColumnTypeError, match="'x' holds a tensor of bool and shape .*: convert it to one of uint8"):
        infer_encodings({"x": torch.zeros(2, dtype=torch.bool)})


# --- Lists --------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.lists(numbers, min_size=1, max_size=4), st.sampled_from(INTEGERS + FLOATS))
def test_a_list_of_numbers_is_what_it_was_or_refused(values: list[Any], name: str) -> None:
    try:
        found = store_and_read(f"ndarray:{name}", values)
    except (ColumnRangeError, ColumnTypeError):
        return
    assert found.dtype == name
    for one, value in zip(found.tolist(), values, strict=True):
        rounds = name in FLOATS and type(value) is float
        assert (one == np.dtype(name).type(value) and math.isinf(one) == math.isinf(value)) if rounds else one == value


def test_lists_have_as_many_axes_as_they_are_deep() -> None:
    assert is_same(store_and_read("ndarray:int16:2,2", [[1, 2], (3, 4)]), np.array([[1, 2], [3, 4]], np.int16))
    assert is_same(store_and_read("ndarray", [[0.5, 2]]), np.array([[0.5, 2]]))
    assert is_same(store_and_read("ndarray:uint8", [0, 255.0]), np.array([0, 255], np.uint8))
    assert is_same(store_and_read("ndarray:float32", [0.1, 1]), np.array([0.1, 1], np.float32))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([True, 2], "True or False, which would come back as 1 and 0: use the encoding 'json'"),
        ([[1, 2], [False, 3]], "True or False"),
        ([1, 300], "cannot hold 300 as uint8: use .*'ndarray:int64'"),
        ([1, 0.5], "cannot hold 0.5 as uint8: use .*'ndarray:float64'"),
        ([2**53 + 1, 2.0], "cannot hold 9007199254740992.0 as uint8"),
        ([[1], [2, 3]], "lists of different lengths: pad them"),
        (["1"], "got a list that holds something else"),
        ([None], "got a list that holds something else"),
        ([], "expects an array with at least one axis"),
    ],
)
def test_lists_that_are_no_numbers_of_the_column(value: Any, words: str) -> None:
    with pytest.raises((ColumnTypeError, ColumnValueError), match=f"^column 'x' .*{words}"):
        store_and_read("ndarray:uint8", value)


# --- Nothing comes back as something else -------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, np.True_, torch.tensor(True)])
@pytest.mark.parametrize("encoding", ["int", "str_int", "str_float", *INTEGERS, *FLOATS])
def test_truth_values_are_no_numbers(encoding: str, value: Any) -> None:
    with pytest.raises(ColumnTypeError, match="^column 'x' expects .*, got "):
        store_and_read(encoding, value)


def test_truth_values_in_text() -> None:
    layout = make_layout({"x": "int"}, "json")
    assert is_same(open_parts(layout, build(layout, [{"x": True}]), 1).read([0]), [{"x": True}])
    with pytest.raises(
        ColumnTypeError, match="^column 'x' expects an int, got bool, which would come back as 1: pass int"
    ):
        build(make_layout({"x": "int"}, "csv"), [{"x": True}])


@settings(max_examples=300)
@given(
    st.sampled_from(["int", *INTEGERS, *FLOATS]),
    numbers.flatmap(lambda value: st.sampled_from([value, *as_numpy(value)])),
)
def test_a_number_is_what_it_was_or_refused(encoding: str, value: Any) -> None:
    """Only floats are rounded, and none of them to infinity."""
    try:
        found = store_and_read(encoding, value)
    except (ColumnRangeError, ColumnTypeError, ColumnValueError):
        return
    if encoding in FLOATS and isinstance(value, (float, np.floating)):
        assert found == np.dtype(encoding).type(value)
        assert np.isinf(found) == np.isinf(value)
    else:
        assert int(found) == value


def as_numpy(value: Any) -> list[Any]:
    """The scalars of every dtype that are this number."""
    found = []
    for name in INTEGERS if isinstance(value, int) else FLOATS:
        with np.errstate(over="ignore"):
            try:
                scalar = np.dtype(name).type(value)
            except OverflowError:
                continue
        if scalar.item() == value:
            found.append(scalar)
    return found


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("uint8", 7.9),
        ("uint8", np.int64(300)),
        ("int64", np.uint64(2**63)),
        ("int32", math.nan),
        ("int32", "12"),
        ("float32", 1e39),
        ("float32", np.float64(1e39)),
        ("float32", 2**24 + 1),
        ("float64", 2**53 + 1),
        ("float64", 10**400),
        ("float64", "0.5"),
        ("float64", None),
        ("float64", np.timedelta64(3, "s")),
    ],
)
def test_numbers_that_a_column_cannot_hold(encoding: str, value: Any) -> None:
    with pytest.raises((ColumnRangeError, ColumnTypeError, ColumnValueError), match="^column 'x' "):
        store_and_read(encoding, value)


def test_whole_numbers_among_floats_are_not_rounded() -> None:
    with pytest.raises(
        ColumnRangeError, match=r"^column 'x' cannot hold 9007199254740993 .* would come back as 9007199254"
    ):
        store_and_read("ndarray", [2**53 + 1, 0.5])
