"""Finds a running server, or starts and stops one of our own.

A server of our own listens on a free loopback port and takes its random password from the
environment, so no other process can read it from a command line, and nothing here ever puts it
into a repr or an error text. One that is kept leaves its password in a file of the user's alone.
"""

import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from ..errors import (
    AuthenticationError,
    ServerConnectionError,
    ServerStartError,
    StatusError,
    UnsupportedServerError,
)
from .client import Client
from .password import DEFAULT_USER, Secret
from .service import registered_service
from .transport import DEFAULT_PORT, is_loopback, parse_url

DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
INSTALL = (
    "Install it with: npm install -g opencode-ai@1. To practise without it: opencode-magics demo"
)
LAST_LINES = 8
BOOTING = 30.0  # seconds that a server may take to start


def connect_to(
    url: str | None = None,
    *,
    directory: str | None = None,
    password: str | None = None,
) -> Client:
    """Connect to a server that runs, and make sure that it can be spoken to.

    Args:
        url: Its address; else $OPENCODE_SERVER_URL, else where the background service of 2.x is
            registered, else http://127.0.0.1:4096. A server that is starting is waited for.
        directory: Where to work. Default: the current directory if the server is on this machine,
            else the server's own.
        password: Else that in the address, else that of a server which an earlier session started
            here and kept, or that the background service wrote down, else
            $OPENCODE_SERVER_PASSWORD or $OPENCODE_PASSWORD.

    Raises:
        ServerConnectionError: Nothing answers, or the directory does not exist.
        AuthenticationError: A password is missing or wrong.
        UnsupportedServerError: What answers can't be spoken to.
    """
    address = url or os.environ.get("OPENCODE_SERVER_URL")
    found = None if address else _background_service(directory, password)
    if found is not None:
        return found
    address = address or DEFAULT_URL
    return _connected(address, directory, *_credentials(address, password))


def _background_service(directory: str | None, password: str | None) -> Client | None:
    """The registered service of 2.x, None if nothing is, or if something else answers there.

    Raises:
        AuthenticationError: It takes none of the passwords that are known for it.
    """
    service = registered_service()
    if service is None:
        return None
    known: list[tuple[str, Secret | None]] = [(DEFAULT_USER, word) for word in service.passwords]
    if password or not known:
        known = [_credentials(service.url, password)]
    for user, word in known:
        try:
            client = _connected(service.url, directory, user, word)
        except AuthenticationError as error:
            refused = error
        except (ServerConnectionError, UnsupportedServerError):
            return None
        else:
            if service.matches_server(client.server):
                return client
            client.close()
            return None
    raise refused


def _connected(address: str, directory: str | None, user: str, password: str | None) -> Client:
    """A client of a server that was seen to answer."""
    where = _work_directory(address, directory)
    client = Client(address, directory=where, password=password, user=user)
    try:
        _check(client)
    except BaseException:
        client.close()
        raise
    return client


def _check(client: Client) -> None:
    """Make sure that a server answers; one that still starts (503) is waited for."""
    deadline = time.monotonic() + BOOTING
    while True:
        try:
            return client.check()
        except StatusError as error:
            hopeless = error.status != 503 or error.name == "service_failed"
            if hopeless or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _credentials(address: str, password: str | None) -> tuple[str, Secret | None]:
    """User and password for a server, as far as the environment or an earlier session know."""
    user = os.environ.get("OPENCODE_SERVER_USERNAME") or DEFAULT_USER
    if password:
        return user, Secret(password)
    if parse_url(address).password:  # what is typed with an address is meant for it
        return user, None
    if kept := _recall(address):  # of just this server; the environment may mean another one
        return DEFAULT_USER, kept
    for name in ("OPENCODE_SERVER_PASSWORD", "OPENCODE_PASSWORD"):
        if os.environ.get(name):
            return user, Secret(os.environ[name])
    return user, None


def is_same_server(address: str | None, url: str) -> bool:
    """Whether what a person typed is the address of a server."""
    return address is not None and _spelt(address) == url


def _spelt(address: str) -> str:
    """An address as `Client.url` and `ServerProcess.url` spell it."""
    return str(parse_url(address)).rstrip("/")


def _work_directory(address: str, directory: str | None) -> str | None:
    """The directory to ask for; on this machine it must exist, since 1.x takes any name."""
    if not is_loopback(parse_url(address).host):
        return directory
    try:
        folder = os.path.abspath(os.path.expanduser(directory or os.getcwd()))
    except OSError as error:
        raise ServerConnectionError(
            f"The current directory can't be used: {error.strerror}.",
            "Go to one that exists, or name it: %oc_connect --directory D",
            sent=False,
        ) from error
    if not os.path.isdir(folder):
        raise ServerConnectionError(
            f"No such directory: {folder}.", "Name one that exists.", sent=False
        )
    return folder


def _kept_file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "opencode_magics" / "servers.json"


def _remember(server: "ServerProcess") -> None:
    """Keep the password of a server that outlives us where only its user can read it."""
    _write(_kept() | {server.url: server.password})


def _write(kept: dict[str, Secret]) -> None:
    path = _kept_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(kept, file)


def _kept() -> dict[str, Secret]:
    try:
        kept = json.loads(_kept_file().read_text())
    except (OSError, ValueError):
        return {}
    known = kept.items() if isinstance(kept, dict) else ()
    return {str(url): Secret(password) for url, password in known}


def _forget(server: "ServerProcess") -> None:
    _write({url: password for url, password in _kept().items() if url != server.url})


def _recall(address: str) -> Secret | None:
    return _kept().get(_spelt(address))


