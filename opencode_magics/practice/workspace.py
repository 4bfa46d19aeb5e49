"""The small practice project, and the OpenCode configuration for it.

The project is a git repository with two small modules, tests that need only Python, and one bug. It
is the same on every machine, including the hash of its commit.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OpenCodeError

FILES = {
    "README.md": """\
# Party greetings

Greets the guests of a party. `greet.py` makes the greetings, `party.py` reads
`guests.txt` and prints them. Run the tests with `python3 test_greet.py`.
""",
    "greet.py": '''\
"""Greetings for one guest and for many."""


def greet(name):
    """Greet one guest: "Hello, Ada!"."""
    return f"Hello, {name.title()}!"


def greet_all(names):
    """Greet many guests in one sentence: "Hello, Ada, Grace and Alan!"."""
    *others, last = [name.title() for name in names]
    return f"Hello, {', '.join(others)} and {last}!"
''',
    "party.py": '''\
"""Print a greeting for everybody in guests.txt."""

from greet import greet_all

with open("guests.txt") as file:
    print(greet_all(file.read().split()))
''',
    "guests.txt": "ada\ngrace\nalan\n",
    "notes.txt": "hello one\nline two\n",
    "test_greet.py": '''\
"""Tests without a test framework: `python3 test_greet.py`."""

import sys

from greet import greet, greet_all

CASES = [
    ("one guest", greet("ada"), "Hello, Ada!"),
    ("three guests", greet_all(["ada", "grace", "alan"]), "Hello, Ada, Grace and Alan!"),
    ("a party of one", greet_all(["ada"]), "Hello, Ada!"),
]

failed = 0
for name, got, expected in CASES:
    if got == expected:
        print(f"ok    {name}")
    else:
        failed += 1
        print(f"FAIL  {name}: got {got!r}, expected {expected!r}")
print(f"{len(CASES) - failed} passed, {failed} failed")
sys.exit(failed > 0)
''',
    ".gitignore": "__pycache__/\n",
}

BUGGY = """\
    *others, last = [name.title() for name in names]
    return f"Hello, {', '.join(others)} and {last}!"
"""
FIXED = """\
    *others, last = [name.title() for name in names]
    if not others:
        return greet(last)
    return f"Hello, {', '.join(others)} and {last}!"
"""

PROVIDER = "practice"
MODEL = f"{PROVIDER}/scripted"
SMALL_MODEL = f"{PROVIDER}/small"
PRICES = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}

_IDENTITY = {
    "NAME": "Practice",
    "EMAIL": "practice@example.invalid",
    "DATE": "2026-01-01T12:00:00Z",
}


def make_workspace(directory: Path) -> Path:
    """Create the project in `directory`, commit it, and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    _git(directory, "init", "--quiet", "--initial-branch=main")
    _git(directory, "add", "--all")
    _git(directory, "commit", "--quiet", "--message=A party")
    return directory


def reset_workspace(directory: Path) -> None:
    """Restore the project to its initial state."""
    _git(directory, "reset", "--quiet", "--hard")
    _git(directory, "clean", "--quiet", "--force", "-d")


def _git(directory: Path, *args: str) -> None:
    command = ["git", "-c", "core.autocrlf=false", "-c", "commit.gpgsign=false", *args]
    try:
        result = subprocess.run(
            command, cwd=directory, env=_git_env(), capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise OpenCodeError("The practice workspace needs git.", "Install git.") from error
    if result.returncode:
        raise OpenCodeError(f"git {args[0]} failed in {directory}: {result.stderr.strip()}")


def _git_env() -> dict[str, str]:
    """Return our environment without the user's git configuration, hooks and identity."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    roles = ("AUTHOR", "COMMITTER")
    identity = {f"GIT_{role}_{key}": _IDENTITY[key] for role in roles for key in _IDENTITY}
    return inherited | identity | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def config(model_url: str) -> dict[str, Any]:
    """Return OpenCode's configuration for the practice model at `model_url`.

    Shell commands and edits ask for permission; nothing is shared, updated or downloaded.
    """
    return {
        "$schema": "https://opencode.ai/config.json",
        "model": MODEL,
        "small_model": SMALL_MODEL,
        "enabled_providers": [PROVIDER],
        "share": "disabled",
        "autoupdate": False,
        "lsp": False,
        "formatter": False,
        "permission": {"bash": "ask", "edit": "ask"},
        "provider": {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",  # bundled with OpenCode: nothing to install
                "name": "Practice",
                "options": {"baseURL": f"{model_url}/v1", "apiKey": "practice"},
                "models": MODELS,
            }
        },
        "agent": {"reviewer": REVIEWER},
        "command": COMMANDS,
    }


def _model(name: str, prices: dict[str, float], **more: Any) -> dict[str, Any]:
    common = {
        "limit": {"context": 200_000, "output": 8_192},
        "tool_call": True,
        "reasoning": True,
        "attachment": True,
        "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]},
    }
    return {"name": name, "cost": prices} | common | more


MODELS = {
    "scripted": _model(
        "Scripted",
        PRICES,
        variants={"low": {"reasoningEffort": "low"}, "high": {"reasoningEffort": "high"}},
    ),
    "frugal": _model("Frugal", {"input": 0.5, "output": 2.0, "cache_read": 0.05}),
    "small": _model(
        "Small",
        {"input": 0.0, "output": 0.0},
        reasoning=False,
        modalities={"input": ["text"], "output": ["text"]},
    ),
}

REVIEWER = {
    "description": "Reviews code and reports what it found; changes nothing",
    "mode": "all",
    "prompt": "You review code. Report what you find in a few lines. Change nothing.",
    "permission": {"edit": "deny"},
}

COMMANDS: dict[str, Mapping[str, Any]] = {
    "explain": {
        "description": "Explain a file of the project",
        "template": "Explain $ARGUMENTS",
    },
    "review": {
        "description": "Review a file in a subagent",
        "template": "Review $ARGUMENTS and report what you find",
        "agent": "reviewer",
        "subtask": True,
    },
}
