"""`opencode-magics demo` runs the tour on a real server and prints a one-line summary."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opencode_magics import cli
from opencode_magics.cli import main
from opencode_magics.errors import OpenCodeError
from opencode_magics.practice.world import Practice

RESULT = re.compile(r"demo: ok, OpenCode 1\.18\.33, (\d+) turns, (\d+) permissions, \$(\d+\.\d+)\n")


def cells(notebook: Path) -> list[dict[str, Any]]:
    every = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in every if cell["cell_type"] == "code"]


def test_the_tour_succeeds_headless(opencode: Path, tmp_path: Path) -> None:
    """The numbers in the last line are those of the tour's prompts and permissions."""
    code = "import sys; from opencode_magics.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "demo", "--headless", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = RESULT.fullmatch(done.stdout)
    assert result is not None, done.stdout
    tour = cells(cli.notebooks() / "tour.ipynb")
    prompts = [cell for cell in tour if cell["source"][0].startswith("%%oc_prompt")]
    assert int(result[1]) == len(prompts)
    assert int(result[2]) == 4  # run the tests; edit, run them again; a subagent runs them
    assert float(result[3]) > 0
    assert all(cell["execution_count"] for cell in cells(tmp_path / "tour.ipynb"))
    assert "All 3 tests pass." in (tmp_path / "tour.html").read_text(encoding="utf-8")


def test_the_tour_on_2x_says_that_it_uses_the_simulator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--api", "2", "--headless", "--output", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert re.fullmatch(
        r"demo: ok, simulated OpenCode 2\.0\.16, \d+ turns, 4 permissions, \$0\.\d+\n", output.out
    )
    assert "simulated OpenCode 2.x" in output.err
    html = (tmp_path / "tour.html").read_text(encoding="utf-8")
    assert "A simulator of OpenCode 2.x" in html
    assert "A real OpenCode server" not in html
    assert "All 3 tests pass." in html


def test_the_tour_is_stored_without_outputs() -> None:
    tour = cells(cli.notebooks() / "tour.ipynb")
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in tour)


def test_the_tour_does_not_set_what_only_a_headless_run_needs() -> None:
    assert "noninteractive" not in (cli.notebooks() / "tour.ipynb").read_text(encoding="utf-8")


@pytest.fixture
def notebook_of(
    practice: Practice, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Make the demo run a tour of one cell in the world that is already running."""

    @contextmanager
    def running(**options: object) -> Iterator[Practice]:
        yield practice

    def write(source: str) -> None:
        cell: dict[str, Any] = {"cell_type": "code", "id": "one", "metadata": {}, "source": source}
        cell |= {"execution_count": None, "outputs": []}
        notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / "tour.ipynb").write_text(json.dumps(notebook))

    monkeypatch.setitem(cli.WORLDS, "1", running)
    monkeypatch.setattr(cli, "notebooks", lambda: tmp_path)
    return write


def test_a_failing_cell_fails_the_demo_in_one_line(
    notebook_of: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The outputs of the cells before it are written."""
    notebook_of("1 / 0")
    assert main(["demo", "--headless", "--output", str(tmp_path / "out")]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        output.err.splitlines()[-1] == "demo: failed, cell 1: ZeroDivisionError: division by zero"
    )
    assert "ZeroDivisionError" in (tmp_path / "out" / "tour.html").read_text(encoding="utf-8")


def test_the_kernel_works_in_the_workspace(
    notebook_of: Callable[[str], None], workspace: Path, tmp_path: Path
) -> None:
    notebook_of(f"import os; assert os.getcwd() == {str(workspace)!r}")
    assert main(["demo", "--headless", "--output", str(tmp_path / "out")]) == 0


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(OpenCodeError, match=r"needs no_such_module\.") as caught:
        cli._require("json", "no_such_module")
    assert caught.value.todo == "Install it with: pip install 'opencode_magics[demo]'"


def test_jupyterlab_opens_on_the_tour(tmp_path: Path) -> None:
    options = cli._parser().parse_args(["demo", "--port", "8123", "--no-browser"])
    arguments = cli._lab_arguments(tmp_path / "tour.ipynb", options)
    assert {"--LabApp.default_url=/lab/tree/tour.ipynb", "--ServerApp.port=8123"} <= {*arguments}
    assert "--no-browser" in arguments


PROGRAM = """
import os, sys, opencode_magics
with opencode_magics.connect() as client:
    print(client.server.version, client.directory == os.getcwd(), os.path.exists("tour.ipynb"))
sys.exit(7)
"""


def test_a_program_runs_in_a_practice_world(
    notebook_of: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """It finds the server and the notebooks, and we return its exit code."""
    notebook_of("1 + 1")
    assert main(["practice", "--", sys.executable, "-c", PROGRAM]) == 7
    assert capfd.readouterr().out == "1.18.33 True True\n"


def test_a_missing_program_is_reported_in_one_line(
    notebook_of: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    notebook_of("1 + 1")
    assert main(["practice", "no-such-program"]) == 1
    assert capsys.readouterr().err.startswith("practice: failed, FileNotFoundError")


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "COMMAND" in capsys.readouterr().err


def test_every_notebook_is_in_the_wheel() -> None:
    root = Path(__file__).parents[1]
    build = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert {f"notebooks/{p.name}" for p in root.glob("notebooks/*.ipynb")} == included.keys()
