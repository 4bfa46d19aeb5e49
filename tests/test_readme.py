"""The README is short, and what it tells of is there."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from opencode_magics.magics.help import overview
from opencode_magics.magics.state import OpenCodeMagics

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)]+)\)", README)
OPTION_TABLE = README.partition("| option |")[2].partition("\n\n")[0]


def test_it_is_short() -> None:
    assert len(README.split()) < 3000


@pytest.mark.parametrize("name", [magic.name.lstrip("%") for magic in overview().magics])
def test_it_has_every_magic(name: str) -> None:
    assert re.search(rf"^\|.*`%%?{name}\b", README, re.MULTILINE)


def test_it_has_every_option_and_no_other() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", OPTION_TABLE, re.MULTILINE)
    assert sorted(listed) == sorted(OpenCodeMagics.class_traits(config=True))


@pytest.mark.parametrize("link", [link for link in LINKS if "://" not in link])
def test_what_it_links_to_is_there(link: str) -> None:
    assert (ROOT / link).is_file()


@pytest.mark.parametrize("picture", sorted(ROOT.glob("notebooks/pictures/*")), ids=lambda p: p.name)
def test_a_picture_is_small_and_shown(picture: Path) -> None:
    assert picture.stat().st_size < 150_000
    assert str(picture.relative_to(ROOT)) in LINKS


@pytest.mark.parametrize("lesson", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_a_lesson_is_named_here_and_at_the_end_of_the_tour(lesson: Path) -> None:
    assert str(lesson.relative_to(ROOT)) in LINKS
    tour = nbformat.read(ROOT / "notebooks/tour.ipynb", as_version=4)
    assert lesson.stem == "tour" or f"]({lesson.name})" in tour.cells[-1].source
