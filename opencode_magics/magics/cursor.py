"""Where in a line of a magic the cursor is: whose value is being typed there.

Reads words as `options` does, except that a line which is still typed may end in an open quote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_WORD = re.compile(r"""(?:--?[\w-]+=)?(?:"[^"]*(?:"(?=\s|$)|$)|'[^']*(?:'(?=\s|$)|$))|\S+""")


@dataclass(frozen=True, slots=True)
class CursorContext:
    """Where the cursor is.

    Attributes:
        dest: The option or argument whose value is typed; None if there is none. "text" is what
            follows the arguments of a magic that takes free text.
        typed: What is typed of the value, its quote included.
        words: The same, with those words before it that may be parts of the same title.
        options: Whether an option may begin here.
        used: The options that the line has already.
    """

    dest: str | None
    typed: str
    words: str
    options: bool = False
    used: frozenset[str] = frozenset()


def cursor_context(magic: Any, text: str, *, verbatim: bool = False) -> CursorContext:
    """What the end of a line is about.

    Args:
        magic: A magic with a parser.
        text: Its line behind the name, up to the cursor.
        verbatim: Free text follows the arguments.
    """
    known = magic.parser._option_string_actions
    arguments = [a for a in magic.parser._actions if not a.option_strings]
    words = [*_WORD.finditer(text)]
    start = words.pop().start() if words and words[-1].end() == len(text) else len(text)
    used: set[str] = set()
    run: int | None = None  # where the words began that no option interrupts
    count, waiting = 0, None  # arguments so far; the option that waits for its value
    for word in words:
        name, equals, _ = word[0].partition("=")
        if waiting:
            waiting = None
        elif name in known:
            used |= {*known[name].option_strings}
            waiting = known[name] if known[name].nargs != 0 and not equals else None
            run = None
        else:
            count += 1
            run = word.start() if run is None or count <= len(arguments) else run
            if verbatim and count >= len(arguments):
                last = re.search(r"\S*$", text)
                assert last
                return CursorContext("text" if arguments else None, last[0], last[0])
    typed = text[start:]
    if waiting:
        return CursorContext(waiting.dest, typed, typed)
    name, equals, value = typed.partition("=")
    if equals and name in known:
        return CursorContext(known[name].dest, value, value)
    if count < len(arguments):
        dest, run = arguments[count].dest, None
    elif arguments and arguments[-1].nargs == "*":
        dest = arguments[-1].dest
    else:
        dest = None
    whole = text[start if run is None else run :]
    return CursorContext(dest, typed, whole, options=True, used=frozenset(used))
