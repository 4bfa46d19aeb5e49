"""Pause Python's garbage collector while many values without reference cycles are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector in this block or decorated function.

    It scans all new values again and again, which takes a fifth of the time that building a frame
    from the cache takes (CPython 3.11). Don't use this around requests: a response of httpx 0.28
    is a reference cycle, and its body would stay in memory.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
