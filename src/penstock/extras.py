"""The one door to optional libraries: imported on first use, with the install command in the error."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import MissingExtraError


def require(module: str, *, extra: str, purpose: str, needs: str = "") -> Any:
    """Import `module`, or say which extra of penstock brings it and what it was needed for.

    `needs` is what no extra brings, but the machine has to have.
    """
    try:
        return import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # the last two if it cannot load libraries of its own
        package, reason = module.partition(".")[0], str(error).partition("\n")[0]
        raise MissingExtraError(
            f"{purpose} needs {package}, which cannot be imported ({reason}): run {pip_install(extra)}"
            + (f"; it also needs {needs}" if needs else ""),
            module=module,
            extra=extra,
        ) from None  # the reason is in the message


def pip_install(extra: str) -> str:
    """Return the command that brings an extra: from the folder that penstock was installed from, if it was one."""
    return f"pip install '{_origin()}[{extra}]'"


@cache
def _origin() -> str:
    from importlib.metadata import PackageNotFoundError, distribution  # half of what `import penstock` takes

    try:
        origin = distribution("penstock").read_text("direct_url.json")  # not there if it came from an index
    except PackageNotFoundError:  # the sources are on the path, as they are
        origin = None
    url = urlsplit(json.loads(origin)["url"] if origin else "")
    return unquote(url.path) if url.scheme == "file" else "penstock"
