"""Sessions and messages in the format of a 1.x server, and a server with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd

from opencode_magics import history
from opencode_magics.client.client import Client
from support.fake_server import FakeServer, v1_routes
from support.recorded_flows import case
from support.transport import CannedTransport

MINUTE = 60_000


T0 = 1_796_000_000_000


Wire = dict[str, Any]


def wire_session(session: str, **fields: Any) -> Wire:
    """Return a session as in a list of sessions."""
    time = {"created": T0, "updated": T0 + MINUTE} | fields.pop("time", {})
    return (
        {"id": session, "title": session, "directory": "/work/p", "projectID": "p"}
        | fields
        | {"time": time}
    )


def answer(message: str, session: str, at: int, cost: float | None = 0.01, **fields: Any) -> Wire:
    """Return an answer with its usage."""
    tokens = {"input": 10, "output": 2, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    info = {"id": message, "sessionID": session, "role": "assistant", "agent": "build"}
    info |= {"providerID": "acme", "modelID": "m-1", "finish": "stop", "cost": cost}
    info |= {"time": {"created": at, "completed": at + 1000}, "tokens": tokens}
    parts = fields.pop("parts", [])
    return {"info": info | fields, "parts": parts}


def prompt(message: str, session: str, at: int) -> Wire:
    """Return a prompt."""
    info = {"id": message, "sessionID": session, "role": "user", "time": {"created": at}}
    info |= {"agent": "build", "model": {"providerID": "acme", "modelID": "m-1"}}
    return {"info": info, "parts": [{"id": f"prt_{message}", "type": "text", "text": "hi"}]}


@contextmanager
def serving(
    sessions: Sequence[Wire], messages: Mapping[str, Any], **routes: Any
) -> Iterator[tuple[Client, FakeServer]]:
    """Start a server with these sessions and messages, and a client of it."""
    replies = {f"GET /session/{s['id']}/message": messages.get(s["id"], []) for s in sessions}
    replies |= {f"GET /session/{s['id']}": s for s in sessions}
    replies["GET /experimental/session"] = list(sessions)
    with (
        CannedTransport(v1_routes(sessions=list(sessions), **routes) | replies) as fake,
        Client(fake.url, transport=fake, directory="/work/p") as client,
    ):
        yield client, fake


def usage(client: Client, by: Any = "session", **options: Any) -> pd.DataFrame:
    return history.usage(client, by, **{"cache": False, "tz": "UTC"} | options)


def tool(start: int, **state: Any) -> Wire:
    state = {"status": "completed", "input": {}, "output": "", "time": {"start": start}} | state
    return {
        "id": f"t{start}",
        "type": "tool",
        "tool": "bash",
        "callID": f"c{start}",
        "state": state,
    }


def forks() -> tuple[list[Wire], dict[str, Any], dict[str, Any]]:
    fork_case = case("messages_fork.json")
    created_at = {"ses_P": T0, "ses_F1": T0 + MINUTE, "ses_F2": T0 + 2 * MINUTE}
    sessions = [
        wire_session(
            s["id"],
            title=s["title"],
            cost=s["cost"],
            tokens=_tokens_of(fork_case["messages"][s["id"]]),
            time={"created": created_at[s["id"]]},
        )
        for s in fork_case["sessions"]
    ]
    return sessions, fork_case["messages"], fork_case["expected"]


def make_sessions(number: int) -> tuple[list[Wire], dict[str, Any]]:
    sessions = [wire_session(f"ses_{n:02}", cost=0.01) for n in range(number)]
    return sessions, {s["id"]: [answer(f"m{s['id']}", s["id"], T0 + 1)] for s in sessions}


def _tokens_of(messages: Sequence[Wire]) -> Wire:
    tokens = [m["info"]["tokens"] for m in messages]
    sums = {name: sum(t[name] for t in tokens) for name in ("input", "output", "reasoning")}
    return sums | {"cache": {"read": 0, "write": 0}}
