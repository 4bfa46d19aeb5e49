"""The parts of a tier together are the tier."""

from __future__ import annotations

import pytest
from support import tiers


def test_every_test_is_in_one_part() -> None:
    tests = [*range(20)]
    parts = [tiers.in_part(tests, number, 6) for number in range(1, 7)]
    assert sorted(test for part in parts for test in part) == tests
    assert {len(part) for part in parts} == {3, 4}


def test_a_part_has_a_number_and_a_count() -> None:
    assert tiers.part("2/6") == (2, 6)


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/", ""])
def test_other_text_is_not_a_part(text: str) -> None:
    with pytest.raises(ValueError):
        tiers.part(text)
