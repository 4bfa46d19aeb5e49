"""Find the option or argument at the cursor in the line of a magic.

Splits words as `options` does, but the line may end in an unclosed quote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_WORD = re.compile(r"""(?:--?[\w-]+=)?(?:"[^"]*(?:"(?=\s|$)|$)|'[^']*(?:'(?=\s|$)|$))|\S+""")


@dataclass(frozen=True, slots=True)
class CursorContext:
    """The value that is being typed at the cursor.

    Attributes:
        dest: Name of the option or argument the value is for; None if there is none. "text" is the
            free text after the arguments.
        typed: The part of the value before the cursor, including an opening quote.
        words: `typed` and the words before it that may belong to the same title.
        options: True if an option may start here.
        used: Options that are already in the line.
    """

    dest: str | None
    typed: str
    words: str
    options: bool = False
    used: frozenset[str] = frozenset()


def cursor_context(magic: Any, text: str, *, verbatim: bool = False) -> CursorContext:
    """Return what is being typed at the end of a line.

    Args:
        magic: A magic with a parser.
        text: The line after the magic's name, up to the cursor.
        verbatim: True if free text follows the arguments.
    """
    known = magic.parser._option_string_actions
    arguments = [a for a in magic.parser._actions if not a.option_strings]
    words = [*_WORD.finditer(text)]
    start = words.pop().start() if words and words[-1].end() == len(text) else len(text)
    used: set[str] = set()
    run_start: int | None = None  # start of the latest words without an option between them
    count, pending = 0, None  # arguments so far; the option that still needs its value
    for word in words:
        name, equals, _ = word[0].partition("=")
        if pending:
            pending = None
        elif name in known:
            used |= {*known[name].option_strings}
            pending = known[name] if known[name].nargs != 0 and not equals else None
            run_start = None
        else:
            count += 1
            run_start = word.start() if run_start is None or count <= len(arguments) else run_start
            if verbatim and count >= len(arguments):
                last = re.search(r"\S*$", text)
                assert last
                return CursorContext("text" if arguments else None, last[0], last[0])
    typed = text[start:]
    if pending:
        return CursorContext(pending.dest, typed, typed)
    name, equals, value = typed.partition("=")
    if equals and name in known:
        return CursorContext(known[name].dest, value, value)
    if count < len(arguments):
        dest, run_start = arguments[count].dest, None
    elif arguments and arguments[-1].nargs == "*":
        dest = arguments[-1].dest
    else:
        dest = None
    phrase = text[start if run_start is None else run_start :]
    return CursorContext(dest, typed, phrase, options=True, used=frozenset(used))
