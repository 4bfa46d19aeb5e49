"""Work with OpenCode coding agents from a notebook.

In IPython or Jupyter, `%load_ext opencode_magics` brings the magics. From plain Python,
`connect()` gives a `Client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from .client.client import Client
    from .core.turn import Turn

__all__ = [
    "Client",
    "connect",
    "load_ipython_extension",
    "save",
    "unload_ipython_extension",
]
__version__ = "0.2.0"


def connect(
    url: str | None = None, *, directory: str | None = None, password: str | None = None
) -> Client:
    """Connect to a running OpenCode server.

    Args:
        url: Its address; else $OPENCODE_SERVER_URL, else the registered background service of
            2.x, else http://127.0.0.1:4096.
        directory: Where to work; default: the current directory if the server is on this machine,
            else the server's own.
        password: Else $OPENCODE_SERVER_PASSWORD or $OPENCODE_PASSWORD.

    Raises:
        ServerConnectionError: Nothing answers.
        AuthenticationError: A password is missing or wrong.
        UnsupportedServerError: What answers can't be spoken to.
    """
    from .client.server import connect_to

    return connect_to(url, directory=directory, password=password)


def save(
    turn: Turn, path: str | os.PathLike[str], *, raw: bool = False, append: bool = False
) -> Path:
    """Keep a turn in a file, to play it again with `%oc_replay`.

    Args:
        turn: A turn that this process followed: from `%oc_turn`, `-o`, or a `Run`.
        path: The file; one that holds recordings is replaced, any other is left alone.
        raw: Keep secrets, the home directory and the user's name as they are.
        append: Keep what is in the file, and add the turn to it.

    Returns:
        The path of the file.

    Raises:
        RecordingError: Nobody listened to this turn here, or the file can't be written.

    Example::

        turn = %oc_turn
        opencode_magics.save(turn, "lesson.jsonl")
    """
    from .recording.files import save

    return save(turn, path, raw=raw, append=append)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext opencode_magics`."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext opencode_magics`."""
    from .magics import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    if name == "Client":
        from .client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
