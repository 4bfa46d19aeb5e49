"""Find the background service of OpenCode 2.x by its two files.

The registration (`service.json` in the state folder) has its address, process id and version; the
configuration file of the same name has its password. A registration can be stale, so
`matches_server` compares it with the server that answers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.model import Server
from .password import Secret


@dataclass(frozen=True, slots=True)
class Service:
    """A registered background service."""

    url: str
    pid: int | None = None
    version: str = ""
    passwords: tuple[Secret, ...] = field(default=(), repr=False)

    def matches_server(self, server: Server) -> bool:
        """Return whether a server is the registered one."""
        same = self.pid is None or server.pid == self.pid
        return same and (not self.version or server.version == self.version)


def registered_service() -> Service | None:
    """Return the registered background service; None if there is none."""
    registration = _read(_folder("XDG_STATE_HOME", ".local", "state"))
    url = registration.get("url")
    if not isinstance(url, str) or not url:
        return None
    config = _read(_folder("XDG_CONFIG_HOME", ".config"))
    candidates = (registration.get("password"), config.get("password"))
    passwords = [p for p in candidates if isinstance(p, str) and p]
    pid, version = registration.get("pid"), registration.get("version")
    return Service(
        url,
        pid if isinstance(pid, int) else None,
        version if isinstance(version, str) else "",
        tuple(Secret(p) for p in dict.fromkeys(passwords)),
    )


def _folder(variable: str, *default: str) -> Path:
    home = os.environ.get(variable)
    return (Path(home) if home else Path.home().joinpath(*default)) / "opencode"


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "service.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
