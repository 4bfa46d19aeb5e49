"""Detect a server's dialect, and check whether its version was tested."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..core.model import Server
from ..errors import AuthenticationError, OpenCodeError, StatusError, UnsupportedServerError
from . import v1, v2
from .base import Dialect, Flow, Reply

_Probe = Callable[[], Flow[Server | None]]
# In the order in which they are tried.
_DIALECTS: tuple[tuple[_Probe, type[Dialect]], ...] = ((v2.probe, v2.V2), (v1.probe, v1.V1))


def detect() -> Flow[tuple[Server, Dialect]]:
    """Identify the server by the content of its replies, never by a status code alone.

    Raises:
        StatusError: The server is starting (503).
        AuthenticationError: The password is missing or wrong.
        UnsupportedServerError: It is not an OpenCode server; the error lists the requests tried.
    """
    tried: list[str] = []
    for probe, dialect in _DIALECTS:
        server = yield from _tried(probe(), tried)
        if server is not None:
            return server, dialect()
    raise UnsupportedServerError(
        f"No OpenCode server at this address. Tried: {'; '.join(tried)}.",
        "Check the address and its path, or start a server: opencode serve",
    )


def for_generation(generation: str) -> Dialect:
    """Return the dialect for a `Server.generation`.

    Raises:
        UnsupportedServerError: There is no such generation.
    """
    known = {dialect.generation: dialect for _, dialect in _DIALECTS}
    if generation not in known:
        raise UnsupportedServerError(
            f"OpenCode {generation} is not supported, only {' and '.join(sorted(known))}."
        )
    return known[generation]()


def _tried(probe: Flow[Server | None], tried: list[str]) -> Flow[Server | None]:
    """Run a probe, and append the result of each request to `tried`."""
    reply: Reply | OpenCodeError | None = None
    try:
        request = next(probe)
        while True:
            try:
                reply = yield request
            except AuthenticationError:
                raise
            except StatusError as error:
                tried.append(f"{request} -> HTTP {error.status}")
                request = probe.throw(error)
            else:
                kind = reply.headers.get("content-type", "no content type").partition(";")[0]
                tried.append(f"{request} -> {reply.status} {kind}")
                request = probe.send(reply)
    except StopIteration as stop:
        server: Server | None = stop.value
        return server


def version_warning(server: Server, dialect: Dialect) -> str:
    """Return a warning if a server's version is outside the tested range; otherwise "".

    A version that doesn't begin with two numbers ("local") can't be compared.
    """
    first, last = (_release(text) for text in dialect.tested_releases)
    release = _release(server.version)
    if first and last and release and first <= release <= last:
        return ""
    return f"outside the tested {_span(*dialect.tested_releases)}"


def _release(version: str) -> tuple[int, int] | None:
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", version.strip())
    return (int(match[1]), int(match[2])) if match else None


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"
