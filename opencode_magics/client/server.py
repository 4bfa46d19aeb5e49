"""Find a running server, or start and stop one.

A started server listens on a free loopback port. Its random password is passed in the environment,
since a command line is visible to others; no repr or error text contains it. The password of a
server that outlives this process (`keep`) is stored in a file that only the user can read.
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
    InsecureError,
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
    "Install it with: npm install -g opencode-ai@1. To practice without it: opencode-magics demo"
)
LAST_LINES = 8
BOOTING = 30.0  # seconds to wait for a server that is starting


def connect_to(
    url: str | None = None,
    *,
    directory: str | None = None,
    password: str | None = None,
    insecure: bool = False,
) -> Client:
    """Connect to a running server and check that it is supported.

    Args:
        url: Its address. Default: $OPENCODE_SERVER_URL, then the registered background service of
            2.x, then http://127.0.0.1:4096. If the server is still starting, wait for it.
        directory: The working directory. Default: the current directory if the server is on this
            machine, otherwise the server's own.
        password: Default: the password in the address, then the stored password of a server
            started with `keep` or of the background service, then $OPENCODE_SERVER_PASSWORD or
            $OPENCODE_PASSWORD.
        insecure: Whether a password may be sent to another machine over plain http.

    Raises:
        InsecureError: A password would be sent over plain http to another machine.
        ServerConnectionError: No server answers, or the directory does not exist.
        AuthenticationError: The password is missing or wrong.
        UnsupportedServerError: The address is not a supported OpenCode server.
    """
    address = url or os.environ.get("OPENCODE_SERVER_URL")
    client = None if address else _background_service(directory, password)
    if client is not None:
        return client
    address = address or DEFAULT_URL
    user, secret = _credentials(address, password)
    if not insecure and (secret or parse_url(address).password):
        check_secure(address)
    return _connected(address, directory, user, secret)


def check_secure(address: str) -> None:
    """Check that a password for an address can't be read on the way.

    Raises:
        InsecureError: The address is plain http on another machine.
    """
    url = parse_url(address)
    if url.scheme == "http" and not is_loopback(url.host):
        raise InsecureError(
            f"Nothing was sent to {url.host}: anybody on the way could read the password.",
            "Use https, or an SSH tunnel. If the network is safe: %oc_connect --insecure "
            f"{url.scheme}://{url.host}, or %config OpenCodeMagics.insecure_http = True",
        )


def _background_service(directory: str | None, password: str | None) -> Client | None:
    """Connect to the registered service of 2.x; None if there is none or another server answers.

    Raises:
        AuthenticationError: It accepts none of its known passwords.
    """
    service = registered_service()
    if service is None:
        return None
    logins: list[tuple[str, Secret | None]] = [(DEFAULT_USER, p) for p in service.passwords]
    if password or not logins:
        logins = [_credentials(service.url, password)]
    for user, candidate in logins:
        try:
            client = _connected(service.url, directory, user, candidate)
        except AuthenticationError as error:
            rejected = error
        except (ServerConnectionError, UnsupportedServerError):
            return None
        else:
            if service.matches_server(client.server):
                return client
            client.close()
            return None
    raise rejected


def _connected(address: str, directory: str | None, user: str, password: str | None) -> Client:
    """Return a client of a server that answers."""
    folder = _work_directory(address, directory)
    client = Client(address, directory=folder, password=password, user=user)
    try:
        _check(client)
    except BaseException:
        client.close()
        raise
    return client


def _check(client: Client) -> None:
    """Check that a server answers; wait while it is starting (503)."""
    deadline = time.monotonic() + BOOTING
    while True:
        try:
            return client.check()
        except StatusError as error:
            permanent = error.status != 503 or error.name == "service_failed"
            if permanent or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _credentials(address: str, password: str | None) -> tuple[str, Secret | None]:
    """Return user and password for a server, from the arguments, our file or the environment."""
    user = os.environ.get("OPENCODE_SERVER_USERNAME") or DEFAULT_USER
    if password:
        return user, Secret(password)
    if parse_url(address).password:  # the client takes it from the address
        return user, None
    if stored := _recall(address):  # the environment may contain another server's password
        return DEFAULT_USER, stored
    for name in ("OPENCODE_SERVER_PASSWORD", "OPENCODE_PASSWORD"):
        if os.environ.get(name):
            return user, Secret(os.environ[name])
    return user, None


def is_same_server(address: str | None, url: str) -> bool:
    """Return whether an address, as a user typed it, is the URL of a server."""
    return address is not None and _normalized(address) == url


def _normalized(address: str) -> str:
    """Normalize an address to the form of `Client.url` and `ServerProcess.url`."""
    return str(parse_url(address)).rstrip("/")


def _work_directory(address: str, directory: str | None) -> str | None:
    """Return the directory for requests; on this machine it must exist (1.x doesn't check)."""
    if not is_loopback(parse_url(address).host):
        return directory
    try:
        folder = os.path.abspath(os.path.expanduser(directory or os.getcwd()))
    except OSError as error:
        raise ServerConnectionError(
            f"The current directory can't be used: {error.strerror}.",
            "Change to another directory, or choose one: %oc_connect --directory D",
            sent=False,
        ) from error
    if not os.path.isdir(folder):
        raise ServerConnectionError(
            f"No such directory: {folder}.", "Choose an existing one.", sent=False
        )
    return folder


def _password_file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "opencode_magics" / "servers.json"


def _remember(server: "ServerProcess") -> None:
    """Store the password of a server that outlives this process, readable by the user only."""
    _write_passwords(_passwords() | {server.url: server.password})


def _write_passwords(passwords: dict[str, Secret]) -> None:
    path = _password_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(passwords, file)


def _passwords() -> dict[str, Secret]:
    try:
        content = json.loads(_password_file().read_text())
    except (OSError, ValueError):
        return {}
    items = content.items() if isinstance(content, dict) else ()
    return {str(url): Secret(password) for url, password in items}


def _forget(server: "ServerProcess") -> None:
    _write_passwords({url: p for url, p in _passwords().items() if url != server.url})


def _recall(address: str) -> Secret | None:
    return _passwords().get(_normalized(address))


@dataclass(eq=False)
class ServerProcess:
    """An `opencode serve` that we started; it ends with `stop()` or with this process.

    With `keep` it outlives this process, until `stop()` is called or it is ended by other means.
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
            self._guard = _start_guard(self.pid)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def stop(self, patience: float = 5.0) -> None:
        """Terminate the server, and kill it after `patience` seconds. Safe to repeat.

        The exit hook and the guard are removed last, in case of an interrupt before that.
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
        """Signal the server and its children, which are one process group."""
        if not self.running:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self.pid, number)

    def _last_lines(self) -> str:
        """Return the last lines that the server printed, with its password masked."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").replace(self.password, "********")
        return "\n".join(text.strip().splitlines()[-LAST_LINES:])


def _start_guard(group: int) -> subprocess.Popen[bytes] | None:
    """Start a shell that ends the server if this process is killed.

    It reads from a pipe, which closes when this process ends for any reason. Not on Windows.
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
    """Start `opencode serve` and wait until it answers.

    Args:
        directory: Its working directory; the current directory by default.
        command: The program, by name (looked up on PATH) or path.
        env: Its complete environment; ours by default. The password is added to it.
        timeout: Seconds to wait for an answer.
        progress: Called with the elapsed seconds several times a second.
        keep: Let the server outlive this process.

    Returns:
        The server, with its address, its password and its version.

    Raises:
        ServerStartError: The program or directory doesn't exist, the program ended, or it did not
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
    program = shutil.which(command, path=env.get("PATH"))
    if program is None:
        raise ServerStartError(f"OpenCode is not installed: no program {str(command)!r}.", INSTALL)
    return program


def _folder(directory: Path | str | None) -> Path:
    folder = Path.cwd() if directory is None else Path(directory).expanduser().resolve()
    if not folder.is_dir():
        raise ServerStartError(f"No such directory: {folder}.", "Choose an existing one.")
    return folder


def _launch(program: str, folder: Path, env: Mapping[str, str], keep: bool) -> ServerProcess:
    password = Secret(secrets.token_urlsafe(24))
    secret = {"OPENCODE_SERVER_USERNAME": DEFAULT_USER, "OPENCODE_SERVER_PASSWORD": password}
    secret["OPENCODE_PASSWORD"] = password  # the name in 2.x
    port = free_port()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - unlike a pipe, a file needs no reader
    try:
        process = subprocess.Popen(
            [program, "serve", "--hostname", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**env, **secret},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that an interrupt of the notebook doesn't reach it
        )
    except OSError as error:
        log.close()
        reason = error.strerror or type(error).__name__
        raise ServerStartError(f"{program} could not be run: {reason}.", INSTALL) from None
    url = f"http://127.0.0.1:{port}"
    return ServerProcess(url, password, keep=keep, _process=process, _log=log)


def free_port() -> int:
    """Return a port of this machine that nothing else is given for a minute.

    A connection that this side closed first leaves the port in TIME_WAIT. The system then passes it
    over when it chooses a port for somebody else, but a server that asks for it can have it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)) as caller:
            accepted, _ = server.accept()
            accepted.close()
            caller.recv(1)  # returns when the other side is closed
    return port


