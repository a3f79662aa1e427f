"""Optional libraries are imported on first use; without one, an error says how to install it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.errors import MissingExtraError
from penstock.extras import pip_install, require

if TYPE_CHECKING:
    from pathlib import Path


def test_a_library_that_is_there() -> None:
    assert require("json", extra="none", purpose="reading") is json


def test_a_library_that_is_missing() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_library.part", extra="fish", purpose="to fish", needs="a pond")
    assert str(caught.value).startswith("to fish needs no_such_library, which cannot be imported (No module named")
    assert f"run {pip_install('fish')}; it also needs a pond" in str(caught.value)
    assert caught.value.__suppress_context__  # the reason is in the message


def test_the_command_names_the_folder_that_penstock_was_installed_from(tmp_path: Path) -> None:
    def command(origin: str | None) -> str:
        folder = tmp_path / "penstock-1.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 1\n")
        (folder / "direct_url.json").unlink(missing_ok=True)
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps({"url": origin, "dir_info": {}}))
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
        code = f"{path}\nfrom penstock.extras import pip_install\nprint(pip_install('x'))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    assert command("file:///home/me/my%20copy") == "pip install '/home/me/my copy[x]'"
    assert command("https://host/penstock.whl") == command(None) == "pip install 'penstock[x]'"
