"""No public name is removed or changed, so that notebooks and scripts keep working."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import public_names
from support.ipython_shell import Shell
from support.public_names import ROOT, missing

PATH = ROOT / "tests" / "data" / "public_names.json"
RECORDED: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def lost(now: dict[str, Any]) -> list[str]:
    """Return the recorded names of these sections that are missing now."""
    return [*missing({section: RECORDED[section] for section in now}, now)]


def test_magics_options_functions_and_errors_keep_their_names(alone: Shell) -> None:
    now = public_names.static_names(alone)
    assert lost(now) == []
    assert [*now] == [*RECORDED][: len(now)]


@pytest.mark.parametrize("generation", ["2.x"])
def test_returned_objects_and_frames_keep_their_names(shell: Shell) -> None:
    now = public_names.live_names(shell)
    assert lost(now) == []
    for magic, frame in RECORDED["frames"].items():
        columns = now["frames"][magic]["columns"]
        assert [name for name in columns if name in frame["columns"]] == [*frame["columns"]]


def test_frames_of_1x_keep_their_names(shell: Shell) -> None:
    assert lost(public_names.live_names_of_1x(shell)) == []


@pytest.mark.parametrize(
    ("now", "loss"),
    [
        ({"a": {"b": ["x", "y", "z"], "c": 1}, "d": 2}, []),
        ({"a": {"b": ["x"], "c": 1}}, [" > a > b > y: missing"]),
        ({"a": {"b": ["x", "y"]}}, [" > a > c: missing"]),
        ({"a": {"b": ["x", "y"], "c": 2}}, [" > a > c: was 1, is 2"]),
        ({"a": {"b": "x", "c": 1}}, [" > a > b: was ['x', 'y'], is 'x'"]),
        ({}, [" > a: missing"]),
    ],
)
def test_a_missing_name_is_noticed_and_a_new_one_is_allowed(now: Any, loss: list[str]) -> None:
    assert [*missing({"a": {"b": ["x", "y"], "c": 1}}, now)] == loss
