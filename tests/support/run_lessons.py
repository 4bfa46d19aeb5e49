"""Run each lesson in its own practice world, and store it with its outputs.

    python tests/support/run_lessons.py [NAME ...]

The outputs are the same every time, except for ids, times and durations.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
COSTS, STEERING = FOLDER / "costs.ipynb", FOLDER / "steering.ipynb"
APPROVALS, ANATOMY = FOLDER / "approvals.ipynb", FOLDER / "anatomy.ipynb"
CLASSROOM, PYTHON = FOLDER / "classroom.ipynb", FOLDER / "python.ipynb"
LESSONS = (COSTS, STEERING, APPROVALS, ANATOMY, CLASSROOM, PYTHON)

_TIME = re.compile(r"[\d-]+ [\d:]+ \(UTC\) · [\d.]+ s|[\d-]+ [\d:]+ UTC\b|\b[\d.]+ m?s\b")
_ID = re.compile(r"\b(ses|msg)_\w")
_PATH = re.compile(r"/\S+/party/")


def environment(practice: Practice | Simulator, home: Path) -> dict[str, str]:
    """Return a kernel's environment with this world's server and without the user's settings."""
    excluded = ("OPENCODE_", "JUPYTER")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(excluded)},
        **practice.access,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def execute(practice: Practice, home: Path, path: Path) -> Any:
    """Execute a lesson, with the time zone UTC."""
    lesson = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(practice.directory)}}
    client = NotebookClient(lesson, timeout=120, kernel_name="python3", resources=resources)
    client.execute(env=environment(practice, home) | {"TZ": "UTC"})
    return lesson


def store(path: Path) -> None:
    """Run a lesson and store it."""
    with tempfile.TemporaryDirectory() as home, Practice(progress=print) as practice:
        lesson = execute(practice, Path(home), path)
    for cell in lesson.cells:
        cell.metadata.pop("execution", None)
    lesson.metadata.pop("widgets", None)
    lesson.metadata["language_info"] = {"name": "python"}
    # The name of the world's folder is random, and an agent's tools print it.
    text = nbformat.writes(lesson).replace(str(practice.directory), "/practice/party")
    path.write_text(f"{text}\n", encoding="utf-8")


def plain(cell: Any) -> str:
    """Return the outputs of a cell as plain text."""
    return "\n".join(o.get("text") or _plain_of(o) for o in cell.outputs)


def _plain_of(output: Any) -> str:
    return str(output.get("data", {}).get("text/plain", ""))


def output_lines(notebook: Any) -> list[list[str]]:
    """Return the text output of each cell, without times, ids and paths.

    It is split into lines, since the chunks of a stream vary.
    """
    texts = (plain(cell) for cell in notebook.cells if cell.cell_type == "code")
    stable = (_PATH.sub("/party/", _TIME.sub("WHEN", t)) for t in texts if not _ID.search(t))
    cells = ([x for x in text.splitlines() if x and "%|" not in x] for text in stable)
    return [_reproducible(cell) for cell in cells]


def _reproducible(lines: list[str]) -> list[str]:
    """The lines that don't depend on when a turn was stopped."""
    stopped = any(line.startswith("✗ Stopped") for line in lines)
    return [line for line in lines if "topped" in line] if stopped else lines


if __name__ == "__main__":
    for lesson_path in LESSONS:
        if not sys.argv[1:] or lesson_path.stem in sys.argv[1:]:
            store(lesson_path)
