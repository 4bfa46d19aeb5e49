"""Work with OpenCode coding agents, from a notebook or from plain Python.

In IPython or Jupyter, `%load_ext opencode_magics` adds the magics; `%oc_help` lists them. In plain
Python, `connect` opens a client, and `ask` sends a prompt and returns its turn::

    import opencode_magics as oc

    client = oc.connect()
    turn = oc.ask(client, "Explain greet.py", title="A first look")
    print(turn.text, turn.cost)

By default every permission that an agent asks for is rejected. To decide yourself, pass a
function::

    def decide(permission: oc.Permission):
        return "once" if permission.action == "edit" else ("reject", "Only edit files, please.")

    turn = oc.ask(client, "Fix the bug in greet.py", on_permission=decide)

The names in `__all__` are the public interface. Every other module and name is internal and may
change at any time.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import (
    AnswerNeeded,
    AuthenticationError,
    CostLimitError,
    InsecureError,
    InvalidAnswer,
    MissingPackageError,
    NotFoundError,
    OpenCodeError,
    RecordingError,
    ServerConnectionError,
    ServerStartError,
    SessionBusyError,
    StatusError,
    StreamError,
    TurnError,
    TurnInterrupted,
    UnfitAnswer,
    UnknownNameError,
    UnsupportedOperation,
    UnsupportedServerError,
)

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from . import history
    from .client.client import Client
    from .core.limits import Limits
    from .core.model import Attachment, Permission, Question, Session
    from .core.turn import Turn
    from .dialects.base import Delivery
    from .prompts.answering import PermissionCallback, PermissionPolicy, QuestionCallback
    from .recording.format import Recording

__all__ = [
    "AnswerNeeded",
    "AuthenticationError",
    "Client",
    "CostLimitError",
    "InsecureError",
    "InvalidAnswer",
    "Limits",
    "MissingPackageError",
    "NotFoundError",
    "OpenCodeError",
    "Permission",
    "Question",
    "Recording",
    "RecordingError",
    "ServerConnectionError",
    "ServerStartError",
    "Session",
    "SessionBusyError",
    "StatusError",
    "StreamError",
    "Turn",
    "TurnError",
    "TurnInterrupted",
    "UnfitAnswer",
    "UnknownNameError",
    "UnsupportedOperation",
    "UnsupportedServerError",
    "__version__",
    "ask",
    "connect",
    "follow",
    "history",
    "load",
    "load_ipython_extension",
    "replay",
    "save",
    "unload_ipython_extension",
]
__version__ = "0.2.0"

# Imported on first use, so that importing the package is fast.
_LAZY = {
    "Client": "client.client",
    "Limits": "core.limits",
    "Permission": "core.model",
    "Question": "core.model",
    "Recording": "recording.format",
    "Session": "core.model",
    "Turn": "core.turn",
}


# -- prompts ---------------------------------------------------------------------------------------


def connect(
    url: str | None = None,
    *,
    directory: str | None = None,
    password: str | None = None,
    insecure: bool = False,
) -> Client:
    """Connect to a running OpenCode server.

    Args:
        url: Address of the server. Default: $OPENCODE_SERVER_URL, then the registered background
            service of 2.x, then http://127.0.0.1:4096.
        directory: Working directory. Default: the current directory if the server is on this
            machine, otherwise the server's own.
        password: Default: $OPENCODE_SERVER_PASSWORD or $OPENCODE_PASSWORD.
        insecure: Whether the password may be sent to another machine over plain http.

    Raises:
        InsecureError: The password would be sent over plain http to another machine.
        ServerConnectionError: No server answers.
        AuthenticationError: The password is missing or wrong.
        UnsupportedServerError: The address is not a supported OpenCode server.
    """
    from .client.server import connect_to

    return connect_to(url, directory=directory, password=password, insecure=insecure)


def ask(
    client: Client,
    text: str,
    *,
    session: Session | str | None = None,
    title: str | None = None,
    directory: str | None = None,
    model: str | None = None,
    agent: str | None = None,
    variant: str | None = None,
    files: Sequence[str | os.PathLike[str] | Attachment] = (),
    schema: Any = None,
    retries: int = 2,
    limits: Limits | None = None,
    delivery: Delivery | None = None,
    once: bool = False,
    timeout: float | None = None,
    on_permission: PermissionPolicy | PermissionCallback = "reject",
    on_question: QuestionCallback | None = None,
    on_update: Callable[[Turn], object] | None = None,
) -> Turn:
    """Send a prompt, wait for the end of its turn, and return the turn.

    The prompt is sent once. `on_permission` and `on_question` answer the agent's requests; they are
    called in this thread while the agent waits. If one of them raises an exception, the turn is
    stopped on the server and the exception propagates. Ctrl-C also stops the turn on the server,
    and raises `TurnInterrupted`.

    Args:
        client: A client for the server, from `connect`.
        text: The prompt, sent verbatim.
        session: An existing session, or its id, a prefix of its id, or its title. None creates a
            new session.
        title: Title of the new session.
        directory: Directory of the new session; None uses the client's.
        model: `provider/model`; None uses the session's model.
        agent: The agent that answers, such as "build" or "plan"; None uses the session's agent.
        variant: Variant of the model, such as "high".
        files: Paths of files to attach: text, images, PDF.
        schema: The form of the answer: a JSON Schema, a dataclass, or an example. The answer is
            then in `turn.value`: an instance of the dataclass, a dict, or a DataFrame for an array
            of objects.
        retries: With a schema: the maximum number of retries after an invalid answer.
        limits: Limits that stop the turn, such as `Limits.of(max_cost=0.50)`; None only guards
            against loops.
        delivery: What to do if the session is busy: "queue" the prompt after the current turn, or
            "steer" the current turn at its next step (2.x). None raises `SessionBusyError`.
        once: If the same prompt was answered before, return that turn and send nothing.
        timeout: Seconds after which to return while the turn continues; its outcome is "running",
            and its value None.
        on_permission: "reject", "once" (allow each permission once) or "error" (stop the turn and
            raise `AnswerNeeded`); or a function that takes a `Permission` and returns "once",
            "always", "reject", or a pair of "reject" and a message to the agent, which then
            continues.
        on_question: A function that takes a `Question` and returns an answer for each of its
            items: a label or free text, or a list of these. Returning None dismisses the question,
            which stops the turn. Without a function, every question is dismissed.
        on_update: A function called with each new state of the turn.

    Returns:
        The turn. Its outcome is "succeeded", "rejected" (a permission or question was rejected),
        "aborted", or "running" after a timeout.

    Raises:
        TurnError: The turn failed, was cut off or exceeded a limit; `.turn` is the turn as
            received.
        UnfitAnswer: No answer matched the schema; `.turns` are all attempts.
        TurnInterrupted: The call was interrupted; `.turn` is the turn when it was stopped.
        AnswerNeeded: A permission came up, and `on_permission` is "error".
        InvalidAnswer: A callback returned an invalid answer; the turn was stopped.
        UnknownNameError: No such session, model, agent or variant; nothing was sent.
        SessionBusyError: The session is working on another prompt; nothing was sent.
        CostLimitError: A cost limit is already exceeded; nothing was sent.
        OpenCodeError: Any other failure; `.resend` says whether the prompt can be sent again.
        ValueError: The arguments contradict each other.

    Example::

        review = {"file": "greet.py", "bugs": ["what is wrong"]}
        turn = opencode_magics.ask(client, "Review greet.py", schema=review, agent="plan")
        turn.value["bugs"]
    """
    from .core.limits import Limits
    from .core.model import Attachment
    from .prompts import ask as asking
    from .prompts import schema as schemas
    from .prompts.answering import Callbacks
    from .prompts.files import attachment
    from .prompts.runner import callback_runner

    if not text.strip():
        raise ValueError("The prompt is empty.")
    if isinstance(files, str):
        raise ValueError("files takes a list of paths, not a single one.")
    request = asking.PromptRequest(
        text,
        session=session,
        title=title,
        directory=directory,
        model=model,
        agent=agent,
        variant=variant,
        files=tuple(f if isinstance(f, Attachment) else attachment(f) for f in files),
        schema=None if schema is None else schemas.schema_from(schema),
        retries=retries,
        limits=limits or Limits(),
        delivery=delivery,
        once=once,
    )
    runner = callback_runner(Callbacks(on_permission, on_question), on_update, timeout)
    return asking.ask(client, request, runner)


def follow(
    client: Client,
    session: Session | str,
    *,
    limits: Limits | None = None,
    timeout: float | None = None,
    on_permission: PermissionPolicy | PermissionCallback = "reject",
    on_question: QuestionCallback | None = None,
    on_update: Callable[[Turn], object] | None = None,
) -> Turn:
    """Follow the current turn of a session, as if `ask` had sent its prompt.

    Use it for a turn that was started elsewhere, or after a timeout. If the session is idle, its
    last turn is read and returned.

    Args:
        client: A client for the server, from `connect`.
        session: The session, or its id, a prefix of its id, or its title.
        limits: Limits that stop the turn. The session's earlier cost is not counted.
        timeout: As for `ask`.
        on_permission: As for `ask`.
        on_question: As for `ask`.
        on_update: As for `ask`.

    Returns:
        The turn, as from `ask`.

    Raises:
        TurnError: The turn failed, was cut off or exceeded a limit; `.turn` is the turn as
            received.
        TurnInterrupted: The call was interrupted, and the turn was stopped.
        UnknownNameError: No such session, or it has no prompt yet.
        OpenCodeError: Any other failure, as for `ask`.

    Example::

        turn = opencode_magics.follow(client, "Fix the login page", on_update=print)
    """
    from .prompts.answering import Callbacks
    from .prompts.ask import named_session
    from .prompts.runner import callback_runner, raise_for_outcome
    from .sessions.run import attach

    runner = callback_runner(Callbacks(on_permission, on_question), on_update, timeout)
    turn = runner(attach(client, named_session(client, session), limits))
    raise_for_outcome(turn)
    return turn


# -- recordings ------------------------------------------------------------------------------------


def save(
    turn: Turn, path: str | os.PathLike[str], *, raw: bool = False, append: bool = False
) -> Path:
    """Save the recording of a turn to a file, to replay it with `replay` or `%oc_replay`.

    Args:
        turn: A turn that this process followed: from `ask`, `follow`, `%oc_turn` or `-o`.
        path: The file; an existing recording is replaced, any other file is an error.
        raw: Don't redact secrets, the home directory and the user's name.
        append: Add the turn to the recordings in the file.

    Returns:
        The path of the file.

    Raises:
        RecordingError: This process didn't follow the turn, the file is not a recording, or it
            can't be written.

    Example::

        turn = %oc_turn
        opencode_magics.save(turn, "lesson.jsonl")
    """
    from .recording.files import save

    return save(turn, path, raw=raw, append=append)


def load(path: str | os.PathLike[str]) -> tuple[Recording, ...]:
    """Load the recorded turns of a file, in the order in which they ended.

    Raises:
        RecordingError: There is no such file, it is not a recording, or its version is unknown.

    Example::

        [recording.text for recording in opencode_magics.load("lesson.jsonl")]
    """
    from .recording.files import load

    return load(path)


def replay(
    recording: Recording | str | os.PathLike[str],
    *,
    speed: float = math.inf,
    on_update: Callable[[Turn], object] | None = None,
) -> Turn:
    """Replay a recorded turn without a server, and return it.

    Args:
        recording: A recording from `load`, or the path of a file with a single recorded turn.
        speed: Playback speed, 1.0 for real time; by default there are no waits.
        on_update: A function called with each new state of the turn.

    Returns:
        The turn as recorded; `turn.replayed` describes the recording. A failed turn is returned
        like any other.

    Raises:
        RecordingError: The recording can't be read or replayed, or the file has several turns.
        ValueError: The speed is not positive.

    Example::

        turn = opencode_magics.replay("lesson.jsonl", speed=4, on_update=print)
    """
    from .recording.files import single
    from .recording.format import Recording
    from .sessions.replay import Replay

    if not speed > 0:
        raise ValueError(f"speed must be above 0, not {speed!r}")
    run = Replay(recording if isinstance(recording, Recording) else single(recording), speed)
    last: Turn | None = None
    for turn in run:
        if on_update is not None and turn is not last:
            on_update(turn)
        last = turn
    return run.turn


# -- IPython ---------------------------------------------------------------------------------------


def load_ipython_extension(shell: Any) -> None:
    """Add the magics to an IPython shell; called by `%load_ext opencode_magics`."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics from an IPython shell; called by `%unload_ext opencode_magics`."""
    from .magics import unload

    unload(shell)


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name == "history":
            return importlib.import_module(".history", __name__)
        if name in _LAZY:
            return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
