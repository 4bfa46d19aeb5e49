"""The help magic: a table of all magics, or the full help of one."""

from __future__ import annotations

import difflib
import inspect
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from .options import documented_arguments, with_parsed_options
from .topic import Topic


@dataclass(frozen=True, slots=True)
class MagicHelp:
    """The help of one magic.

    Attributes:
        name: The name as it is typed, with % or %%.
        topic: The heading of its group.
        text: The full help: description, examples, options.
    """

    name: str
    topic: str
    text: str

    @property
    def gives(self) -> str:
        """The first line of the help: what the magic returns or shows."""
        return self.text.partition("\n")[0]

    def __repr__(self) -> str:
        return f"{self.name}\n\n{self.text}"

    def _repr_html_(self) -> str:
        return f"<b><code>{escape(self.name)}</code></b><pre>{escape(self.text)}</pre>"


@dataclass(frozen=True, slots=True)
class Overview:
    """All magics, grouped by topic."""

    magics: tuple[MagicHelp, ...]

    def _by_topic(self) -> Iterator[tuple[str, list[MagicHelp]]]:
        for topic in dict.fromkeys(magic.topic for magic in self.magics):
            yield topic, [magic for magic in self.magics if magic.topic == topic]

    def __repr__(self) -> str:
        width = max(len(magic.name) for magic in self.magics)
        lines: list[str] = []
        for topic, magics in self._by_topic():
            lines += ["", topic, *(f"  {m.name:<{width}}  {m.gives}" for m in magics)]
        return "\n".join([*lines[1:], "", _FOOTER])

    def _repr_html_(self) -> str:
        rows = "".join(_topic_rows(topic, magics) for topic, magics in self._by_topic())
        return f"<table>{rows}</table><p>{escape(_FOOTER)}</p>"


_FOOTER = "%oc_help NAME, or NAME?, shows the full help of a magic: options and examples."
_LEFT = ' style="text-align:left"'


def _topic_rows(topic: str, magics: list[MagicHelp]) -> str:
    head = f'<tr><th colspan="2"{_LEFT}>{escape(topic)}</th></tr>'
    rows = (
        f"<tr><td{_LEFT}><code>{escape(m.name)}</code></td><td{_LEFT}>{escape(m.gives)}</td></tr>"
        for m in magics
    )
    return head + "".join(rows)


def overview() -> Overview:
    """Return the help of all magics of this package."""
    from . import TOPICS

    return Overview(tuple(magic for topic in TOPICS for magic in _magics_of(topic)))


def _magics_of(topic: type[Topic]) -> Iterator[MagicHelp]:
    title = inspect.cleandoc(topic.__doc__ or "").partition("\n")[0]
    for name in dict.fromkeys([*topic.magics["cell"], *topic.magics["line"]]):
        sign = "%%" if name in topic.magics["cell"] else "%"
        yield MagicHelp(f"{sign}{name}", title, inspect.cleandoc(getattr(topic, name).__doc__))


@magics_class
class HelpMagics(Topic):
    """Help"""

    @documented_arguments
    @argument("magic", nargs="?", help="Name of a magic, with or without %%; default: all magics.")
    @line_magic
    @with_parsed_options
    def oc_help(self, options: Namespace) -> Overview | MagicHelp:
        """A table of all magics of this package, or the full help of one.

        An unknown name fails with a suggestion.

        Example::

            %oc_help

            %oc_help oc_prompt
        """
        all_magics = overview()
        if options.magic is None:
            return all_magics
        by_name = {magic.name.lstrip("%"): magic for magic in all_magics.magics}
        typed = options.magic.lstrip("%").removesuffix("?")
        for name in (typed, f"oc_{typed}"):
            if name in by_name:
                return by_name[name]
        close = difflib.get_close_matches(f"oc_{typed.removeprefix('oc_')}", by_name, n=1)
        hint = f" Did you mean {by_name[close[0]].name}?" if close else ""
        raise UsageError(f"No magic {options.magic!r}.{hint} %oc_help lists all magics.")
