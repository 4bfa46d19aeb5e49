"""Every claim that the tests of version 0.1 made is still tested.

`data/claims.txt` lists the test functions of that version by file, without case ids such as
`g1_02`. A line is a name, `name -> new_name` after a renaming, or `name: reason` where the tested
feature is gone.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
LINE = re.compile(r"(?P<name>test_\w+)(?: -> (?P<now>test_\w+)|: (?P<reason>\S.*))?")


class Claim(NamedTuple):
    """A test function of version 0.1, its name today, and why it is gone, if it is."""

    name: str
    now: str | None = None
    reason: str | None = None


def claims(text: str) -> list[Claim]:
    """The claims of a list; lines with the name of a file group them."""
    lines = [line.strip() for line in text.splitlines() if not line.endswith(".py")]
    matches = [(line, LINE.fullmatch(line)) for line in lines]
    assert [line for line, match in matches if match is None] == []
    return [Claim(**match.groupdict()) for _, match in matches if match]


def dropped(listed: list[Claim], names: Counter[str]) -> list[str]:
    """Names of claims that no test makes; the same name in two files needs two tests."""
    unchanged = Counter(c.name for c in listed if c.now is None and c.reason is None)
    renamed = [c.now for c in listed if c.now is not None and c.now not in names]
    return [*(unchanged - names).elements(), *renamed]


def names_of_tests(folder: Path) -> Counter[str]:
    """The names of the test functions in a folder."""
    trees = (ast.parse(file.read_text("utf-8")) for file in sorted(folder.rglob("test_*.py")))
    functions = (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    return Counter(f.name for f in functions if f.name.startswith("test_"))


LISTED = claims((HERE / "data" / "claims.txt").read_text("utf-8"))


def test_no_claim_is_dropped() -> None:
    assert dropped(LISTED, names_of_tests(HERE)) == []


def test_only_a_claim_that_is_gone_has_a_reason() -> None:
    names = names_of_tests(HERE)
    assert [c.name for c in LISTED if c.reason is not None and c.name in names] == []


@pytest.mark.parametrize(
    ("text", "names", "lost"),
    [
        ("a.py\n  test_x\n  test_y", ["test_x", "test_y", "test_z"], []),
        ("a.py\n  test_x\n  test_y", ["test_x"], ["test_y"]),
        ("a.py\n  test_x\nb.py\n  test_x", ["test_x"], ["test_x"]),
        ("a.py\n  test_x -> test_z\n  test_y -> test_z", ["test_z"], []),
        ("a.py\n  test_x -> test_z", ["test_x"], ["test_z"]),
        ("a.py\n  test_x: the feature is gone", [], []),
    ],
)
def test_a_dropped_claim_is_noticed(text: str, names: list[str], lost: list[str]) -> None:
    assert dropped(claims(text), Counter(names)) == lost
