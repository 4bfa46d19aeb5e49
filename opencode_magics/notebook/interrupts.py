"""Interrupt handling: raise at once while a cell waits, but never in the middle of a message.

An interrupt is a signal, which Python raises as `KeyboardInterrupt` between any two instructions of
the main thread. Other threads never get one.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise an interrupt inside the `with` block immediately.

    In a cell with a top-level `await`, ipykernel's SIGINT handler only schedules a callback on the
    event loop, which the running cell blocks (6.31 to 7.4).
    """
    if not _in_main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


class DeferredInterrupt:
    """Defers interrupts to the end of the `with` block, so that none splits a message.

    Args:
        patience: Seconds after which interrupts are no longer deferred.
        in_flight: The type of the exception that is being raised. After a `KeyboardInterrupt`, a
            second interrupt is dropped, since the first exception may carry more information.
    """

    def __init__(
        self, patience: float = math.inf, in_flight: type[BaseException] | None = None
    ) -> None:
        self._until = time.monotonic() + patience
        self._in_flight = in_flight
        self._interrupted = False
        self._active = _in_main_thread()

    def __enter__(self) -> None:
        if self._active:
            self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._active:
            return
        # None: the handler was not installed from Python and can't be restored.
        before = signal.default_int_handler if self._before is None else self._before
        signal.signal(signal.SIGINT, before)
        raised = kind or self._in_flight
        if self._interrupted and not (raised and issubclass(raised, KeyboardInterrupt)):
            signal.raise_signal(signal.SIGINT)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        # Recorded even if it is raised below: IPython swallows exceptions in its pre_execute and
        # post_execute events, which every comm message triggers (9.18).
        self._interrupted = True
        if time.monotonic() > self._until and callable(self._before):
            self._before(signum, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
