"""Handles widget clicks while a cell blocks the kernel.

A kernel reads its shell channel only between cells, so a button in a running cell does nothing. A
`Pump` reads the channel from inside the cell. The rule: comm messages, and the two info requests
that a reloaded page needs, are served at once, in the main thread and as part of the running cell;
every other request waits, in order, and is returned to the kernel at the end of the `with`.

Nothing is patched. Only `_hooks` uses the kernel's internals; if they differ, `pump_for` returns a
`NoPump` with the reason. Tested with ipykernel 6.17.1, 6.31.0, 7.0.1, 7.3.0 and 7.4.0, with and
without subshells.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from .interrupts import DeferredInterrupt

if TYPE_CHECKING:
    from zmq.eventloop.zmqstream import ZMQStream

_SERVED_TYPES = frozenset(
    {"comm_open", "comm_msg", "comm_close", "kernel_info_request", "comm_info_request"}
)

_Frames = list[Any]  # a message as received from the socket


class PumpUnavailable(Exception):  # noqa: N818 - a state, not a fault
    """Clicks can't be handled here; the message is a sentence with the reason."""


@dataclass(frozen=True, slots=True)
class NoPump:
    """Replaces a `Pump` where none is possible; handles no messages.

    `reason` is a sentence for the user.
    """

    reason: str

    def __enter__(self) -> NoPump:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def poll(self, timeout: float = 0.0) -> bool:
        """Sleep for `timeout` seconds."""
        time.sleep(timeout)
        return False


