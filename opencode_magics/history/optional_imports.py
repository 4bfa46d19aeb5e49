"""Import packages that are installed by an extra of this package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import MissingPackageError


def import_extra(module: str, purpose: str, extra: str) -> Any:
    """Import a module that an extra installs.

    Args:
        module: Name of the module.
        purpose: Plural subject of the error's sentence "... need PACKAGE", such as "Charts".
        extra: Name of the extra.

    Raises:
        MissingPackageError: The package isn't installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, and one of its own imports is missing
        raise MissingPackageError(
            f"{purpose} need {package}, which is not installed.",
            f"Install it with: pip install 'opencode-magics[{extra}]'",
        ) from error
