"""Reads the argument line of a magic: options as in a shell, free text as it was typed.

IPython's own `parse_argstring` keeps quote marks, splits `--title="a b"` in two, fails on a lone
apostrophe and knows no -h (9.18). Here quotes count only around a whole value.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import inspect
import re
from collections.abc import Callable
from keyword import iskeyword
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments

T = TypeVar("T")

# A value in quotes must end where a word ends, so that an apostrophe is a character.
_TOKEN = re.compile(r"""\s*(?:(--?[\w-]+=)?(?:"([^"]*)"|'([^']*)')(?=\s|$)|(\S+))""")


class Quoted(str):
    """A word that stood in quotes."""


def documented_arguments(magic: Callable[..., Any]) -> Callable[..., Any]:
    """IPython's `magic_arguments`, with the help a person wants: first what the magic gives."""
    told = inspect.cleandoc(magic.__doc__ or "")
    magic.__doc__ = None  # else it would stand behind the usage
    documented: Callable[..., Any] = magic_arguments()(magic)
    usage = (documented.__doc__ or "").removeprefix("::\n\n").strip("\n")
    documented.__doc__ = f"{told}\n\nUsage::\n\n  {usage.strip()}\n"
    return documented


# -- options that several magics have --------------------------------------------------------------


def _together(*options: Any) -> Callable[[Any], Any]:
    def add(magic: Any) -> Any:
        for option in reversed(options):
            magic = option(magic)
        return magic

    return add


_named = "Id, beginning of an id, or title; default: the current"
session_argument = argument("session", nargs="*", help=f"{_named}.")
session_option = argument("-s", "--session", help=f"{_named} one.")
target_options = _together(
    session_option,
    argument("-n", "--new", action="store_true", help="In a new session, which becomes current."),
    argument("--title", help="Make a new session with this title, as --new does."),
)
variant_option = argument("--variant", help="Variant of the model, such as high or low.")
file_option = argument(
    "--file", action="append", default=[], help="File to attach; may be repeated."
)
schema_options = _together(
    argument(
        "--schema",
        metavar="MODEL",
        help="Variable or .json file with what the answer has to look like: a JSON Schema, a "
        "dataclass, an example.",
    ),
    argument(
        "--retries",
        type=int,
        default=2,
        help="With --schema: how often to ask again for an answer that fits; default 2.",
    ),
)
permission_option = argument(
    "--permission", help="ask, once or reject; default: OpenCodeMagics.permission."
)
turn_options = _together(
    argument("-o", "--out", help="Variable to keep the turn in."),
    permission_option,
    argument("--timeout", type=float, help="End the cell after so many seconds; the turn goes on."),
)
queue_option = argument(
    "--queue", action="store_true", help="Line up if the session works on another prompt."
)
no_wait_option = argument(
    "--no-wait", action="store_true", help="Only send; the turn runs on the server."
)


# -- reading them ----------------------------------------------------------------------------------


def with_parsed_options(
    magic: Callable[[Any, argparse.Namespace], T],
) -> Callable[[Any, str], T | None]:
    """A line magic that gets its options read; after -h, which prints the help, it isn't run."""

    @functools.wraps(magic)
    def read_first(self: Any, line: str) -> T | None:
        options = parse(getattr(self, magic.__name__), line)
        return None if options is None else magic(self, options)

    return read_first


def parse(magic: Callable[..., Any], line: str) -> argparse.Namespace | None:
    """The options and arguments of a line; None after -h, when the help was printed.

    Raises:
        UsageError: They don't fit.
    """
    return split(magic, line)[0]


def split(
    magic: Callable[..., Any], line: str, *, verbatim: bool = False
) -> tuple[argparse.Namespace | None, str]:
    """Options, and with `verbatim` the text that follows them, exactly as typed.

    Raises:
        UsageError: The options don't fit.
    """
    argv, rest = _argv(magic, line, verbatim)
    if argv is None:
        print(magic.__doc__)
        return None, ""
    parser: Any = magic.parser  # type: ignore[attr-defined]  # set by magic_arguments
    options = parser.parse_args(argv)
    _check_session(options)
    _check_seconds(options)
    return options, rest


def _check_session(options: argparse.Namespace) -> None:
    """What is named by an empty text, as an empty variable leaves it, is not the current session.

    Raises:
        UsageError: A session is named so.
    """
    given = getattr(options, "session", None)
    if any(not name.strip() for name in ([given] if isinstance(given, str) else given or [])):
        raise UsageError("The name of a session is empty. Give an id or a title.")


