"""`%oc_help` lists every magic, and the help of each one follows the same rules."""

from __future__ import annotations

import re

import pytest
from support.ipython_shell import Shell

from opencode_magics.magics import TOPICS
from opencode_magics.magics.help import MagicHelp, Overview, overview
from opencode_magics.magics.state import OpenCodeMagics

MAGICS = {magic.name.lstrip("%"): magic for magic in overview().magics}


def test_every_registered_magic_is_in_the_table(alone: Shell) -> None:
    registered = alone.magics_manager.magics
    names = {n for kind in ("line", "cell") for n in registered[kind] if n.startswith("oc_")}
    table = alone.run("table = %oc_help\ntable").value
    assert isinstance(table, Overview)
    assert [m.name for m in table.magics] == [*dict.fromkeys(m.name for m in table.magics)]
    assert {m.name.lstrip("%") for m in table.magics} == names
    for magic in table.magics:
        line = f"  {magic.name} .*{re.escape(magic.gives)}$"
        assert re.search(line, repr(table), re.MULTILINE)
        assert table._repr_html_().count(f"<code>{magic.name}</code>") == 1


def test_a_cell_magic_is_listed_with_two_percent_signs() -> None:
    assert MAGICS["oc_prompt"].name == "%%oc_prompt"
    assert MAGICS["oc_turn"].name == "%oc_turn"


def test_the_table_is_grouped_by_topic() -> None:
    lines = repr(overview()).splitlines()
    titles = [line for line in lines if line and not line.startswith((" ", "%"))]
    assert len(titles) == len({*titles}) == len(TOPICS)
    assert lines[lines.index("Talk to an agent") + 1].startswith("  %%oc_prompt ")


@pytest.mark.parametrize("name", ["oc_usage", "%oc_usage", "usage", "%oc_usage?"])
def test_one_magic_is_shown_in_full(alone: Shell, name: str) -> None:
    magic_help = alone.run(f"%oc_help {name}").value
    assert isinstance(magic_help, MagicHelp)
    assert magic_help.text == MAGICS["oc_usage"].text
    assert "--since SINCE" in repr(magic_help)
    assert "&quot;" not in magic_help.gives
    assert "--since SINCE" in magic_help._repr_html_()


def test_a_cell_magic_is_found_by_its_full_name(alone: Shell) -> None:
    assert alone.run("%oc_help %%oc_prompt").value.name == "%%oc_prompt"


def test_an_unknown_magic_fails_with_a_suggestion(alone: Shell) -> None:
    assert "Did you mean %oc_usage?" in alone.fails("%oc_help oc_usag").text


IMPERATIVES = re.compile(
    "(Add|Answer|Archive|Ask|Bring|Choose|Connect|Copy|Draw|End|Follow|Get|Give|Have|List|Load|Make|"
    "Play|Print|Read|Record|Rename|Replay|Run|Send|Set|Show|Start|Stop|Take|Tell|Use|Write) "
)


@pytest.mark.parametrize("name", sorted(MAGICS))
def test_the_help_begins_with_what_the_magic_returns(name: str) -> None:
    """The first sentence is a noun phrase on one line, not an imperative."""
    first, blank, *_ = MAGICS[name].text.splitlines()
    assert re.fullmatch(r"[A-Z].{15,}[.:]", first)
    assert not blank
    assert not IMPERATIVES.match(first)


@pytest.mark.parametrize("name", sorted(MAGICS))
def test_every_option_has_help(name: str) -> None:
    topic = next(t for t in TOPICS if hasattr(t, name))
    for action in getattr(topic, name).parser._actions:
        assert action.help, f"%{name}: {action.dest} has no help"


# -- options ---------------------------------------------------------------------------------------

OPTIONS = OpenCodeMagics.class_traits(config=True)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_config_describes_every_option(alone: Shell, name: str) -> None:
    listing = alone.run("%config OpenCodeMagics").text
    _, entry, rest = listing.partition(f"OpenCodeMagics.{name}=")
    assert entry
    assert OPTIONS[name].help
    assert OPTIONS[name].help.split()[0] in rest.partition("OpenCodeMagics.")[0]
