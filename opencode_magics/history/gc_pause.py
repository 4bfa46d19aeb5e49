"""Pauses Python's search for reference cycles while very many values are made that have none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Values made in this block, or by a function decorated so, are not searched for cycles.

    The search goes through all of them again and again: a fifth of the time in which a cached
    history becomes a frame (CPython 3.11). Not for what talks to a server: a response of httpx
    0.28 is a cycle, so that its body would stay.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
