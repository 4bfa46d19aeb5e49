"""Imports what comes with an extra of this package, when it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import MissingPackageError


def import_extra(module: str, purpose: str, extra: str) -> Any:
    """A module of an extra.

    Args:
        module: Its name.
        purpose: What needs it, as the subject of a sentence in the plural.
        extra: Which extra brings it.

    Raises:
        MissingPackageError: It isn't installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is here, and broken
        raise MissingPackageError(
            f"{purpose} need {package}, which is not installed here.",
            f"Install it with: pip install 'opencode-magics[{extra}]'",
        ) from error