def pump_for(shell: Any) -> Pump | NoPump:
    """Return the pump for cells of this shell, or a `NoPump` with the reason."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return NoPump("Buttons can't work here: there is no kernel.")
    try:
        return Pump(kernel)
    except PumpUnavailable as unavailable:
        return NoPump(str(unavailable))


class Pump:
    """Serves comm messages while the cell that created it blocks the kernel.

    Use it as a context manager, and call `poll` often. Widget callbacks run inside `poll`, and
    their output belongs to the running cell. If the front end sends a click to a subshell
    (JupyterLab to ipykernel 7.0 to 7.3), the kernel serves it in a thread of its own, and the pump
    never sees it.

    Example::

        with Pump(get_ipython().kernel) as pump:
            while not answered:
                pump.poll(0.05)

    Raises:
        PumpUnavailable: The kernel's internals are unknown, the cell doesn't run in the main
            thread, or another pump is active.
    """

    reason = ""
    _active: ClassVar[Pump | None] = None

    def __init__(self, kernel: Any) -> None:
        self._hooks = _hooks(kernel)
        self._refuse_nesting()
        self._to_serve: deque[_Frames] = deque()
        self._waiting: list[_Frames] = []

    def __enter__(self) -> Pump:
        self._refuse_nesting()
        # An interrupt can occur anywhere, even in the first line of __exit__. This callback closes
        # a pump that was left open, before the loop does anything else after the cell.
        self._hooks.inbox.io_loop.add_callback(self._close)
        Pump._active = self
        self._hooks.keep_awake(lambda: Pump._active is self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with DeferredInterrupt(in_flight=kind):
            self._close()

    def poll(self, timeout: float = 0.0) -> bool:
        """Serve the messages that have arrived.

        Args:
            timeout: Seconds to wait for a message to serve.

        Returns:
            Whether a message was served.

        Raises:
            KeyboardInterrupt: The cell was interrupted meanwhile; no message is lost.
        """
        if Pump._active is not self:
            raise RuntimeError("Can't poll a pump outside of its `with` block.")
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._arrives_within(left):
                with DeferredInterrupt():
                    self._receive()
            if self._to_serve:
                self._serve_all()
                return True
            if left == 0:
                return False

    # -- reading ----------------------------------------------------------------------------------

    def _arrives_within(self, seconds: float) -> bool:
        """Wait for a message. An interrupt is safe here, since no message has been taken."""
        if self._hooks.inbox.closed():  # the kernel is shutting down
            time.sleep(seconds)
            return False
        return bool(self._hooks.inbox.socket.poll(math.ceil(seconds * 1000)))

    def _receive(self) -> None:
        """Read all messages from the socket; the event loop can't until the cell ends."""
        import zmq

        while True:
            try:
                frames: _Frames = self._hooks.inbox.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            queue = self._to_serve if self._kind(frames) in _SERVED_TYPES else self._waiting
            queue.append(frames)

    def _kind(self, frames: _Frames) -> str:
        """Return the type of a message; "" for other data, like ipykernel 7's "stop aborting".

        The session refuses to unpack a message twice, except with `content=False`.
        """
        try:
            _, parts = self._hooks.split(frames, copy=False)
            return str(self._hooks.unpack(parts, content=False, copy=False)["msg_type"])
        except Exception:
            return ""  # the kernel reports the error when the message is returned to it

    # -- serving ----------------------------------------------------------------------------------

    def _serve_all(self) -> None:
        try:
            while self._to_serve:
                # A user's callback may take long, so an interrupt is deferred for 1 s only.
                with DeferredInterrupt(patience=1.0):
                    self._serve(self._to_serve.popleft())
        finally:
            # Front-ends and servers take the "idle" of the served message for the kernel's state,
            # whatever its parent is: publish that the cell is still running.
            self._hooks.publish_status("busy", "shell")

    def _serve(self, frames: _Frames) -> None:
        """Serve a message as the kernel does, except that the parent stays the running cell.

        Its "idle" must be published: until then ipywidgets holds back further changes of the same
        widget.
        """
        hooks = self._hooks
        try:
            idents, parts = hooks.split(frames, copy=False)
            message = hooks.unpack(parts, copy=False)
        except Exception:
            hooks.log.error("Invalid message", exc_info=True)
            return
        hooks.publish_status("busy", "shell", message)
        try:
            result = hooks.serve[message["msg_type"]](hooks.outbox, idents, message)
            if inspect.iscoroutine(result):
                _run_without_waiting(result)
            hooks.send_off()
        except Exception:
            hooks.log.error("Exception while a running cell served a message", exc_info=True)
        finally:
            hooks.publish_status("idle", "shell", message)

    # -- returning messages to the kernel ---------------------------------------------------------

    def _close(self) -> None:
        """Return the waiting messages to the kernel, in order, and resume the loop. Idempotent.

        They are delivered here and not by `add_callback`: the loop may have queued a read of the
        inbox before the cell ran, whose messages would overtake them.
        """
        if Pump._active is not self:
            return
        for frames in (*self._to_serve, *self._waiting):
            self._hooks.deliver(frames)
        self._to_serve.clear()
        self._waiting.clear()
        Pump._active = None
        self._hooks.inbox.io_loop.add_callback(_check_inbox, self._hooks.inbox)

    @staticmethod
    def _refuse_nesting() -> None:
        if Pump._active is not None:
            raise PumpUnavailable(
                "Buttons can't work here: this code runs in the callback of another button."
            )


def _check_inbox(inbox: ZMQStream) -> None:
    """Make the loop check the socket for messages again.

    A zmq socket signals a message once. If our poll took the signal and was then interrupted, the
    loop would never get it: 7.3.0 and 7.4.0 hung after 12 of 63 interrupts, and after 0 of 1000
    with this check.
    """
    import zmq

    if not inbox.closed():
        inbox.flush(zmq.POLLIN)


