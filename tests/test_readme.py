"""The README is short and true."""

from __future__ import annotations

import re
from pathlib import Path

from opencode_magics.magics.help import overview
from opencode_magics.magics.state import OpenCodeMagics

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
MAGICS = {magic.name.lstrip("%") for magic in overview().magics}


def test_it_is_short() -> None:
    assert len(README.split()) <= 1000


def test_it_has_ten_magics_in_a_table() -> None:
    table = README.partition("| magic |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `%%?(\w+)", table, re.MULTILINE)
    assert len({*named}) == 10
    assert {*named} <= MAGICS


def test_it_names_no_magic_and_no_option_that_does_not_exist() -> None:
    assert {*re.findall(r"%(oc_\w+)", README)} <= MAGICS
    options = {*re.findall(r"OpenCodeMagics\.(\w+)", README)}
    assert options
    assert options <= {*OpenCodeMagics.class_traits(config=True)}