@dataclass(eq=False)
class ServerProcess:
    """An `opencode serve` that we started; `stop()` ends it, and so does our own end.

    With `keep` it outlives us, until `stop()` is called or somebody else ends it.
    """

    url: str
    password: Secret = field(repr=False)
    version: str = ""
    keep: bool = False
    _process: subprocess.Popen[bytes] = field(kw_only=True, repr=False)
    _guard: subprocess.Popen[bytes] | None = field(kw_only=True, repr=False, default=None)
    _log: IO[bytes] = field(kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not self.keep:
            atexit.register(self.stop)
            self._guard = _guarded(self.pid)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def stop(self, patience: float = 5.0) -> None:
        """End the server: ask first, and after `patience` seconds insist. Safe to repeat.

        Until it has ended, what would end it stays: an interrupt may come first.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._signal(signal.SIGTERM)
            self._process.wait(patience)
        if self.running:
            self._signal(_KILL)
            self._process.wait()
        atexit.unregister(self.stop)
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.kill()
            self._guard.stdin.close()
            self._guard.wait()
        if self.keep:
            _forget(self)
        self._log.close()

    def _signal(self, number: int) -> None:
        """Signal the server and what it runs: they are one process group."""
        if not self.running:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self.pid, number)

    def _last_lines(self) -> str:
        """The end of what the server printed, without its password."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").replace(self.password, "********")
        return "\n".join(text.strip().splitlines()[-LAST_LINES:])


def _guarded(group: int) -> subprocess.Popen[bytes] | None:
    """Something that ends a server although we are killed and can't: the pipe to us breaks then.

    The read of a shell ends when we do, whatever our end is. Not on Windows.
    """
    if sys.platform == "win32":
        return None
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -s TERM -- "-$1"', "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def start(
    *,
    directory: Path | str | None = None,
    command: Path | str = "opencode",
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    progress: Callable[[float], None] | None = None,
    keep: bool = False,
) -> ServerProcess:
    """Start `opencode serve` and return when it answers.

    Args:
        directory: Where it runs; the current directory by default.
        command: The program, by name (looked up on PATH) or path.
        env: Its whole environment; ours by default. The password is added to it.
        timeout: How many seconds it may take to answer.
        progress: Called with the seconds passed, several times a second, while we wait.
        keep: Let the server outlive this process.

    Returns:
        The server, with its address, its password and its version.

    Raises:
        ServerStartError: There is no such program or directory, the program ended, or it did not
            answer in time.
    """
    env = os.environ if env is None else env
    program = _program(command, env)
    folder = _folder(directory)
    server = _launch(program, folder, env, keep)
    try:
        server.version = _wait_until_healthy(server, timeout, progress or _silent)
    except BaseException:  # a KeyboardInterrupt, too, must not leave a server behind
        server.stop()
        raise
    if keep:
        _remember(server)
    return server


def _program(command: Path | str, env: Mapping[str, str]) -> str:
    found = shutil.which(command, path=env.get("PATH"))
    if found is None:
        raise ServerStartError(f"OpenCode is not installed: no program {str(command)!r}.", INSTALL)
    return found


def _folder(directory: Path | str | None) -> Path:
    folder = Path.cwd() if directory is None else Path(directory).expanduser().resolve()
    if not folder.is_dir():
        raise ServerStartError(f"No such directory: {folder}.", "Name one that exists.")
    return folder


def _launch(program: str, folder: Path, env: Mapping[str, str], keep: bool) -> ServerProcess:
    password = Secret(secrets.token_urlsafe(24))
    secret = {"OPENCODE_SERVER_USERNAME": DEFAULT_USER, "OPENCODE_SERVER_PASSWORD": password}
    secret["OPENCODE_PASSWORD"] = password  # as 2.x calls it
    port = _free_port()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - a file and not a pipe: nobody has to drain it
    try:
        process = subprocess.Popen(
            [program, "serve", "--hostname", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**env, **secret},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt of the notebook is not one of the server
        )
    except OSError as error:
        log.close()
        reason = error.strerror or type(error).__name__
        raise ServerStartError(f"{program} could not be run: {reason}.", INSTALL) from None
    url = f"http://127.0.0.1:{port}"
    return ServerProcess(url, password, keep=keep, _process=process, _log=log)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(
    server: ServerProcess, timeout: float, progress: Callable[[float], None]
) -> str:
    """The server's version, as soon as it tells."""
    began = time.monotonic()
    with httpx.Client(auth=(DEFAULT_USER, server.password), trust_env=False, timeout=2.0) as client:
        while (passed := time.monotonic() - began) < timeout:
            if not server.running:
                raise ServerStartError(
                    _ended(server), "Run `opencode serve` in a terminal to see why."
                )
            if version := _health(client, server.url):
                return version
            progress(passed)
            time.sleep(0.1)
    raise ServerStartError(
        f"`opencode serve` did not answer within {timeout:g} s.{_said(server)}",
        "Try again with more time, or run `opencode serve` in a terminal.",
    )


def _health(client: httpx.Client, url: str) -> str:
    """The version a healthy server tells, or nothing yet. 1.x tells at one path, 2.x at another."""
    for path in ("/global/health", "/api/info"):
        try:
            reply = client.get(f"{url}{path}")
            told = reply.json() if reply.is_success else None
        except (httpx.TransportError, ValueError):
            continue
        except KeyboardInterrupt:  # as in HTTPTransport.send: frames of httpcore have the password
            raise KeyboardInterrupt from None
        if isinstance(told, dict) and told.get("version"):
            return str(told["version"])
    return ""


def _ended(server: ServerProcess) -> str:
    return f"`opencode serve` ended at once (code {server._process.returncode}).{_said(server)}"


def _said(server: ServerProcess) -> str:
    lines = server._last_lines()
    return f" It said:\n{lines}" if lines else ""


def _silent(seconds: float) -> None:
    """Show no progress."""