def _run_without_waiting(coroutine: Any) -> None:
    """Run a coroutine that never waits, like ipykernel's info requests (6.17 to 7.4)."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("The request was dropped: this kernel can't answer it without waiting.")


# -- kernel internals ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hooks:
    """The kernel internals that a pump uses.

    Args:
        inbox: Brings the messages of the shell channel to the main thread.
        deliver: The inbox's callback: puts a message at the end of the kernel's queue.
        outbox: Takes replies.
        send_off: Flushes the outbox, which the loop would otherwise do.
        split: Splits the sender's addresses from a message.
        unpack: Parses the rest into a dictionary.
        serve: The kernel's own table, from message types to handlers.
        keep_awake: Keeps the thread that reads the shell channel from missing messages while a
            function returns true.
        publish_status: Publishes "busy" or "idle"; without a message, for the running cell.
        log: The kernel's logger.
    """

    inbox: ZMQStream
    deliver: Callable[[_Frames], Any]
    outbox: Any
    send_off: Callable[[], Any]
    split: Callable[..., tuple[list[bytes], _Frames]]
    unpack: Callable[..., dict[str, Any]]
    serve: Mapping[str, Callable[..., Any]]
    keep_awake: Callable[[Callable[[], bool]], None]
    publish_status: Callable[..., None]
    log: Any


def _hooks(kernel: Any) -> _Hooks:
    """Return the internals of a kernel; nothing else in the package uses them.

    Raises:
        PumpUnavailable: The kernel doesn't have them, or this is not its main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise PumpUnavailable("Buttons can't work here: the cell doesn't run in the main thread.")
    try:
        return _read_hooks(kernel)
    except Exception as error:
        raise PumpUnavailable(
            f"Buttons can't work while a cell runs in this kernel (ipykernel {_version()}): "
            f"its internals differ from the supported versions ({error})."
        ) from error


def _read_hooks(kernel: Any) -> _Hooks:
    import zmq
    from tornado.ioloop import IOLoop
    from zmq.eventloop.zmqstream import ZMQStream

    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is None:  # ipykernel 6, and 7 without subshells
        inbox = outbox = kernel.shell_stream
    else:  # ipykernel 7: a thread reads the shell channel and forwards the main shell's messages
        inbox = thread.manager.get_shell_channel_to_subshell_pair(None).to_stream
        outbox = thread.manager.get_subshell_to_shell_channel_socket(None)
    if not isinstance(inbox, ZMQStream) or inbox.closed():
        raise TypeError("no open stream of messages")
    if inbox._recv_callback is None or inbox.io_loop is not IOLoop.current():
        raise TypeError("the stream of messages is not read by the loop that runs the cell")
    return _Hooks(
        inbox=inbox,
        deliver=partial(inbox._run_callback, inbox._recv_callback),
        outbox=outbox,
        send_off=partial(outbox.flush, zmq.POLLOUT) if outbox is inbox else _no_op,
        split=kernel.session.feed_identities,
        unpack=kernel.session.deserialize,
        serve={kind: kernel.shell_handlers[kind] for kind in _SERVED_TYPES},
        keep_awake=partial(_keep_awake, kernel.shell_stream) if _may_miss(thread) else _no_op,
        publish_status=kernel._publish_status,
        log=kernel.log,
    )


def _may_miss(thread: Any) -> bool:
    """Return whether this is ipykernel 7.0 to 7.3, which sends replies bypassing the stream."""
    return thread is not None and hasattr(thread.manager, "_shell_socket")


def _keep_awake(stream: ZMQStream, active: Callable[[], bool]) -> None:
    """Make the shell channel's thread check for messages every 0.25 s, until 2 s after the end.

    It misses a message that arrives while it sends a reply, and all later ones: 7.0.1 and 7.3.0
    hung after 8 of 238 interrupts of a cell without a pump and with queued cells, after 10 of 770
    of a cell with a pump, and after 0 of 1000 with these checks.
    """

    def check(more: int) -> None:
        _check_inbox(stream)
        left = 8 if active() else more - 1
        if left:
            stream.io_loop.call_later(0.25, check, left)

    stream.io_loop.add_callback(check, 8)


def _no_op(*_: object) -> None:
    """Do nothing."""


def _version() -> str:
    return str(getattr(sys.modules.get("ipykernel"), "__version__", "unknown"))
