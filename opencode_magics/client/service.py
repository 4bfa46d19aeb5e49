"""Finds the background service of OpenCode 2.x by the two files that it leaves.

The registration (`service.json` below the state folder) says where it listens and who it is; the
configuration of the same name keeps its password. A registration may be older than the service, so
what answers has to prove that it is the one.
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
    """What the registration says."""

    url: str
    pid: int | None = None
    version: str = ""
    passwords: tuple[Secret, ...] = field(default=(), repr=False)

    def matches_server(self, server: Server) -> bool:
        """Whether what answers there is what was registered."""
        same = self.pid is None or server.pid == self.pid
        return same and (not self.version or server.version == self.version)


def registered_service() -> Service | None:
    """The background service, as far as files tell; None where there is none."""
    told = _read(_folder("XDG_STATE_HOME", ".local", "state"))
    url = told.get("url")
    if not isinstance(url, str) or not url:
        return None
    kept = _read(_folder("XDG_CONFIG_HOME", ".config"))
    words = [w for w in (told.get("password"), kept.get("password")) if isinstance(w, str) and w]
    pid, version = told.get("pid"), told.get("version")
    return Service(
        url,
        pid if isinstance(pid, int) else None,
        version if isinstance(version, str) else "",
        tuple(Secret(w) for w in dict.fromkeys(words)),
    )


def _folder(variable: str, *default: str) -> Path:
    home = os.environ.get(variable)
    return (Path(home) if home else Path.home().joinpath(*default)) / "opencode"


def _read(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / "service.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
