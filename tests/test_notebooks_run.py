"""Unattended notebooks, which nbclient executes on a real server.

Nobody can click or type there, and only the saved file is seen.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook
from support import run_lessons
from support.run_lessons import output_lines, plain

from opencode_magics import history
from opencode_magics.client.client import Client
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice

LOAD = "%load_ext opencode_magics\n%oc_connect"

BOTH_GENERATIONS = True
World = Practice | Simulator


class Notebook:
    """A notebook that nbclient executes on a practice world's server."""

    def __init__(self, world: World, home: Path) -> None:
        self.env = run_lessons.environment(world, home)
        self.home = world.directory
        self.cells: list[Any] = []

    def run(self, *cells: str) -> list[str]:
        """Execute the cells in a new kernel, and return the plain-text output of each."""
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in (LOAD, *cells)])
        client = NotebookClient(
            notebook,
            timeout=120,
            kernel_name="python3",
            resources={"metadata": {"path": str(self.home)}},
        )
        try:
            client.execute(env=self.env)
        finally:
            nbformat.validate(notebook)
            self.cells = notebook.cells[1:]
        return [plain(cell) for cell in self.cells]

    @property
    def json(self) -> str:
        """The notebook as it would be saved."""
        return json.dumps(self.cells)


def html(cell: Any) -> str:
    """Return the outputs of a cell as HTML."""
    return "\n".join(o.get("data", {}).get("text/html", "") for o in cell.outputs)


@pytest.fixture
def notebook(world: World, workspace: Path, tmp_path: Path) -> Notebook:
    return Notebook(world, tmp_path)


def test_a_permission_that_nobody_can_answer_is_rejected_with_a_message(
    notebook: Notebook, world: World, bash: str
) -> None:
    """The file holds the answer as text and as HTML, and no widget that would be dead.

    Case G3-04.
    """
    answer, command, after, edit, question, text = notebook.run(
        "%%oc_prompt -o turn\n#text 3",
        "%%oc_prompt -o refused\n#bash touch made",
        "turn.outcome, refused.outcome",
        "%config OpenCodeMagics.noninteractive = 'once'\n%oc_prompt #edit notes.txt",
        "%%oc_prompt -o asked\n#question",
        "asked",
    )
    assert "word0 word1 word2" in answer
    assert "word0 word1 word2" in html(notebook.cells[0])
    assert "succeeded · build · practice/scripted" in answer
    assert "succeeded" in html(notebook.cells[0])
    assert f"Permission: {bash} 'touch made' → reject (nobody can answer here)" in command
    assert "reject (nobody can answer here)" in html(notebook.cells[1])
    assert not (world.directory / "made").exists()
    assert after == "('succeeded', 'rejected')"
    assert "→ once (nobody can answer here)" in edit
    assert "+goodbye one" in edit
    assert "goodbye" in html(notebook.cells[3])
    assert (world.directory / "notes.txt").read_text().startswith("goodbye")
    assert "→ dismissed (nobody can answer here)" in question
    assert "rejected · build" in text
    saved = notebook.json
    assert world.password not in saved
    assert "widget" not in saved
    assert [o.output_type for cell in notebook.cells for o in cell.outputs].count("error") == 0


def test_a_subagents_permission_is_answered_as_well(
    notebook: Notebook, world: World, bash: str
) -> None:
    refused, allowed = notebook.run(
        "%%oc_prompt\n#task #bash mkdir refused",
        "%%oc_prompt --permission once\n#task #bash mkdir allowed",
    )
    assert f"{bash} 'mkdir refused' → reject (nobody can answer here)" in refused
    assert f"{bash} 'mkdir allowed' → once (policy 'once')" in allowed
    assert not (world.directory / "refused").exists()
    assert (world.directory / "allowed").is_dir()


def test_a_turn_that_fails_stops_the_run(notebook: Notebook) -> None:
    """The received part of the answer is in the file, and later cells are not run.

    Cases G1-18, G4-02.
    """
    with pytest.raises(CellExecutionError, match=r"TurnError: The turn failed: .* JSON"):
        notebook.run("%%oc_prompt\n#garbage", "%%oc_prompt\n#err400", "print('went on')")
    failed, *after = notebook.cells
    assert "This answer turn" in plain(failed)
    *_, error = failed.outputs
    assert error.ename == "TurnError"
    assert len(error.traceback) == 2
    assert all(cell.execution_count is None and cell.outputs == [] for cell in after)


def test_the_run_stops_at_a_needed_answer_and_names_it(notebook: Notebook, client: Client) -> None:
    with pytest.raises(CellExecutionError, match=r"AnswerNeeded: .* question: 'Which colour\?'"):
        notebook.run(
            "%config OpenCodeMagics.noninteractive = 'error'",
            "%%oc_prompt\n#question",
        )
    assert client.questions() == ()


def test_a_kernel_also_sends_typed_input(notebook: Notebook) -> None:
    """Case G3-01."""
    body = ">>> f({x!r}, $HOME)\n... g\n\nWhy?"
    *_, sent, line = notebook.run(
        f"%%oc_prompt --no-wait --title x -o turn\n{body}",
        "%oc_prompt --no-wait --title x -o other What does f(x) do with x?",
        "print(turn.question_text, end='')",
        "print(other.question_text, end='')",
    )
    assert sent == body
    assert line == "What does f(x) do with x?"


def test_a_background_turn_does_not_write_under_another_cell(notebook: Notebook) -> None:
    """Case G3-07."""
    sent, meanwhile, later, answer = notebook.run(
        "%%oc_prompt --no-wait -o turn\n#slow 10 .1",
        "import time\ntime.sleep(2)",
        "print('later')",
        "%%oc_prompt --queue\n#text 2",
    )
    assert sent.startswith("Sent to session ses_")
    assert meanwhile == ""
    assert later == "later\n"
    assert "word0 word1" in answer
    assert "slow" not in answer


