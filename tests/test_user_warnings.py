"""Warnings point at the line of the user that called into the library."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import user_warnings
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    import pytest


def test_the_line_outside_of_the_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = str(Path(user_warnings.__file__).with_name("deep.py"))  # code of the library, as far as frames say
    names: dict[str, Any] = {"warn_user": warn_user}
    exec(compile("def deep(): warn_user('from within')\ndef deeper(): deep()", inside, "exec"), names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user("from here")
        names["deeper"]()
        monkeypatch.setattr(user_warnings, "_INSIDE", "/")  # as if no frame were the user's
        warn_user("from nowhere")
    assert [str(warning.message) for warning in caught] == ["from here", "from within", "from nowhere"]
    assert [warning.filename for warning in caught[:2]] == [__file__] * 2
    assert caught[0].category is UserWarning
