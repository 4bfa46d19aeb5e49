"""Transports: send a request to a server, and receive a reply or a stream of frames.

A `Client` only needs a `Transport`, so a recording or a test can replace the server.
`HTTPTransport` does the real network I/O, and all of it (except in `server`, which waits for a
server to start). It retries failed GET requests; any other request is sent once.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import httpx
import httpx_sse

from ..core import retry_safety
from ..dialects.base import Reply, Request
from ..dialects.jsonwire import dumps
from ..dialects.replies import error_from_reply
from ..errors import ServerConnectionError, StreamError, TurnInterrupted
from .password import DEFAULT_USER, PasswordMask, Secret

DEFAULT_PORT = 4096

_RETRY_WAITS = (0.2, 0.6)  # seconds before the retries of a GET
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_CONNECT = 10.0  # seconds in which a connection must be established


class FrameStream(Protocol):
    """The frames of an open event stream."""

    def __iter__(self) -> Iterator[str]:
        """Yield the text of each frame until the stream ends or is closed.

        Raises:
            StreamLost: The connection broke.
        """

    def close(self) -> None:
        """End the iteration immediately. Safe to call repeatedly, from any thread."""


class Transport(Protocol):
    """Carries requests to one server. Safe to use from several threads."""

    url: str

    def send(self, request: Request) -> Reply:
        """Return the reply to a request, whatever its HTTP status.

        Raises:
            ServerConnectionError: There was no reply.
        """

    def stream(self, request: Request, silence: float) -> FrameStream:
        """Open an event stream, within the request's timeout.

        Args:
            request: The request that opens it.
            silence: Seconds without a frame after which the stream counts as dead.

        Raises:
            StatusError: The server replied with an error.
            StreamError: The reply is not an event stream.
            StreamLost: There was no reply.
        """

    def close(self) -> None:
        """Release the connections; nothing can be sent afterwards."""


class StreamLost(ServerConnectionError):  # noqa: N818 - a state of the stream
    """An event stream broke, or could not be opened.

    Attributes:
        reason: The cause in a few words.
        refused: Whether no server listens at the address any more.
        closed: Whether the transport was closed.
    """

    def __init__(
        self,
        url: str,
        request: Request,
        reason: str,
        *,
        refused: bool = False,
        closed: bool = False,
    ) -> None:
        what = f"The connection to {url} broke during {request} ({reason})."
        super().__init__(what, "Is the server still running?")
        self.reason = reason
        self.refused = refused
        self.closed = closed


class HTTPTransport:
    """A transport over HTTP.

    Attributes:
        max_body: Bytes of a decoded reply above which it is refused.
        max_event: Characters of a line of an event stream above which it is refused.

    Args:
        url: The server's address, as a user types it.
        password: The password for HTTP basic authentication, unless the address contains one.
        user: The user name for it, unless the address contains one.

    Raises:
        ServerConnectionError: The address or a proxy setting is invalid.
    """

    max_body = 200_000_000  # the largest page of messages that was seen has 61 MB
    max_event = 50_000_000

    def __init__(self, url: str, *, password: str | None = None, user: str = DEFAULT_USER) -> None:
        parsed = parse_url(url)
        user = parsed.username or user
        if parsed.password and not password:
            password = Secret(parsed.password)
        parsed = parsed.copy_with(username=None, password=None)
        self.url = str(parsed).rstrip("/")
        self._mask = PasswordMask(user, password)
        auth = httpx.BasicAuth(user, password) if password else None
        self._http = _http(parsed, auth, local=is_loopback(parsed.host))

    def close(self) -> None:
        """Release the connections; nothing can be sent afterwards."""
        self._http.close()

    def send(self, request: Request) -> Reply:
        """Send a request once; a GET up to three times, since reading twice changes nothing."""
        waits = _RETRY_WAITS if request.method == "GET" else ()
        for wait in (*waits, None):
            try:
                response = self._http.send(self._build(request, request.timeout), stream=True)
                body = self._read(request, response)
            except httpx.RequestError as error:
                # After a timeout, a retry would probably time out as well.
                if wait is None or isinstance(error, httpx.TimeoutException):
                    raise self._unreachable(request, error) from error
            except RuntimeError as error:
                if not self._http.is_closed:
                    raise
                raise ServerConnectionError(  # by %oc_connect or %unload_ext elsewhere
                    f"The connection to {self.url} was closed here, so {request} was not sent.",
                    "What runs on the server continues. Connect again: %oc_connect",
                    sent=False,
                ) from error
            except KeyboardInterrupt:
                # httpcore's frames have the password in their variables (%xmode Verbose).
                raise _interrupted(request) from None
            else:
                if wait is None or response.status_code not in (429, 502, 503, 504):
                    return self._reply(request, response, body)
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def stream(self, request: Request, silence: float) -> FrameStream:
        """Open an event stream.

        The response headers arrive soon or never: 1.18.33 never replies to a request that arrives
        just as it begins to listen. Between frames there may be long pauses.
        """
        built = self._build(request, request.timeout)
        built.headers["accept"] = "text/event-stream"
        try:
            response = self._http.send(built, stream=True)
            try:
                self._check_stream(request, response)
            except BaseException:
                response.close()
                raise
        except (httpx.HTTPError, RuntimeError) as error:
            raise self._lost(request, error) from error
        except KeyboardInterrupt:
            raise _interrupted(request) from None  # as in `send`
        built.extensions["timeout"]["read"] = silence
        return _HTTPFrames(self, request, response)

    def _check_stream(self, request: Request, response: httpx.Response) -> None:
        if response.status_code != 200:
            raise error_from_reply(self._reply(request, response, self._read(request, response)))
        kind = response.headers.get("content-type", "no content type")
        if "text/event-stream" not in kind:
            raise StreamError(
                f"{request} returned {kind} instead of an event stream.",
                "A proxy in between must pass event streams through.",
            )

    def _build(self, request: Request, timeout: float) -> httpx.Request:
        return self._http.build_request(
            request.method,
            request.path,
            params={k: v for k, v in request.query.items() if v is not None},
            content=None if request.body is None else dumps(request.body),
            headers={} if request.body is None else {"content-type": "application/json"},
            timeout=httpx.Timeout(timeout, connect=_CONNECT),
        )

    def _read(self, request: Request, response: httpx.Response) -> bytes:
        """Read and decompress a body, up to the limit."""
        chunks, size = [], 0
        try:
            for chunk in response.iter_bytes():
                size += len(chunk)
                if size > self.max_body:
                    raise _too_large(f"The reply to {request}", self.max_body, "max_response_mb")
                chunks.append(chunk)
        finally:
            response.close()
        return b"".join(chunks)

    def _reply(self, request: Request, response: httpx.Response, body: bytes) -> Reply:
        headers = {k.lower(): v for k, v in response.headers.items()}
        return Reply(request, response.status_code, headers, self._mask(body))

    def _lost(self, request: Request, error: Exception) -> Exception:
        """Return the error to raise for a broken stream; an error of our own is unchanged."""
        if isinstance(error, httpx.HTTPError):
            refused = "refused" in str(error).lower()
            return StreamLost(self.url, request, _reason(error), refused=refused)
        if self._http.is_closed:
            return StreamLost(self.url, request, "the client was closed", closed=True)
        return error

    def _unreachable(self, request: Request, error: httpx.RequestError) -> ServerConnectionError:
        sent = not isinstance(error, _NOT_SENT)
        if sent:
            what = f"The connection to {self.url} broke during {request} ({_reason(error)})."
            todo = "Is the server still running?"
        else:
            what = f"No server answers at {self.url} ({_reason(error)})."
            todo = (
                "Start one with %oc_start, or `opencode serve` in a terminal, "
                "or connect to another address: %oc_connect URL"
            )
        unreachable = ServerConnectionError(what, todo, sent=sent)
        if request.method != "GET":
            unreachable.resend = retry_safety.assess_unanswered_request(str(request), sent=sent)
        return unreachable


def _too_large(what: str, limit: int, option: str) -> StreamError:
    megabytes = limit / 1e6
    return StreamError(
        f"{what} has more than {megabytes:g} MB.",
        f"If that can be right, raise the limit: %config OpenCodeMagics.{option} = "
        f"{2 * megabytes:g}",
    )


class _LimitedLines:
    """A response whose text is refused once a line is too long."""

    def __init__(self, response: httpx.Response, request: Request, limit: int) -> None:
        self.headers = response.headers
        self._response = response
        self._request = request
        self._limit = limit

    def iter_text(self) -> Iterator[str]:
        length = 0
        for text in self._response.iter_text():
            _, newline, rest = text.rpartition("\n")
            length = len(rest) if newline else length + len(rest)
            if length > self._limit:
                raise _too_large(f"A line of {self._request}", self._limit, "max_event_mb")
            yield text


class _HTTPFrames:
    """The frames of an open HTTP response."""

    def __init__(
        self, transport: HTTPTransport, request: Request, response: httpx.Response
    ) -> None:
        self._transport = transport
        self._request = request
        self._response = response
        self._socket = response.extensions["network_stream"].get_extra_info("socket")
        self._closed = threading.Event()
        self._begun = False

    def __iter__(self) -> Iterator[str]:
        self._begun = True
        try:
            # An event stream is UTF-8, whatever its headers say.
            self._response.encoding = "utf-8"
            limited: Any = _LimitedLines(self._response, self._request, self._transport.max_event)
            for sse in httpx_sse.EventSource(limited).iter_sse():
                if self._closed.is_set():
                    return
                yield self._transport._mask.text(sse.data)
        except (httpx.HTTPError, RuntimeError) as error:
            if not self._closed.is_set():
                raise self._transport._lost(self._request, error) from error
        finally:
            self._socket = None
            self._response.close()

    def close(self) -> None:
        """Shut the socket down.

        Closing the HTTP client instead took 9 s to end a pending read (httpx 0.28.1).
        """
        self._closed.set()
        sock = self._socket  # copied: the reader may set it to None at any time
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if not self._begun:
            self._response.close()


class RecordingTransport:
    """A transport that wraps another one and records each reply to a GET.

    Args:
        transport: The wrapped transport.
        record: Called with a request's address, and the HTTP status and body of its reply.
    """

    def __init__(self, transport: Transport, record: Callable[[str, int, bytes], None]) -> None:
        self.url = transport.url
        self._transport = transport
        self._record = record

    def send(self, request: Request) -> Reply:
        """Send a request, and record the reply to a GET."""
        reply = self._transport.send(request)
        if request.method == "GET":
            self._record(request.address, reply.status, reply.body)
        return reply

    def stream(self, request: Request, silence: float) -> FrameStream:
        """Open an event stream; its frames are recorded by the tap of `Stream`."""
        return self._transport.stream(request, silence)

    def close(self) -> None:
        """Close the wrapped transport."""
        self._transport.close()


def _interrupted(request: Request) -> KeyboardInterrupt:
    """Return the interrupt to raise when a user stops a request; says if it was sent."""
    if request.method == "GET":
        return KeyboardInterrupt()
    resend = retry_safety.assess_unanswered_request(str(request), sent=True)
    stopped = TurnInterrupted(f"Stopped before the server confirmed the request. {resend}")
    stopped.resend = resend
    return stopped


def _http(url: httpx.URL, auth: httpx.Auth | None, *, local: bool) -> httpx.Client:
    """Return an HTTP client; for this machine, without proxies and compression."""
    headers = {"accept-encoding": "identity"} if local else {}
    try:
        return httpx.Client(
            base_url=url,
            auth=auth,
            headers=headers,
            trust_env=not local,
            verify=url.scheme == "https",  # loading certificates takes 25 ms
        )
    except (httpx.InvalidURL, ValueError) as error:
        # httpx 0.28.1 can't read "[::1]" or "fd12::/64" in NO_PROXY.
        raise ServerConnectionError(
            f"The proxy settings of this environment can't be read: {error}.",
            "Check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.",
            sent=False,
        ) from error


def _reason(error: Exception) -> str:
    """Return the message of a transport error, or its class if it has none."""
    text: Any = str(error)
    return text or type(error).__name__


# -- addresses -------------------------------------------------------------------------------------


def parse_url(text: str) -> httpx.URL:
    """Parse the address of a server; a bare host gets http and port 4096.

    Raises:
        ServerConnectionError: The address is invalid.
    """
    text = text.strip()
    if "://" not in text:
        text = _with_scheme(text)
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        # The invalid part may be a password: one with a slash is parsed as a port.
        why = "it can't be read" if "@" in text else str(error)
        raise _bad_url(text, why) from (None if "@" in text else error)
    if url.port is not None and not 0 < url.port < 65536:
        raise _bad_url(text, "its port is out of range")
    if url.scheme not in ("http", "https") or not url.host:
        raise _bad_url(text, "it needs http:// or https:// and a host")
    if url.query or url.fragment:
        raise _bad_url(text, "remove everything after ? or #")
    return url.copy_with(path=url.path.rstrip("/") + "/")


def _with_scheme(host: str) -> str:
    """Turn a bare host, host:port or IPv6 address into a URL."""
    bare, slash, path = host.partition("/")
    with suppress(ValueError):
        if ipaddress.ip_address(bare.strip("[]")).version == 6:
            bare = f"[{bare.strip('[]')}]"
    has_port = bare.rpartition(":")[2].isdigit() and not bare.endswith("]")
    return f"http://{bare}{'' if has_port else f':{DEFAULT_PORT}'}{slash}{path}"


def _bad_url(text: str, why: str) -> ServerConnectionError:
    # A password may come before an @, so only the rest is shown.
    shown = text.rpartition("@")[2]
    return ServerConnectionError(
        f"{shown!r} is not a server address: {why}.",
        "Write it like http://127.0.0.1:4096",
        sent=False,
    )


def is_loopback(host: str) -> bool:
    """Return whether a host name refers to this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        return address.is_loopback or address.is_unspecified
    return False
