"""When an interrupt may come: at once where a cell waits, and never in the middle of a message.

An interrupt is a signal, which Python raises as `KeyboardInterrupt` between any two lines of the
main thread. Other threads never see one.
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
    """Makes an interrupt an exception here and now.

    In a cell with an `await` at its top, ipykernel's own SIGINT only leaves a note for the loop
    that we block (6.31 to 7.4).
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
    """Puts interrupts off: raises one at the end, and not where it would tear a message apart.

    Args:
        patience: Seconds after which an interrupt isn't put off any more.
        in_flight: The exception on its way. A second interrupt doesn't replace the first, whose
            exception may say more.
    """

    def __init__(
        self, patience: float = math.inf, in_flight: type[BaseException] | None = None
    ) -> None:
        self._until = time.monotonic() + patience
        self._spare = in_flight
        self._came = False
        self._holds = _in_main_thread()

    def __enter__(self) -> None:
        if self._holds:
            self._before = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._holds:
            return
        # None: what was there is not Python's, and can't be put back.
        before = signal.default_int_handler if self._before is None else self._before
        signal.signal(signal.SIGINT, before)
        raised = kind or self._spare
        if self._came and not (raised and issubclass(raised, KeyboardInterrupt)):
            signal.raise_signal(signal.SIGINT)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        # Noted in any case: IPython swallows what is raised in its pre_execute and post_execute
        # events, and they are a part of every comm message (9.18).
        self._came = True
        if time.monotonic() > self._until and callable(self._before):
            self._before(signum, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
