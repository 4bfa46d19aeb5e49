"""Lets clicks through to the kernel while a cell blocks it.

A kernel reads its shell channel only between cells, so a button in a running cell is dead. A
`Pump` reads the channel from inside the cell. The rule: comm messages, and the two info requests
that a reloaded page needs, are served at once, in the main thread and as part of the running cell;
every other request waits, in order, and is handed back to the kernel at the end of the `with`.

Nothing is patched. What is taken of the kernel's insides is taken in `_hooks`, and where that
fails `pump_for` gives a `NoPump` that says why. Measured on ipykernel 6.17.1, 6.31.0, 7.0.1, 7.3.0
and 7.4.0, with and without subshells.
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

_THROUGH = frozenset(
    {"comm_open", "comm_msg", "comm_close", "kernel_info_request", "comm_info_request"}
)

_Frames = list[Any]  # a message as it comes from the socket


class PumpUnavailable(Exception):  # noqa: N818 - a state, not a fault
    """Clicks can't be let through here; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class NoPump:
    """Stands in for a `Pump` where there can be none: lets nothing through.

    `reason` is a sentence for a person.
    """

    reason: str

    def __enter__(self) -> NoPump:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def poll(self, timeout: float = 0.0) -> bool:
        """Wait for nothing."""
        time.sleep(timeout)
        return False


def pump_for(shell: Any) -> Pump | NoPump:
    """The pump for cells of this shell, or why there is none."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return NoPump("There is no kernel here that buttons could talk to.")
    try:
        return Pump(kernel)
    except PumpUnavailable as unavailable:
        return NoPump(str(unavailable))


class Pump:
    """Lets comm messages through while the cell that made it blocks its kernel.

    Use it as a context manager, and `poll` often. The callbacks of widgets run inside `poll`, and
    what they print or show belongs to the running cell. Where the front-end sends a click to a
    subshell (JupyterLab to ipykernel 7.0 to 7.3), the kernel serves it in a thread of its own, and
    the pump never sees it.

    Example::

        with Pump(get_ipython().kernel) as pump:
            while not answered:
                pump.poll(0.05)

    Raises:
        PumpUnavailable: This kernel is built in another way, the cell doesn't run in the main
            thread, or another pump is at work.
    """

    reason = ""
    _at_work: ClassVar[Pump | None] = None

    def __init__(self, kernel: Any) -> None:
        self._hooks = _hooks(kernel)
        self._refuse_nesting()
        self._through: deque[_Frames] = deque()
        self._waiting: list[_Frames] = []

    def __enter__(self) -> Pump:
        self._refuse_nesting()
        # An interrupt can hit anywhere, the first line of __exit__ included. What the loop does
        # first, when the cell lets it go on, is to close a pump that stayed open.
        self._hooks.inbox.io_loop.add_callback(self._close)
        Pump._at_work = self
        self._hooks.keep_awake(lambda: Pump._at_work is self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with DeferredInterrupt(in_flight=kind):
            self._close()

    def poll(self, timeout: float = 0.0) -> bool:
        """Serve what has arrived.

        Args:
            timeout: Seconds to wait for something to serve.

        Returns:
            Whether something was served.

        Raises:
            KeyboardInterrupt: The cell was interrupted meanwhile; no message is lost by that.
        """
        if Pump._at_work is not self:
            raise RuntimeError("A pump works inside its `with` only.")
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._arrives_within(left):
                with DeferredInterrupt():
                    self._receive()
            if self._through:
                self._serve_all()
                return True
            if left == 0:
                return False

    # -- reading ----------------------------------------------------------------------------------

    def _arrives_within(self, seconds: float) -> bool:
        """An interrupt is welcome in here, since no message is in our hands."""
        if self._hooks.inbox.closed():  # the kernel is being shut down
            time.sleep(seconds)
            return False
        return bool(self._hooks.inbox.socket.poll(math.ceil(seconds * 1000)))

    def _receive(self) -> None:
        """Take everything off the socket. Until the cell ends, the loop can't do it."""
        import zmq

        while True:
            try:
                frames: _Frames = self._hooks.inbox.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            passes = self._kind(frames) in _THROUGH
            (self._through if passes else self._waiting).append(frames)

    def _kind(self, frames: _Frames) -> str:
        """The type of a message; "" if it is none, like the "stop aborting" of ipykernel 7.

        A look with `content=False` doesn't count as receiving: the session refuses to unpack a
        message twice.
        """
        try:
            _, parts = self._hooks.split(frames, copy=False)
            return str(self._hooks.unpack(parts, content=False, copy=False)["msg_type"])
        except Exception:
            return ""  # the kernel will say what it thinks of it

    # -- serving ----------------------------------------------------------------------------------

    def _serve_all(self) -> None:
        try:
            while self._through:
                # The callback is somebody's: it may take so long that one wants to be out of it.
                with DeferredInterrupt(patience=1.0):
                    self._serve(self._through.popleft())
        finally:
            # The last word was "idle", which front-ends and servers take for the kernel's state
            # whatever its parent is: say that the cell is still at work.
            self._hooks.publish_status("busy", "shell")

    def _serve(self, frames: _Frames) -> None:
        """What the kernel does with a message, except that the parent stays the running cell.

        Its "idle" has to be published: until then ipywidgets holds back further changes of the
        same widget.
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
                _run_through(result)
            hooks.send_off()
        except Exception:
            hooks.log.error("Exception while a running cell served a message", exc_info=True)
        finally:
            hooks.publish_status("idle", "shell", message)

    # -- handing back -----------------------------------------------------------------------------

    def _close(self) -> None:
        """Give what waits to the kernel, in order, and have the loop read on. Works once.

        It is given here and not by `add_callback`: the loop may have a read of the inbox in its
        queue from before the cell, and what that finds would overtake.
        """
        if Pump._at_work is not self:
            return
        for frames in (*self._through, *self._waiting):
            self._hooks.deliver(frames)
        self._through.clear()
        self._waiting.clear()
        Pump._at_work = None
        self._hooks.inbox.io_loop.add_callback(_read_on, self._hooks.inbox)

    @staticmethod
    def _refuse_nesting() -> None:
        if Pump._at_work is not None:
            raise PumpUnavailable(
                "Buttons can't work here: this is a part of what a button of a running cell does."
            )


def _read_on(inbox: ZMQStream) -> None:
    """Look for messages once more.

    A zmq socket reports a message once. If we asked and then were interrupted, the loop would
    never hear of it: 7.3.0 and 7.4.0 hung after 12 of 63 interrupts, and after 0 of 1000 with this.
    """
    import zmq

    if not inbox.closed():
        inbox.flush(zmq.POLLIN)


def _run_through(coroutine: Any) -> None:
    """Run a coroutine that never waits, as those of ipykernel 6.17 to 7.4 for the info requests."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("The request was dropped: this kernel has to wait to answer it.")