def test_magics_work_inside_of_async_code(notebook: Notebook, world: World) -> None:
    """A kernel's event loop is always running; the client is synchronous and doesn't need it.

    Case G3-08.
    """
    answer, connected = notebook.run(
        "async def ask():\n"
        "    %oc_prompt --title x #text 2\n"
        "    turn = %oc_turn\n"
        "    return turn.text\n"
        "print(await ask())",
        "import opencode_magics\n"
        "with opencode_magics.connect() as client:\n"
        "    print(client.server.version)",
    )
    assert answer.rstrip().endswith("word0 word1")
    assert connected == f"{world.version}\n"


@pytest.mark.parametrize("text", ["/etc/hostname", "http://example.invalid/x"])
def test_an_answer_that_is_a_path_or_a_url_is_shown_as_text(notebook: Notebook, text: str) -> None:
    """Case G4-05."""
    (answer,) = notebook.run(f'%%oc_prompt\n#plan [{{"text": "{text}"}}]')
    assert text in answer
    assert text in html(notebook.cells[0])


# -- the lessons -------------------------------------------------------------------------------


def run_again(path: Path, opencode: Path, home: Path) -> list[list[str]]:
    """Check that a lesson has the same output in its own world as in its stored copy."""
    with Practice(command=opencode) as world:
        (world.directory / "greet.py").write_text("")  # as another lesson may leave it
        lines = output_lines(run_lessons.execute(world, home, path))
    stored = output_lines(nbformat.read(path, as_version=4))
    assert lines == stored, f"store it again: python tests/support/run_lessons.py {path.stem}"
    return lines


def test_the_lesson_about_costs_matches_its_stored_output(opencode: Path, tmp_path: Path) -> None:
    """Its costs are those of the server, too."""
    with Practice(command=opencode) as world:
        lines = output_lines(run_lessons.execute(world, tmp_path, run_lessons.COSTS))
        with Client(world.url, directory=str(world.directory), password=world.password) as client:
            total = history.usage(client, "total", cache=False).attrs["total"]
    stored = output_lines(nbformat.read(run_lessons.COSTS, as_version=4))
    assert lines == stored, "store it again: python tests/support/run_lessons.py costs"
    cost = f"${total['cost']:.4f}"
    assert lines[-1] == [f"exported {cost}, by usage {cost}"]
    assert ["left out: 4 calls that would add $0.0476"] in [cell[-1:] for cell in lines]
    assert total["duplicates"] == 4


def test_the_lesson_about_steering_matches_its_stored_output(
    opencode: Path, tmp_path: Path
) -> None:
    lines = run_again(run_lessons.STEERING, opencode, tmp_path)
    assert ["('ended', 'delete', True, 'complete')"] in lines


def test_the_lesson_about_approvals_matches_its_stored_output(
    opencode: Path, tmp_path: Path
) -> None:
    lines = run_again(run_lessons.APPROVALS, opencode, tmp_path)
    assert ["'rejected'"] in lines
    assert ["('succeeded', ())"] in lines


def test_the_lesson_about_a_turn_matches_its_stored_output(opencode: Path, tmp_path: Path) -> None:
    lines = run_again(run_lessons.ANATOMY, opencode, tmp_path)
    assert ["computed $0.04524, stored $0.04524"] in lines


def test_the_lesson_for_teachers_matches_its_stored_output(opencode: Path, tmp_path: Path) -> None:
    lines = run_again(run_lessons.CLASSROOM, opencode, tmp_path)
    assert ["True"] in lines
    assert any("The turn was stopped: cost $0.029 exceeded max_cost $0.01." in x for x in lines)


def test_the_lesson_about_plain_python_says_what_its_stored_copy_says(
    opencode: Path, tmp_path: Path
) -> None:
    lines = run_again(run_lessons.PYTHON, opencode, tmp_path)
    assert ["'rejected'"] in lines
    assert ["edit: greet.py", "bash: python3 test_greet.py"] in [cell[:2] for cell in lines]


@pytest.mark.parametrize("path", run_lessons.LESSONS, ids=lambda path: path.stem)
def test_a_lesson_can_be_read_as_it_is_stored(path: Path) -> None:
    """For code hosts: executed in order, pictures as PNG, no stderr, no widgets, no secrets."""
    stored = nbformat.read(path, as_version=4)
    cells = [c for c in stored.cells if c.cell_type == "code"]
    outputs = [o for cell in cells for o in cell.outputs]
    assert [c.execution_count for c in cells] == [*range(1, len(cells) + 1)]
    assert {o.output_type for o in outputs} <= {"stream", "display_data", "execute_result"}
    assert {o.name for o in outputs if o.output_type == "stream"} <= {"stdout"}
    kinds = [kind for o in outputs for kind in o.get("data", {})]
    assert "text/html" in kinds
    assert not [kind for kind in kinds if "widget" in kind]
    text = path.read_text(encoding="utf-8")
    assert len(text) < 600_000
    assert not re.search(r"/tmp/|127\.0\.0\.1|Traceback", text)


@pytest.mark.parametrize(
    ("path", "pictures"),
    [(run_lessons.COSTS, 5), (run_lessons.ANATOMY, 2)],
    ids=["costs", "anatomy"],
)
def test_pictures_of_a_lesson_are_stored_with_it(path: Path, pictures: int) -> None:
    stored = nbformat.read(path, as_version=4)
    outputs = [o for cell in stored.cells if cell.cell_type == "code" for o in cell.outputs]
    assert sum("image/png" in o.get("data", {}) for o in outputs) == pictures
