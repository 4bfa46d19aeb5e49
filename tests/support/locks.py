"""A lock between the processes of a test run, and between runs."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import platformdirs


@contextmanager
def one_process(name: str) -> Iterator[None]:
    """Let one process at a time do something, such as a download into the shared cache."""
    path = platformdirs.user_cache_path("opencode_magics") / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
