"""Store this package's records in a session's metadata on the server, under one key.

Other kernels and notebooks can read them there. The server replaces a session's metadata as a
whole, so entries of other programs are read first and written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..client.client import Client
from ..core.model import Session

KEY = "opencode_magics"


def load_records(metadata: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Load the records of one kind, by name; unreadable ones are left out."""
    ours = metadata.get(KEY)
    records = ours.get(kind) if isinstance(ours, dict) else None
    if not isinstance(records, dict):
        return {}
    return {k: v for k, v in records.items() if isinstance(k, str)}


def save_record(
    client: Client, session: Session, kind: str, name: str, value: Any, limit: int
) -> None:
    """Save a record with a session, and keep only the latest `limit` records of its kind."""
    now = client.session(session.id)
    records = load_records(now.metadata, kind)
    records.pop(name, None)
    latest = dict([*records.items(), (name, value)][-limit:])
    client.run(
        client.dialect.set_metadata(
            session, {**now.metadata, **with_records(now.metadata, kind, latest)}
        )
    )


def with_records(
    metadata: Mapping[str, Any], kind: str, records: Mapping[str, Any]
) -> dict[str, Any]:
    """Our part of a session's metadata, with the records of one kind replaced."""
    ours = metadata.get(KEY)
    return {KEY: {**(ours if isinstance(ours, dict) else {}), kind: dict(records)}}
