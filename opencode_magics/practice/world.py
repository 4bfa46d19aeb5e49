"""Offline OpenCode worlds: a scripted model, a workspace, and a server.

The real server has its own HOME and XDG folders, so it sees none of the user's sessions, keys or
settings, and all its network features are turned off.
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
    """Base class of practice worlds: their folder, workspace and model, start and stop.

    Args:
        root: The folder for all files of the world. By default a temporary one that is removed at
            the end.
        progress: Called with a line of text before each slow operation.
    """

    def __init__(
        self, root: Path | str | None = None, *, progress: Callable[[str], None] | None = None
    ) -> None:
        self._root = root
        self._report = progress or _silent
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
        """The environment variables with which `%oc_connect` finds this server."""
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
        """Create the folder, the workspace and the model; subclasses start the server."""
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
        if self._root is not None:
            root = Path(self._root)
            root.mkdir(parents=True, exist_ok=True)
            return root.resolve()
        # Resolved, because OpenCode uses the real paths of directories.
        root = Path(tempfile.mkdtemp(prefix="opencode-practice-")).resolve()
        closing.callback(shutil.rmtree, root, ignore_errors=True)
        return root


class Practice(World):
    """A practice world with a real server: `with Practice() as practice: practice.url`.

    `name` and `description` describe its server.

    Args:
        root: The folder for all files of the world. By default a temporary one that is removed at
            the end.
        command: The `opencode` program; by default it is found or installed.
        progress: Called with a line of text before each slow operation.
    """

    name = "OpenCode"
    description = "A real OpenCode server"

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
        """The environment of this world's OpenCode, also for its command line."""
        return environment(self.root / "home")

    def _start(self, closing: ExitStack) -> None:
        command = self._command or opencode(self._report)
        super()._start(closing)
        write_config(self.root / "home", self.model.url)
        self._report("Starting OpenCode with the practice model")
        self.server = server.start(directory=self.directory, command=command, env=self.env)
        closing.callback(self.server.stop)


def _silent(line: str) -> None:
    """Ignore progress."""
