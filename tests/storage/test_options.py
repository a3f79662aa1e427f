"""Options by their many names."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.storage.base import resolve_store
from penstock.storage.options import first_set, is_true, own_options, take_options


def test_options_that_are_not_set_are_left_out() -> None:
    assert take_options("x", {"a": None, "b": 0}, {"a": "a", "b": "c"}) == {"c": 0}
    assert take_options("x", {"b": 1, "c": 1}, {"b": "c", "c": "c"}) == {"c": 1}


def test_flat_options_may_be_named_like_a_scheme() -> None:
    assert own_options("s3", {"file": "x"}, ["s3", "file"]) == {"file": "x"}
    assert own_options("s3", {"gs": {"token": "x"}}, ["s3", "gs"]) == {}


def test_switches_and_variables() -> None:
    assert [is_true("x", value) for value in (True, "1", "Yes", False, "off", "")] == [True] * 3 + [False] * 3
    with pytest.raises(ConfigError, match="must be true or false"):
        is_true("x", "perhaps")
    assert first_set({"A": "", "B": "b"}, "A", "B") == "b"
    assert first_set({}, "A") is None


NOWHERE = {"HOME": "/nowhere", "NO_GCE_CHECK": "true"}


@pytest.mark.parametrize("scheme", ["gs", "gcs", "az", "oci", "s3"])
def test_unknown_options_are_errors(scheme: str) -> None:
    with pytest.raises(ConfigError, match="has no option 'encrypt'"):
        resolve_store(f"{scheme}://bucket/x", {"encrypt": True}, environ=NOWHERE)
