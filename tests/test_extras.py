"""Optional libraries are imported on first use; without one, an error says how to install it."""

from __future__ import annotations

import json

import pytest

from penstock.errors import MissingExtraError
from penstock.extras import require


def test_a_library_that_is_there() -> None:
    assert require("json", extra="none", purpose="reading") is json


def test_a_library_that_is_missing() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_library.part", extra="fish", purpose="to fish", needs="a pond")
    assert str(caught.value).startswith("to fish needs no_such_library, which cannot be imported (No module named")
    assert "run pip install 'penstock[fish]'; it also needs a pond" in str(caught.value)
    assert isinstance(caught.value.__cause__, ImportError)
