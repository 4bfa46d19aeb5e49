"""Offline OpenCode worlds: scripted model, workspace, and a server between them.

The real server gets a HOME and XDG folders of its own, so it sees no session, key or setting of
the user's, and everything it could want from the network is turned off.
"""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ..client import server
from ..client.password import DEFAULT_USER
from .environment import environment, write_config
from .install import opencode
from .model import PracticeModel
from .workspace import make_workspace


class World:
    """What practice worlds have in common: a folder, a workspace, a model, a beginning and an end.

    Args:
        root: The folder for everything the world writes. By default a temporary one that is
            removed at the end.
        progress: Called with one line for each thing that takes a while.
    """

    def __init__(
        self, root: Path | str | None = None, *, progress: Callable[[str], None] | None = None
    ) -> None:
        self._given_root = root
        self._say = progress or _silent
        self._closing = ExitStack()
        self.root = Path()
        self.directory = Path()
        self.model: PracticeModel

    @property
    def url(self) -> str:
        """The server's base URL."""
        raise NotImplementedError

    @property
    def password(self) -> str:
        """The server's password."""
        raise NotImplementedError

    @property
    def access(self) -> dict[str, str]:
        """The variables with which `%oc_connect` finds this server."""
        return {
            "OPENCODE_SERVER_URL": self.url,
            "OPENCODE_SERVER_USERNAME": DEFAULT_USER,
            "OPENCODE_SERVER_PASSWORD": self.password,
        }

    def start(self) -> Self:
        """Start the model and the server."""
        with ExitStack() as closing:
            self._start(closing)
            self._closing = closing.pop_all()
        return self

    def _start(self, closing: ExitStack) -> None:
        """Make the folder, the workspace and the model; the server is up to each world."""
        self.root = self._make_root(closing)
        self.directory = make_workspace(self.root / "party")
        self.model = closing.enter_context(PracticeModel())

    def stop(self) -> None:
        """Stop everything, and remove the temporary folder. Safe to repeat."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _make_root(self, closing: ExitStack) -> Path:
        if self._given_root is not None:
            root = Path(self._given_root)
            root.mkdir(parents=True, exist_ok=True)
            return root.resolve()
        # Resolved, because OpenCode names directories by their real path.
        root = Path(tempfile.mkdtemp(prefix="opencode-practice-")).resolve()
        closing.callback(shutil.rmtree, root, ignore_errors=True)
        return root


class Practice(World):
    """A running practice world: `with Practice() as practice: practice.url`.

    `name` and `what` say what its server is.

    Args:
        root: The folder for everything the world writes. By default a temporary one that is
            removed at the end.
        command: The `opencode` program; by default it is found or installed.
        progress: Called with one line for each thing that takes a while.
    """

    name = "OpenCode"
    what = "A real OpenCode server"

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        command: Path | str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(root, progress=progress)
        self._command = command
        self.server: server.ServerProcess

    @property
    def url(self) -> str:
        """The server's base URL."""
        return self.server.url

    @property
    def password(self) -> str:
        """The server's password."""
        return self.server.password

    @property
    def version(self) -> str:
        """The server's version."""
        return self.server.version

    @property
    def env(self) -> dict[str, str]:
        """The environment of this world's OpenCode, for its command line, too."""
        return environment(self.root / "home")

    def _start(self, closing: ExitStack) -> None:
        command = self._command or opencode(self._say)
        super()._start(closing)
        write_config(self.root / "home", self.model.url)
        self._say("Starting OpenCode with the practice model")
        self.server = server.start(directory=self.directory, command=command, env=self.env)
        closing.callback(self.server.stop)


def _silent(line: str) -> None:
    """Show no progress."""
