"""The tiers of tests: which tests a run takes, decided by the fixtures that a test uses.

*quick* takes every test that starts nothing outside the test process, and samples of those that
start a real server, kernel or browser. *ci* takes what *quick* leaves out, except for rare
variants. *all* takes every test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest

from support import kernels

Tier = Literal["quick", "ci", "all"]
Resource = Literal["server", "kernel", "browser"]

OLD, NEW = "6.31.0", kernels.OURS
MAIN = ("lab", NEW)

# Fixtures that start something. Whether `generation` starts a server depends on its value.
SERVER = {"practice", "opencode"}
SERVERS = SERVER | {"world", "simulator"}
KERNEL = {"start_kernel", "kernels", "notebook", "notebook_of"}
BROWSER = {"chrome"}

# The tests with a real server, kernel or browser that *quick* takes.
SAMPLES = {
    "test_every_scenario_of_the_practice_model_ends_as_it_should",
    "test_a_click_is_sent_while_the_cell_waits",
    "test_an_edit_permission_shows_all_lines",
}

# The demo and the lessons: `.ci/run` runs them outside pytest, the lessons by `binder.py`.
IN_CI_SCRIPT = {
    "test_the_tour_succeeds_headless",
    "test_the_lesson_about_costs_matches_its_stored_output",
    "test_the_lesson_about_steering_matches_its_stored_output",
    "test_the_lesson_about_approvals_matches_its_stored_output",
    "test_the_lesson_about_a_turn_matches_its_stored_output",
    "test_the_lesson_for_teachers_matches_its_stored_output",
    "test_the_lesson_about_plain_python_says_what_its_stored_copy_says",
}

# The tests that *ci* takes in Jupyter Notebook with an old kernel; all run in JupyterLab.
IN_NOTEBOOK_TOO = {
    "test_after_a_reload_the_form_is_there_and_answers",
    "test_a_question_is_answered_with_options_and_free_text",
}

# By parameter, the values with which *quick* takes a sample and *ci* takes a test.
QUICK_VALUES: dict[str, tuple[Any, ...]] = {"version": (NEW,), "window": (MAIN,)}
CI_VALUES: dict[str, tuple[Any, ...]] = {
    "version": (OLD, NEW),
    "running": ((OLD, False), (NEW, True)),
    "window": (MAIN, ("notebook", OLD)),
}

# Fixtures of module scope that are slow to make, by the parameters that make another one. Tests
# that share one run in the same process.
SHARED = {"chrome": (), "running": ("running",), "kernels": (), "shared_shell": ("generation",)}


def tier(item: pytest.Function) -> Tier:
    """Return the smallest tier that a test is in."""
    if not resources(item):
        return "quick"
    if item.originalname in SAMPLES and has_values(item, QUICK_VALUES):
        return "quick"
    return "ci" if has_values(item, CI_VALUES) and not rare(item) else "all"


def rare(item: pytest.Function) -> bool:
    """Return whether *ci* leaves out a test because something similar runs there."""
    if "servers" in item.fixturenames:
        return parameters(item) != {} and item.callspec.indices["text"] % 3 != 0
    values = parameters(item)
    if values.get("window", MAIN) != MAIN:
        return item.originalname not in IN_NOTEBOOK_TOO
    if values.get("trusted"):  # hostile text in a notebook that is trusted: untrusted is the rule
        return True
    # The examples run on the simulator in *quick*.
    return item.originalname in IN_CI_SCRIPT or "shared_shell" in item.fixturenames


def resources(item: pytest.Function) -> set[Resource]:
    """Return what a test starts outside its own process."""
    names = set(item.fixturenames)
    on_1x = parameters(item).get("generation", "1.x") == "1.x"
    server = "practice" in names or (on_1x and names & (SERVER | {"generation"}))
    started: dict[Resource, object] = {
        "server": server,
        "kernel": names & KERNEL,
        "browser": names & BROWSER,
    }
    return {name for name, true in started.items() if true}


def parameters(item: pytest.Function) -> dict[str, Any]:
    """Return the values of a test's parameters, and of those of its fixtures."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def has_values(item: pytest.Function, wanted: dict[str, tuple[Any, ...]]) -> bool:
    """Return whether each parameter that is restricted has one of the wanted values."""
    return all(v in wanted[n] for n, v in parameters(item).items() if n in wanted)


def group(item: pytest.Function) -> str | None:
    """Return the name that tests of the same process share; None if any process will do."""
    for fixture, names in SHARED.items():
        if fixture in item.fixturenames:
            values = parameters(item)
            return "-".join([fixture, *(str(values[name]) for name in names)])
    return None


def part(text: str) -> tuple[int, int]:
    """Parse the value of `--part`, such as 2/6."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(text)
    return int(number), int(count)


def in_part(tests: Iterable[Any], number: int, count: int) -> list[Any]:
    """Return every `count`-th test; the cases of a test are spread over the parts."""
    return [*tests][number - 1 :: count]
