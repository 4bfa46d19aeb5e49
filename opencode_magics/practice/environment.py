"""A home of its own for a practice OpenCode: its environment and its configuration.

Nothing of the user's reaches it, nothing of it reaches the user's own OpenCode, and everything
it could want from the network is turned off.
"""

import json
import os
import sys
from pathlib import Path

from .workspace import config

# What must not reach the practice server: other settings, other accounts, the network.
FOREIGN = ("OPENCODE_", "XDG_", "GIT_")
FOREIGN_ENDS = ("_PROXY", "_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD")

OFFLINE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


def environment(home: Path) -> dict[str, str]:
    """Our environment without the user's accounts and settings, at home in `home`."""
    kept = {name: value for name, value in os.environ.items() if not _is_foreign(name)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    own = {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": path,  # the scripts run `python3`: ours
    }
    return kept | own | OFFLINE


def _is_foreign(name: str) -> bool:
    return name.upper().startswith(FOREIGN) or name.upper().endswith(FOREIGN_ENDS)


def write_config(home: Path, model_url: str) -> None:
    """Write OpenCode's configuration where it looks for the user's own."""
    folder = home / ".config" / "opencode"
    (folder / "node_modules").mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(config(model_url), indent=2))
    # OpenCode 1.18.33 installs what plugins need beside a configuration, if it finds it
    # missing there. We have no plugins: let it find it.
    present = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    (folder / "package-lock.json").write_text(json.dumps(present))
