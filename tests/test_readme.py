"""The README is short and true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opencode_magics.magics.help import overview
from opencode_magics.magics.state import OpenCodeMagics
from opencode_magics.practice.world import Practice

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


def test_its_example_in_plain_python_runs(
    practice: Practice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = README.partition("\n## Plain Python\n")[2]
    example = section.partition("```python\n")[2].partition("```")[0]
    assert "http://127.0.0.1:4096" in example
    for name, value in practice.access.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    exec(example.replace("http://127.0.0.1:4096", practice.url), {})
    assert capsys.readouterr().out.startswith("succeeded ")
    assert (tmp_path / "login.jsonl").is_file()
