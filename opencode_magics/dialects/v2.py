"""OpenCode 2.x (`/api/...`): recognised, so that a person is told what answers."""

from __future__ import annotations

from ..errors import StatusError
from ..model import Server
from . import Flow, Request, json_object


def probe() -> Flow[Server | None]:
    """The server, if it is of 2.x: only if its info route answers with a version and a pid.

    `/api/health` and `/api/session` prove nothing, since 1.18.33 answers both. Two early builds of
    2.x had the same answer at another path.
    """
    for path in ("/api/info", "/api/status", "/api/health"):
        try:
            body = json_object((yield Request("GET", path)))
        except StatusError:
            continue
        version, pid = (body or {}).get("version"), (body or {}).get("pid")
        if isinstance(version, str) and isinstance(pid, int):
            return Server("2.x", version)
    return None
