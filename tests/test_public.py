"""The public Python interface: documented, typed, and used as a whole by a program of a user."""

from __future__ import annotations

import ast
import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import opencode_magics
from opencode_magics import errors

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "typing" / "user_script.py"
NAMES = [name for name in opencode_magics.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(opencode_magics, name)
    assert value.__doc__
    assert not (inspect.isclass(value) and value.__doc__.startswith(f"{name}("))  # a dataclass's


@pytest.mark.parametrize("name", ["ask", "follow", "connect", "replay"])
def test_every_argument_is_documented(name: str) -> None:
    function = getattr(opencode_magics, name)
    assert all(f"    {p}: " in function.__doc__ for p in inspect.signature(function).parameters)


def test_every_error_is_exported() -> None:
    defined = {n for n, v in vars(errors).items() if inspect.isclass(v) and "Error" in str(v.mro())}
    assert defined | {"TurnInterrupted"} <= set(opencode_magics.__all__)


def test_help_begins_with_an_example_and_has_every_public_name() -> None:
    text = pydoc.render_doc(opencode_magics, renderer=pydoc.plaintext)
    assert "turn = oc.ask(client" in text[:1_000]
    assert all(name in text for name in NAMES)


def test_completion_offers_the_names_that_are_imported_when_they_are_used() -> None:
    assert set(opencode_magics.__all__) <= set(dir(opencode_magics))


def test_nothing_is_allowed_by_default() -> None:
    for function in (opencode_magics.ask, opencode_magics.follow):
        parameters = inspect.signature(function).parameters
        assert parameters["on_permission"].default == "reject"
        assert parameters["on_question"].default is None


# -- types -----------------------------------------------------------------------------------------

WRONG = """\
import opencode_magics as oc

client = oc.connect()
oc.ask(client, "Hello", on_permission="always")
oc.ask(client, "Hello", on_permission=lambda permission: "yes")
oc.ask(client, "Hello", on_question=lambda question: 3)
oc.ask(client, "Hello", delivery="soon")
oc.ask(client, "Hello", "ses_1")
oc.follow(client, "ses_1").text = ""
oc.replay(oc.load("lesson.jsonl"))
oc.Limits.of(max_cost="1")
oc.prompt(client, "Hello")
"""


def checked(tmp_path: Path, *files: Path) -> dict[Path, list[int]]:
    """The lines of files in which `mypy --strict` finds an error."""
    options = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, files)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT)},
    )
    found: dict[Path, list[int]] = {file: [] for file in files}
    for line in done.stdout.splitlines():
        path, number, kind, _ = line.split(":", 3)
        if kind.strip() == "error":
            found[ROOT / path].append(int(number))
    assert not done.stderr
    return {file: sorted(set(lines)) for file, lines in found.items()}


def test_a_program_of_a_user_type_checks_and_wrong_uses_do_not(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    last = len(WRONG.splitlines())
    assert checked(tmp_path, SCRIPT, wrong) == {SCRIPT: [], wrong: [*range(4, last + 1)]}


def test_that_program_uses_every_public_name() -> None:
    tree = ast.parse(SCRIPT.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "oc"
    }
    assert used == set(opencode_magics.__all__)
