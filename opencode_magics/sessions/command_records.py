"""Records of sent commands, in the metadata of their sessions (2.x), so that they can be recovered.

A record is saved before the command is sent: what the session had then, and later what the command
was turned into.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..client.client import Client
from ..core.model import Session
from ..errors import UnsupportedOperation
from .correlate import Invocation
from .metadata import load_records, save_record, with_records

Record = dict[str, Any]

_KIND = "commands"  # the key in a session's metadata
_MAX_RECORDS = 20  # per session
_MAX_TEXT = 2_000  # characters of the arguments


def make_record(session: Session, invocation: Invocation) -> Record:
    """Make a command's record, as JSON. It names its session, since forks copy metadata."""
    return {
        "session": session.id,
        "name": invocation.name,
        "text": invocation.text[:_MAX_TEXT],
        "marked": invocation.marked,
        "isolated": invocation.isolated,
        "at": invocation.at,
    }


def save(client: Client, session: Session, invocation: str, record: Record) -> None:
    """Save a command's record with its session, by the invocation's id."""
    save_record(client, session, _KIND, invocation, record, _MAX_RECORDS)


def metadata_with(invocation: str, record: Record) -> dict[str, Any]:
    """The metadata of a new session that has one record."""
    return with_records({}, _KIND, {invocation: record})


def records_in(session: str, metadata: Mapping[str, Any]) -> dict[str, Record]:
    """Records of a session's own commands, by id; those copied into a fork don't count."""
    records = load_records(metadata, _KIND).items()
    return {k: r for k, r in records if isinstance(r, dict) and r.get("session") == session}


def invocation_of(key: str, record: Record) -> Invocation:
    """Read an invocation from its record."""

    def text(name: str) -> str:
        return str(record.get(name) or "")

    at = record.get("at")
    return Invocation(
        key,
        text("name"),
        text("text"),
        marked=record.get("marked") is True,
        isolated=record.get("isolated") is True,
        at=at if isinstance(at, int) else None,
    )


def list_sent_commands(client: Client) -> tuple[tuple[Invocation, Session, bool], ...]:
    """List the commands recorded in the sessions of the project.

    Returns:
        For each command, the latest first: its invocation, its session, and whether it is matched.

    Raises:
        UnsupportedOperation: On 1.x, where a command is stored as a prompt.
        ServerConnectionError: The server doesn't answer.
        StatusError: The server refused a read.
    """
    if client.dialect.command_keeps_prompt_id:
        raise UnsupportedOperation(
            "OpenCode 1.x doesn't list commands: each is stored as a prompt. For OpenCode 2.x this "
            "package records them.",
            "%oc_history lists prompts; %oc_command --recover takes their ids.",
        )
    sent = [
        (invocation_of(key, record), session, bool(record.get("inputs") or record.get("children")))
        for session in client.sessions()
        for key, record in records_in(session.id, session.metadata).items()
    ]
    return tuple(sorted(sent, key=lambda s: s[0].at or 0, reverse=True))