def _check_seconds(options: argparse.Namespace) -> None:
    """No time is over before it begins, and NaN would never be over.

    Raises:
        UsageError: One is.
    """
    for name in ("timeout", "seconds"):
        told = getattr(options, name, None)
        if told is not None and not told >= 0:
            raise UsageError(f"--{name} takes a number of seconds, not {told:g}")


def _argv(magic: Callable[..., Any], line: str, verbatim: bool) -> tuple[list[str] | None, str]:
    options: list[str] = []
    words: list[str] = []
    rest = line
    while rest.strip():
        token, quoted, after = _next(rest)
        if token in ("-h", "--help") and not quoted:
            return None, ""
        if token == "--" and not quoted:
            rest = after
            break
        if token.startswith("-") and token != "-" and not quoted:
            option, rest = _option(magic, token, after)
            options.append(option)
        elif verbatim:
            break
        else:
            words.append(Quoted(token) if quoted else token)
            rest = after
    if verbatim:
        return options, rest.lstrip(" \t")
    while rest.strip():
        token, quoted, rest = _next(rest)
        words.append(Quoted(token) if quoted else token)
    dashed = any(word.startswith("-") for word in words)
    return options + ["--"] * dashed + words, ""


def _next(text: str) -> tuple[str, bool, str]:
    """The next token without its quotes, whether it was quoted as a whole, and what follows."""
    found = _TOKEN.match(text)
    if found is None:
        return "", False, ""
    prefix, double, single, plain = found.groups()
    if plain is not None:
        return plain, False, text[found.end() :]
    value = double if double is not None else single
    return (prefix or "") + value, not prefix, text[found.end() :]


def _option(magic: Callable[..., Any], token: str, after: str) -> tuple[str, str]:
    """One option with its value, in one word as argparse takes it, and what follows.

    In one word, a value may begin with a dash or be empty.
    """
    actions: dict[str, argparse.Action] = magic.parser._option_string_actions  # type: ignore[attr-defined]
    name, equals, value = token.partition("=")
    action = _action(magic, actions, name)
    long = next((n for n in action.option_strings if n.startswith("--")), name)
    if action.nargs == 0:
        if equals:
            raise UsageError(f"{name} takes no value (see %{magic.__name__} -h)")
        return long, after
    quoted = bool(equals)
    if not equals:
        value, quoted, after = _next(after)
    # argparse takes a "--" away even from a value (Python 3.11).
    if value == "--" or (not quoted and (not value or value in actions)):
        raise UsageError(f"{name} needs a value (see %{magic.__name__} -h)")
    return f"{long}={value}", after


def _action(
    magic: Callable[..., Any], actions: dict[str, argparse.Action], name: str
) -> argparse.Action:
    if name in actions:
        return actions[name]
    known = sorted(n for n in actions if n.startswith("--"))
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UsageError(
        f"%{magic.__name__} has no option {name}.{hint} It has: {', '.join(known) or 'none'}. "
        "Text that begins with a dash goes after --"
    )


def check_turn_options(options: argparse.Namespace) -> None:
    """Check -o and --permission, which every magic that plays a turn has.

    Raises:
        UsageError: They can't be what was meant.
    """
    check_out(options)
    if options.permission not in (None, "ask", "once", "reject"):
        raise UsageError(f"--permission takes ask, once or reject, not {options.permission!r}")


def check_out(options: argparse.Namespace) -> None:
    """Check -o.

    Raises:
        UsageError: It is no name of a variable.
    """
    if options.out and (not options.out.isidentifier() or iskeyword(options.out)):
        raise UsageError(f"-o takes the name of a variable, not {options.out!r}")


def session_names(names: list[str]) -> list[str]:
    """Names of sessions: ids and what is in quotes, one each, else one title of several words.

    Raises:
        UsageError: Only some are ids or in quotes: a title may have quotes in it, and what stands
            in them be the title of another session.
    """
    apart = [isinstance(name, Quoted) or name.startswith("ses_") for name in names]
    if any(apart) and not all(apart):
        raise UsageError(
            "It isn't clear which sessions are meant. Give ids, and titles in quotes: "
            "one with quotes in it stands in the others."
        )
    return names if any(apart) or not names else [" ".join(names)]