def _wait_until_healthy(
    server: ServerProcess, timeout: float, progress: Callable[[float], None]
) -> str:
    """Wait for the server to report its version, and return it."""
    began = time.monotonic()
    with httpx.Client(auth=(DEFAULT_USER, server.password), trust_env=False, timeout=2.0) as client:
        while (elapsed := time.monotonic() - began) < timeout:
            if not server.running:
                code = server._process.returncode
                raise ServerStartError(
                    f"`opencode serve` exited immediately with code {code}.{_output(server)}",
                    "Run `opencode serve` in a terminal to see why.",
                )
            if version := _health(client, server.url):
                return version
            progress(elapsed)
            time.sleep(0.1)
    raise ServerStartError(
        f"`opencode serve` did not answer within {timeout:g} s.{_output(server)}",
        "Try again with a longer timeout, or run `opencode serve` in a terminal.",
    )


def _health(client: httpx.Client, url: str) -> str:
    """Return the version of a healthy server; "" if it isn't ready. 1.x and 2.x differ in path."""
    for path in ("/global/health", "/api/info"):
        try:
            reply = client.get(f"{url}{path}")
            health = reply.json() if reply.is_success else None
        except (httpx.TransportError, ValueError):
            continue
        except KeyboardInterrupt:  # see HTTPTransport.send: httpcore's frames contain the password
            raise KeyboardInterrupt from None
        if isinstance(health, dict) and health.get("version"):
            return str(health["version"])
    return ""


def _output(server: ServerProcess) -> str:
    lines = server._last_lines()
    return f" Its output:\n{lines}" if lines else ""


def _silent(seconds: float) -> None:
    """Ignore progress."""
