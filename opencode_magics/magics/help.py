"""The magic about the magics: all of them in a table, or one of them in full."""

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
        name: As it is typed, with its % or %%.
        topic: What it belongs to.
        text: All of it: what one gets, examples, options.
    """

    name: str
    topic: str
    text: str

    @property
    def gives(self) -> str:
        """What one gets, in a line."""
        return self.text.partition("\n")[0]

    def __repr__(self) -> str:
        return f"{self.name}\n\n{self.text}"

    def _repr_html_(self) -> str:
        return f"<b><code>{escape(self.name)}</code></b><pre>{escape(self.text)}</pre>"


@dataclass(frozen=True, slots=True)
class Overview:
    """All magics, by topic."""

    magics: tuple[MagicHelp, ...]

    def _by_topic(self) -> Iterator[tuple[str, list[MagicHelp]]]:
        for topic in dict.fromkeys(magic.topic for magic in self.magics):
            yield topic, [magic for magic in self.magics if magic.topic == topic]

    def __repr__(self) -> str:
        width = max(len(magic.name) for magic in self.magics)
        lines: list[str] = []
        for topic, magics in self._by_topic():
            lines += ["", topic, *(f"  {m.name:<{width}}  {m.gives}" for m in magics)]
        return "\n".join([*lines[1:], "", _MORE])

    def _repr_html_(self) -> str:
        rows = "".join(_topic(topic, magics) for topic, magics in self._by_topic())
        return f"<table>{rows}</table><p>{escape(_MORE)}</p>"


_MORE = "%oc_help NAME tells all about one: options, errors, examples. So does a ? behind its name."
_LEFT = ' style="text-align:left"'


def _topic(topic: str, magics: list[MagicHelp]) -> str:
    head = f'<tr><th colspan="2"{_LEFT}>{escape(topic)}</th></tr>'
    rows = (
        f"<tr><td{_LEFT}><code>{escape(m.name)}</code></td><td{_LEFT}>{escape(m.gives)}</td></tr>"
        for m in magics
    )
    return head + "".join(rows)


def overview() -> Overview:
    """All magics of this package."""
    from . import TOPICS

    return Overview(tuple(magic for topic in TOPICS for magic in _magics(topic)))


def _magics(topic: type[Topic]) -> Iterator[MagicHelp]:
    title = inspect.cleandoc(topic.__doc__ or "").partition("\n")[0]
    for name in dict.fromkeys([*topic.magics["cell"], *topic.magics["line"]]):
        sign = "%%" if name in topic.magics["cell"] else "%"
        yield MagicHelp(f"{sign}{name}", title, inspect.cleandoc(getattr(topic, name).__doc__))


@magics_class
class HelpMagics(Topic):
    """Help"""

    @documented_arguments
    @argument("magic", nargs="?", help="Name of a magic, with or without its %%; default: all.")
    @line_magic
    @with_parsed_options
    def oc_help(self, options: Namespace) -> Overview | MagicHelp:
        """The magics of this package in a table, one line each; or the whole help of one.

        A name that no magic has is told, with the one that may be meant.

        Example::

            %oc_help

            %oc_help oc_prompt
        """
        every = overview()
        if options.magic is None:
            return every
        known = {magic.name.lstrip("%"): magic for magic in every.magics}
        named = options.magic.lstrip("%").removesuffix("?")
        for name in (named, f"oc_{named}"):
            if name in known:
                return known[name]
        close = difflib.get_close_matches(f"oc_{named.removeprefix('oc_')}", known, n=1)
        hint = f" Did you mean {known[close[0]].name}?" if close else ""
        raise UsageError(f"There is no magic {options.magic!r}.{hint} %oc_help lists them all.")
