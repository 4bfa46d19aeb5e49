"""The cache for what tests download, which processes of a run and several runs share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = HOME / "opencode_magics"


@contextmanager
def shared_cache() -> Iterator[Path]:
    """Give one process at a time the folder of the cache.

    Inside, `XDG_CACHE_HOME` is what it was when the run began: a test's shell changes it.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("XDG_CACHE_HOME", str(HOME))
        yield FOLDER