# -- the kernel's insides --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hooks:
    """What a pump needs of a kernel.

    Args:
        inbox: Brings the messages of the shell channel to the main thread.
        deliver: What the inbox does with a message: puts it at the end of the kernel's queue.
        outbox: Takes replies.
        send_off: Sends what is in the outbox, which else would be done by the loop.
        split: Takes the addresses of the asker off a message.
        unpack: Makes a dictionary of the rest.
        serve: The kernel's own table, from message types to what serves them.
        keep_awake: Keeps the thread that reads the shell channel from missing messages, as long as
            a function says so.
        publish_status: Says "busy" or "idle"; about the running cell if no message is given.
        log: Where the kernel writes its errors.
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
    """The only place where a kernel's insides are taken.

    Raises:
        PumpUnavailable: They aren't there.
    """
    if threading.current_thread() is not threading.main_thread():
        raise PumpUnavailable("Buttons can't work here: the cell doesn't run in the main thread.")
    try:
        return _take(kernel)
    except Exception as error:
        raise PumpUnavailable(
            f"Buttons can't work while a cell runs in this kernel (ipykernel {_version()}): "
            f"it is built in another way than those we know ({error})."
        ) from error


def _take(kernel: Any) -> _Hooks:
    import zmq
    from tornado.ioloop import IOLoop
    from zmq.eventloop.zmqstream import ZMQStream

    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is None:  # ipykernel 6, and 7 without subshells
        inbox = outbox = kernel.shell_stream
    else:  # ipykernel 7: a thread reads the shell channel and passes on what is for the main shell
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
        send_off=partial(outbox.flush, zmq.POLLOUT) if outbox is inbox else _nothing,
        split=kernel.session.feed_identities,
        unpack=kernel.session.deserialize,
        serve={kind: kernel.shell_handlers[kind] for kind in _THROUGH},
        keep_awake=partial(_keep_awake, kernel.shell_stream) if _dozes(thread) else _nothing,
        publish_status=kernel._publish_status,
        log=kernel.log,
    )


def _dozes(thread: Any) -> bool:
    """Whether it is ipykernel 7.0 to 7.3, which sends replies behind the back of the stream."""
    return thread is not None and hasattr(thread.manager, "_shell_socket")


def _keep_awake(stream: ZMQStream, wanted: Callable[[], bool]) -> None:
    """Have that thread look for messages every quarter second, and for 2 s more.

    It misses a message that comes while it sends a reply, and with it all that follow: 7.0.1 and
    7.3.0 hung after 8 of 238 interrupts of a cell without a pump that had others behind it, after
    10 of 770 of one with a pump, and after 0 of 1000 with this.
    """

    def look(more: int) -> None:
        _read_on(stream)
        left = 8 if wanted() else more - 1
        if left:
            stream.io_loop.call_later(0.25, look, left)

    stream.io_loop.add_callback(look, 8)


def _nothing(*_: object) -> None:
    """Where nothing needs to be done."""


def _version() -> str:
    return str(getattr(sys.modules.get("ipykernel"), "__version__", "unknown"))
