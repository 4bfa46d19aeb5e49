"""Formatting of numbers and texts for people."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.sample_turns import answer, turn

import opencode_magics
from opencode_magics.core.formatting import (
    format_usd,
    in_one_line,
    pluralize,
    seconds_between,
    shorten,
    without_middle,
)
from opencode_magics.core.model import Usage


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "cost unknown"),
        (0.0, "$0"),
        (0.0000041, "$0.0000041"),
        (0.000267, "$0.00027"),
        (0.002669999999999999, "$0.0027"),
        (0.0139, "$0.0139"),
        (0.05, "$0.05"),
        (0.5, "$0.50"),
        (12, "$12.00"),
        (12.5, "$12.50"),
        (1234.567, "$1,234.57"),
        (-0.25, "-$0.25"),
    ],
)
def test_money_is_readable_and_never_rounded_to_nothing(cost: float | None, text: str) -> None:
    assert format_usd(cost) == text


@pytest.mark.parametrize(
    ("cost", "beside", "text"),
    [
        (1.0001, 1.0, "$1.0001"),
        (0.00501, 0.005, "$0.00501"),
        (0.5, 0.5, "$0.50"),
        (2.0, 1.0, "$2.00"),
        (1 + 1e-12, 1.0, "$1.00"),
    ],
)
def test_two_close_amounts_are_distinguishable(cost: float, beside: float, text: str) -> None:
    assert format_usd(cost, beside) == text


def test_a_tiny_cost_is_shown() -> None:
    assert "$0.00004," in repr(turn(answer(usage=Usage(9, 1, 0, 0, 0, 0.00004))))


def test_dollars_are_written_in_one_place() -> None:
    """The axes of plots are an exception: all their labels have the same digits."""
    package = Path(opencode_magics.__file__).parent
    places = [p for p in package.rglob("*.py") if re.search(r"\$\{", p.read_text("utf-8"))]
    assert {p.name for p in places} == {"formatting.py"}


def test_a_count_has_its_noun() -> None:
    assert [pluralize(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]


@pytest.mark.parametrize(
    ("start", "end", "seconds"), [(0, 1500, 1.5), (None, 1, None), (1, None, None), (2, 1, None)]
)
def test_reversed_times_have_no_duration(
    start: int | None, end: int | None, seconds: float | None
) -> None:
    assert seconds_between(start, end) == seconds


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [("", 0, ""), ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a bcd", 3, "a…"), ("ab", 0, "…")],
)
def test_a_text_is_cut_to_a_limit_and_shows_it(text: str, limit: int, shown: str) -> None:
    assert shorten(text, limit) == shown


def test_a_text_in_one_line_has_single_spaces() -> None:
    assert in_one_line("  a\n\tb  c\n", 5) == "a b c"
    assert in_one_line("a\nb c", 4) == "a b…"


def test_a_long_text_says_how_much_of_its_middle_is_left_out() -> None:
    short = without_middle("a" * 8 + "b" * 90 + "c" * 2, 10)
    assert short == "aaaaaaaa\n… 90 characters left out …\ncc"
    assert without_middle("a" * 10, 10) == "a" * 10
    assert without_middle("a" * 12, 10, "[{} more]") == "aaaaaaaa\n[2 more]\naa"
