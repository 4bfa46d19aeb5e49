"""What this package leaves with a session: in its metadata on the server, under one key.

So another kernel finds it again, and another notebook. A server replaces a session's metadata as a
whole: what others keep there is read before and written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..client.client import Client
from ..core.model import Session

KEY = "opencode_magics"


def load_records(metadata: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What is kept of one kind, by name, as far as it can be read."""
    kept = metadata.get(KEY)
    named = kept.get(kind) if isinstance(kept, dict) else None
    return {k: v for k, v in named.items() if isinstance(k, str)} if isinstance(named, dict) else {}


def save_record(
    client: Client, session: Session, kind: str, name: str, value: Any, most: int
) -> None:
    """Leave something with a session; of its kind the latest stay, at most so many."""
    now = client.session(session.id)
    known = load_records(now.metadata, kind)
    known.pop(name, None)
    latest = dict([*known.items(), (name, value)][-most:])
    client.run(
        client.dialect.set_metadata(
            session, {**now.metadata, **with_records(now.metadata, kind, latest)}
        )
    )


def with_records(
    metadata: Mapping[str, Any], kind: str, named: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of a session's metadata that is ours, with this of one kind."""
    kept = metadata.get(KEY)
    return {KEY: {**(kept if isinstance(kept, dict) else {}), kind: dict(named)}}
