"""The one door to optional libraries: imported on first use, with the install command in the error."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.errors import MissingExtraError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import `module`, or say which extra of penstock brings it and what it was needed for."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{purpose} needs {package}, which cannot be imported ({error}): run pip install 'penstock[{extra}]'",
            module=module,
            extra=extra,
        ) from error
