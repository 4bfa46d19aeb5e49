"""Find out which dialect a server speaks, and whether its version is a tested one."""

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
    """Identify the server by what its replies say, never by a status code alone.

    Raises:
        StatusError: The server is starting (503).
        AuthenticationError: It wants a password, or another one.
        UnsupportedServerError: It is not an OpenCode server; the error lists what was tried.
    """
    tried: list[str] = []
    for probe, dialect in _DIALECTS:
        found = yield from _tried(probe(), tried)
        if found is not None:
            return found, dialect()
    raise UnsupportedServerError(
        f"No OpenCode server answers there. Tried: {'; '.join(tried)}.",
        "Check the address, path included; start a server with: opencode serve",
    )


def for_generation(generation: str) -> Dialect:
    """Return the dialect of a generation, as `Server.generation` names it.

    Raises:
        UnsupportedServerError: There is none.
    """
    known = {dialect.generation: dialect for _, dialect in _DIALECTS}
    if generation not in known:
        raise UnsupportedServerError(
            f"OpenCode {generation} is not supported; supported are {' and '.join(sorted(known))}."
        )
    return known[generation]()


def _tried(probe: Flow[Server | None], tried: list[str]) -> Flow[Server | None]:
    """Run a probe and note the result of each of its requests in `tried`."""
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
        found: Server | None = stop.value
        return found


def version_warning(server: Server, dialect: Dialect) -> str:
    """Return a warning if a server's version is outside the tested ones, else "".

    A version that doesn't begin with two numbers ("local") can't be compared.
    """
    first, last = (_release(text) for text in dialect.tested_releases)
    release = _release(server.version)
    if first and last and release and first <= release <= last:
        return ""
    return f"outside the tested {_span(*dialect.tested_releases)}"


def _release(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", version.strip())
    return (int(found[1]), int(found[2])) if found else None


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"
