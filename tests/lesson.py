"""Runs the lesson about costs in a practice world of its own, and stores it with its outputs.

    python tests/lesson.py

What it says is the same every time, but for ids, times and how long things took.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from opencode_magics.practice.simulator import Simulator
from opencode_magics.practice.world import Practice

ROOT = Path(__file__).parents[1]
COSTS = ROOT / "notebooks" / "costs.ipynb"


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


def execute(practice: Practice, home: Path) -> Any:
    """The lesson, executed; by the clocks of UTC wherever that is done."""
    lesson = nbformat.read(COSTS, as_version=4)
    where = {"metadata": {"path": str(practice.directory)}}
    client = NotebookClient(lesson, timeout=120, kernel_name="python3", resources=where)
    client.execute(env=environment(practice, home) | {"TZ": "UTC"})
    return lesson


def main() -> None:
    """Run it and store it."""
    with tempfile.TemporaryDirectory() as home, Practice(progress=print) as practice:
        lesson = execute(practice, Path(home))
    for cell in lesson.cells:
        cell.metadata.pop("execution", None)
    lesson.metadata.pop("widgets", None)
    lesson.metadata["language_info"] = {"name": "python"}
    nbformat.write(lesson, COSTS)


if __name__ == "__main__":
    main()
