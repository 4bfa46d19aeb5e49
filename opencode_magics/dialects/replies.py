"""Reading replies: the JSON object in a body, the error that a refusal means."""

from __future__ import annotations

from typing import Any

from ..errors import AuthenticationError, NotFoundError, SessionBusyError, StatusError
from .base import Reply

_TODO = {
    400: "The server did not understand the request; is it of a tested version?",
    403: "This password may not do that.",
    500: "The server's log has the reason.",
    503: "The server is starting; try again in a moment.",
}


def error_from_reply(reply: Reply) -> StatusError:
    """Return the error that a refusing reply means, with the server's own reason."""
    name, reason, ref = _reason(json_object(reply) or {})
    kind, what, todo = _meaning(reply, reason)
    if ref:
        todo = f"{todo} Its reference is {ref}."
    return kind(what, todo, status=reply.status, name=name, reason=reason)


def _meaning(reply: Reply, reason: str) -> tuple[type[StatusError], str, str]:
    what = f"{reply.request} failed with HTTP {reply.status}" + (f": {reason}" if reason else ".")
    match reply.status:
        case 401:
            return (
                AuthenticationError,
                "The server wants a password, or another one than it got.",
                "Set OPENCODE_SERVER_PASSWORD to the password that the server was started with.",
            )
        case 404:
            return (
                NotFoundError,
                reason or what,
                "Was it deleted? %oc_sessions lists what is there.",
            )
        case 409:
            return SessionBusyError, reason or what, "Wait until it is idle, or stop its turn."
        case status if 300 <= status < 400:
            target = reply.headers.get("location", "elsewhere")
            what = f"{reply.request} was redirected to {target}."
            return StatusError, what, "Give the final address of the server."
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
    """Return the body if it is a JSON object, else None."""
    try:
        body = reply.json()
    except StatusError:
        return None
    return body if isinstance(body, dict) else None
