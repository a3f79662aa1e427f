"""Modules of names: nothing is imported before it is asked for, and no name is written twice."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DOOR = """
if TYPE_CHECKING:
    {lines}
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
"""
FILES = {
    "front/__init__.py": DOOR.format(lines="from front.inner import *\n    from front.first import b as b"),
    "front/inner.py": DOOR.format(lines="from front.second import a as a\n    from front.first import c as c"),
    "front/first.py": "b, c = 'b', 'c'",
    "front/second.py": "a = 'a'",
}
CHECKS = """
import sys
import front
assert front.__all__ == dir(front) == ["b"], front.__all__
assert set(sys.modules).isdisjoint(["front.inner", "front.first", "front.second"])
assert front.b == "b" and "b" in vars(front)
assert set(sys.modules).isdisjoint(["front.inner", "front.second"])
from front import a, c
assert (a, c) == ("a", "c")
from front import inner
assert inner.__all__ == ["a", "c"] and inner.a is a
try:
    front.other
except AttributeError as error:
    print(error)
"""


@pytest.mark.parametrize("zipped", [False, True])
def test_names_are_imported_when_they_are_asked_for(tmp_path: Path, zipped: bool) -> None:
    if zipped:
        with zipfile.ZipFile(tmp_path / "front.zip", "w") as file:
            for name, text in FILES.items():
                file.writestr(name, "TYPE_CHECKING = False\n" + text)
    else:
        (tmp_path / "front").mkdir()
        for name, text in FILES.items():
            (tmp_path / name).write_text("TYPE_CHECKING = False\n" + text)
    place = tmp_path / "front.zip" if zipped else tmp_path
    code = f"import sys; sys.path.insert(0, {str(place)!r})" + CHECKS
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("module 'front' has no attribute 'other'", "")
