"""Read replies: the JSON object in a body, or the error of a failed request."""

from __future__ import annotations

from typing import Any

from ..errors import AuthenticationError, NotFoundError, SessionBusyError, StatusError
from .base import Reply

_TODO = {
    400: "The server rejected the request as invalid; its version may be untested.",
    403: "This password doesn't allow the operation.",
    500: "See the server's log for the reason.",
    503: "The server is starting; try again in a moment.",
}


def error_from_reply(reply: Reply) -> StatusError:
    """Return the error for a reply with an error status, with the server's own reason."""
    name, reason, ref = _reason(json_object(reply) or {})
    kind, what, todo = _meaning(reply, reason)
    if ref:
        todo = f"{todo} Reference in the log: {ref}."
    return kind(what, todo, status=reply.status, name=name, reason=reason)


def _meaning(reply: Reply, reason: str) -> tuple[type[StatusError], str, str]:
    what = f"{reply.request} failed with HTTP {reply.status}" + (f": {reason}" if reason else ".")
    match reply.status:
        case 401:
            return (
                AuthenticationError,
                "The server's password is missing or wrong.",
                "Set OPENCODE_SERVER_PASSWORD to the password that the server was started with, "
                "and OPENCODE_SERVER_USERNAME if it has another user.",
            )
        case 404:
            return (
                NotFoundError,
                reason or what,
                "It may have been deleted; %oc_sessions lists the sessions.",
            )
        case 409:
            return SessionBusyError, reason or what, "Wait until it is idle, or stop its turn."
        case status if 300 <= status < 400:
            target = reply.headers.get("location", "elsewhere")
            what = f"{reply.request} was redirected to {target}."
            return StatusError, what, "Use the server's final address."
        case status:
            return StatusError, what, _TODO.get(status, "")


def _reason(body: dict[str, Any]) -> tuple[str, str, str]:
    """Return the name, the message and the log reference of an error body.

    1.18.33 has three shapes: `{name, data: {message}}`, `{_tag, message}` and a bare `{_tag}`.
    """
    data = body.get("data")
    inner = data if isinstance(data, dict) else body
    name = body.get("name") or body.get("_tag") or body.get("code") or ""
    reason = inner.get("message") or ""
    return str(name), str(reason), str(inner.get("ref") or "")


def json_object(reply: Reply) -> dict[str, Any] | None:
    """Return the body if it is a JSON object; otherwise None."""
    try:
        body = reply.json()
    except StatusError:
        return None
    return body if isinstance(body, dict) else None
