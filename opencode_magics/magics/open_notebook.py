"""Which notebook this kernel belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def open_notebook(shell: Any) -> Path | None:
    """Return the path of the notebook that this kernel runs; None if the front end names none.

    Jupyter Server 2 sets `JPY_SESSION_NAME`, VS Code a variable of the user.
    """
    names = getattr(shell, "user_ns", {})
    named = names.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    return Path(named).absolute() if isinstance(named, str) and named else None


def is_open(shell: Any) -> Callable[[Path], bool]:
    """Return a function that says whether a file is the notebook that is open here."""
    notebook = open_notebook(shell)

    def check(file: Path) -> bool:
        return notebook is not None and _same(file, notebook)

    return check


def _same(file: Path, notebook: Path) -> bool:
    try:
        return os.path.samefile(file, notebook)
    except OSError:
        return file.absolute() == notebook
