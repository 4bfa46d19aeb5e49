"""A client for one OpenCode server of any generation.

`Client.run` runs the operations of the server's dialect over a transport:
`client.run(client.dialect.rename(session, "title"))`. The most common operations are also methods.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from ..core import retry_safety
from ..core.model import (
    Agent,
    Command,
    Message,
    Model,
    Permission,
    Question,
    Server,
    Session,
    Status,
)
from ..dialects import detect
from ..dialects.base import Dialect, Flow, Prompt, Reply, Request, SessionOptions, logger
from ..dialects.replies import error_from_reply
from ..errors import AuthenticationError, OpenCodeError, StatusError, StreamError
from .password import DEFAULT_USER
from .stream import Stream
from .transport import HTTPTransport, Transport, is_loopback, parse_url

T = TypeVar("T")
U = TypeVar("U")


class Client:
    """A synchronous client for one server.

    Args:
        url: The server's address, with its path if any (`http://hub/user/ana/proxy/4096`); a bare
            host or `host:port` is enough.
        directory: The working directory; None uses the server's own.
        password: The password for HTTP basic authentication, if the server has one.
        user: The user name for it, unless the address contains one.
        transport: A transport to use instead of HTTP.
        server: The server's generation and version, if known; otherwise they are detected.

    Raises:
        ServerConnectionError: The address is invalid.

    Any method that sends a request raises ServerConnectionError if there is no reply, StatusError
    if the server replies with an error (NotFoundError for 404), StreamError if the reply can't be
    decoded, and UnsupportedOperation if the server's generation doesn't support the operation. The
    first one also raises UnsupportedServerError if the server is not an OpenCode server.

    Making a client sends nothing. A client is safe to use from several threads; close it when done,
    or use it in a `with` statement.
    """

    max_pages = 5_000  # of an operation; a list whose cursors never end is refused

    def __init__(
        self,
        url: str,
        *,
        directory: str | None = None,
        password: str | None = None,
        user: str = DEFAULT_USER,
        transport: Transport | None = None,
        server: Server | None = None,
    ) -> None:
        self.transport = transport or HTTPTransport(url, password=password, user=user)
        self.url = self.transport.url
        self.local = is_loopback(parse_url(self.url).host)
        self._directory = self.real(directory)
        self._identify = self._detect
        if server is not None:
            known = server, detect.for_generation(server.generation)
            self._identify = lambda: known

    def __repr__(self) -> str:
        return f"<Client {self}>"

    def __str__(self) -> str:
        known = self.__dict__.get("_detected")
        version = f"OpenCode {known[0].version} at " if known else ""
        warning = detect.version_warning(*known) if known else ""
        tested = (
            f" ({f'{warning}: ' if warning else ''}tested with {known[1].tested})" if known else ""
        )
        where = f", directory {self._directory}" if self._directory else ""
        return f"{version}{self.url}{where}{tested}"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def real(self, directory: str | None) -> str | None:
        """Return a directory as its real path, if the server is on this machine.

        1.18.33 makes a session in the real path if it is given a symbolic link.
        """
        if not directory or not self.local or not os.path.isabs(directory):
            return directory
        return os.path.realpath(directory)

    def close(self) -> None:
        """Release the connections. Close streams separately."""
        self.transport.close()

    def limit(self, response_mb: float, event_mb: float, pages: int) -> None:
        """Set the limits above which replies of the server are refused."""
        self.max_pages = pages
        if isinstance(self.transport, HTTPTransport):
            self.transport.max_body = int(response_mb * 1e6)
            self.transport.max_event = int(event_mb * 1e6)

    def with_transport(self, transport: Transport) -> Client:
        """Return a client of the same server that uses another transport."""
        twin = copy.copy(self)
        twin.transport = transport
        twin._identify = lambda: self._detected
        return twin

    # -- the server ------------------------------------------------------------------------------

    @property
    def server(self) -> Server:
        """The server at the address; detected once.

        Raises:
            ServerConnectionError: No server answers.
            AuthenticationError: The password is missing or wrong.
            UnsupportedServerError: The address is not a supported OpenCode server.
        """
        return self._detected[0]

    def check(self) -> None:
        """Check that the server answers, and read its directory; raises like `server`.

        Logs a warning if its version is untested.
        """
        _ = self.server, self.directory
        if warning := detect.version_warning(*self._detected):
            logger.warning(
                "OpenCode %s is %s: its data may be misread. This package was tested with %s.",
                self.server.version, warning, self.dialect.tested,
            )  # fmt: skip

    @property
    def dialect(self) -> Dialect:
        """The operations of the server's generation, for `run`."""
        return self._detected[1]

    @cached_property
    def _detected(self) -> tuple[Server, Dialect]:
        return self._identify()

    def _detect(self) -> tuple[Server, Dialect]:
        return self.run(detect.detect())

    @property
    def directory(self) -> str:
        """The working directory, as the server spells it."""
        if self._directory is None:
            self._directory = self.run(self.dialect.server_directory())
        return self._directory

    # -- running operations ----------------------------------------------------------------------

    def run(self, flow: Flow[T]) -> T:
        """Run an operation: send the requests that it yields, and pass the replies to it."""
        written: Request | None = None
        pages = 0
        try:
            request = next(flow)
            while True:
                pages += 1
                if pages > self.max_pages:
                    raise StreamError(
                        f"{request} has more than {self.max_pages:,} pages.",
                        "If that can be right, raise the limit: %config "
                        f"OpenCodeMagics.max_pages = {2 * self.max_pages}",
                    )
                try:
                    reply = self._send(request)
                except OpenCodeError as error:
                    request = flow.throw(error)
                else:
                    written = request if request.method != "GET" else written
                    request = flow.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except OpenCodeError as error:
            if written is not None and error.resend is None:
                error.resend = retry_safety.assess_unreadable_reply(str(written))
            raise

    def _send(self, request: Request) -> Reply:
        reply = self.transport.send(request)
        if reply.status >= 300:
            error = error_from_reply(reply)
            if request.method != "GET":
                error.resend = retry_safety.assess_refusal(str(request), reply.status)
            raise error
        return reply

    # -- sessions and messages -------------------------------------------------------------------

    def sessions(
        self, directory: str | None = None, *, project: bool = True, everywhere: bool = False
    ) -> tuple[Session, ...]:
        """List sessions, latest first, including archived ones and those of subagents.

        Args:
            directory: The directory; None uses the client's.
            project: Include the whole project that the directory belongs to.
            everywhere: Include all directories that the server knows.
        """
        where = None if everywhere else (directory or self.directory)
        return self.run(self.dialect.sessions(where, project=project))

    def session(self, session: str) -> Session:
        """Return one session by its id, whatever its directory."""
        return self.run(self.dialect.session(session))

    def create(
        self,
        title: str | None = None,
        directory: str | None = None,
        options: SessionOptions | None = None,
    ) -> Session:
        """Create a session in a directory; None uses the client's.

        Raises:
            UnsupportedOperation: `options` are given, and the server is 1.x.
        """
        where = directory or self.directory
        if options is None:
            return self.run(self.dialect.create(where, title))
        return self.run(self.dialect.create_with_options(where, title, options))

    def messages(self, session: Session) -> tuple[Message, ...]:
        """List every message of a session, oldest first."""
        return self.run(self.dialect.messages(session))

    def readable_messages(
        self, session: Session, pages: Sequence[Reply] | None = None
    ) -> tuple[Message, ...]:
        """List every message of a session, oldest first, decoded as far as possible.

        Args:
            session: The session.
            pages: The result of `dialect.message_pages`, if it was already read.
        """
        if pages is None:
            pages = self.run(self.dialect.message_pages(session))
        return self.dialect.readable_messages(session, pages)

    def prompt(self, session: Session, prompt: Prompt) -> None:
        """Send a prompt, once. The answer comes on the stream; open that first."""
        self.run(self.dialect.prompt(session, prompt))

    def abort(self, session: Session) -> None:
        """Ask a session to stop. Check `statuses` to confirm that it did."""
        self.run(self.dialect.abort(session))

    # -- a directory: statuses, pending requests, catalog ----------------------------------------

    def statuses(self, directory: str | None = None) -> dict[str, Status]:
        """Return the statuses of the sessions of a directory that are not idle, by id."""
        return self.run(self.dialect.statuses(directory or self.directory))

    def permissions(self, directory: str | None = None) -> tuple[Permission, ...]:
        """List the pending permissions of a directory."""
        return self.run(self.dialect.permissions(directory or self.directory))

    def questions(self, directory: str | None = None) -> tuple[Question, ...]:
        """List the pending questions of a directory."""
        return self.run(self.dialect.questions(directory or self.directory))

    def models(self, directory: str | None = None) -> tuple[Model, ...]:
        """List the models of a directory."""
        return self.run(self.dialect.models(directory or self.directory))

    def agents(self, directory: str | None = None) -> tuple[Agent, ...]:
        """List the agents of a directory, without hidden ones."""
        return self.run(self.dialect.agents(directory or self.directory))

    def commands(self, directory: str | None = None) -> tuple[Command, ...]:
        """List the commands of a directory."""
        return self.run(self.dialect.commands(directory or self.directory))

    # -- streams ---------------------------------------------------------------------------------

    def stream(
        self, directory: str | None = None, tap: Callable[[str], None] | None = None
    ) -> Stream:
        """Start reading the events of a directory; `tap` is called with the text of each frame."""
        return Stream(self.transport, self.dialect, directory or self.directory, tap)


# -- best effort -----------------------------------------------------------------------------------


def log_warning(message: str) -> None:
    """Log a warning."""
    logger.warning("%s", message)


def optional(
    ask: Callable[[], T], default: U, report: Callable[[str], object] = log_warning
) -> T | U:
    """Run a best-effort request; return `default` if the server fails it.

    Args:
        ask: The request.
        default: The value if it fails.
        report: Called with the reason if it fails; logs it by default.

    Raises:
        AuthenticationError, ServerConnectionError: Every other request would fail as well.
    """
    try:
        return ask()
    except AuthenticationError:
        raise
    except (StatusError, StreamError) as error:
        report(error.what)
        return default
