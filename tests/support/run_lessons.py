"""Runs the lessons, each in a practice world of its own, and stores them with their outputs.

    python tests/lesson.py [NAME ...]

What they say is the same every time, but for ids, times and how long things took.
"""

from __future__ import annotations

import os
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


def environment(practice: Practice | Simulator, home: Path) -> dict[str, str]:
    """A kernel's environment: this world's server, and nothing of the user's."""
    foreign = ("OPENCODE_", "JUPYTER")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(foreign)},
        **practice.access,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def execute(practice: Practice, home: Path, path: Path) -> Any:
    """A lesson, executed; by the clocks of UTC wherever that is done."""
    lesson = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(practice.directory)}}
    client = NotebookClient(lesson, timeout=120, kernel_name="python3", resources=where)
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
    # The world's folder has another name each time, and an agent's tools print it.
    text = nbformat.writes(lesson).replace(str(practice.directory), "/practice/party")
    path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    for lesson_path in LESSONS:
        if not sys.argv[1:] or lesson_path.stem in sys.argv[1:]:
            store(lesson_path)
