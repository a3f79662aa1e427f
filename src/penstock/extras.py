"""The one door to optional libraries: imported on first use, with the install command in the error."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
            f"{purpose} needs {package}, which cannot be imported ({reason}): run pip install 'penstock[{extra}]'"
            + (f"; it also needs {needs}" if needs else ""),
            module=module,
            extra=extra,
        ) from error
