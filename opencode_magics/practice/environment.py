"""The isolated environment and configuration of a practice OpenCode.

It has its own home, sees none of the user's settings or accounts, and has every network feature
turned off.
"""

import json
import os
import sys
from pathlib import Path

from .workspace import config

# Variables with settings, accounts or proxies that the practice server must not see.
EXCLUDED_PREFIXES = ("OPENCODE_", "XDG_", "GIT_")
EXCLUDED_SUFFIXES = ("_PROXY", "_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD")

OFFLINE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


def environment(home: Path) -> dict[str, str]:
    """Return our environment without the user's accounts and settings, and with its own home."""
    inherited = {name: value for name, value in os.environ.items() if not _is_excluded(name)}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    own = {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": path,  # so that the scripts run this Python as `python3`
    }
    return inherited | own | OFFLINE


def _is_excluded(name: str) -> bool:
    return name.upper().startswith(EXCLUDED_PREFIXES) or name.upper().endswith(EXCLUDED_SUFFIXES)


def write_config(home: Path, model_url: str) -> None:
    """Write OpenCode's configuration into `home`."""
    folder = home / ".config" / "opencode"
    (folder / "node_modules").mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(config(model_url), indent=2))
    # OpenCode 1.18.33 installs the plugin package into its configuration folder unless a lock
    # file lists it. There are no plugins here, so list it.
    lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    (folder / "package-lock.json").write_text(json.dumps(lock))
