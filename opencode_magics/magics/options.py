"""Parse the line of a magic: options as in a shell, free text exactly as typed.

IPython's `parse_argstring` (9.18) keeps quotes, splits `--title="a b"` in two, fails on a single
apostrophe and has no -h. Here, only quotes around a complete value have a meaning.
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

from ..errors import TurnInterrupted

T = TypeVar("T")

# A closing quote must be at the end of a word, so that an apostrophe is an ordinary character.
_TOKEN = re.compile(r"""\s*(?:(--?[\w-]+=)?(?:"([^"]*)"|'([^']*)')(?=\s|$)|(\S+))""")


class Quoted(str):
    """A word that was in quotes."""


def documented_arguments(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Apply IPython's `magic_arguments`, but keep the description above the usage in the help."""
    description = inspect.cleandoc(magic.__doc__ or "")
    magic.__doc__ = None  # magic_arguments would put it below the usage
    documented: Callable[..., Any] = magic_arguments()(magic)
    usage = (documented.__doc__ or "").removeprefix("::\n\n").strip("\n")
    documented.__doc__ = f"{description}\n\nUsage::\n\n  {usage.strip()}\n"
    return documented


# -- options that several magics share -------------------------------------------------------------


def _combine(*options: Any) -> Callable[[Any], Any]:
    def add(magic: Any) -> Any:
        for option in reversed(options):
            magic = option(magic)
        return magic

    return add


_SESSION_HELP = "Id, beginning of an id, or title; default: the current session."
session_argument = argument("session", nargs="*", help=_SESSION_HELP)
session_option = argument("-s", "--session", help=_SESSION_HELP)
target_options = _combine(
    session_option,
    argument("-n", "--new", action="store_true", help="Use a new session and make it current."),
    argument("--title", help="Use a new session with this title and make it current."),
)
variant_option = argument("--variant", help="Variant of the model, such as high or low.")
file_option = argument(
    "--file", action="append", default=[], help="File to attach; may be repeated."
)
schema_options = _combine(
    argument(
        "--schema",
        metavar="MODEL",
        help="Schema of the answer: a variable with a JSON Schema, a dataclass or an example, or a "
        ".json file.",
    ),
    argument(
        "--retries",
        type=int,
        default=2,
        help="With --schema: how often to ask again after an invalid answer; default: 2.",
    ),
)
permission_option = argument(
    "--permission", help="ask, once or reject; default: OpenCodeMagics.permission."
)
turn_options = _combine(
    argument("-o", "--out", help="Variable to store the turn in."),
    permission_option,
    argument(
        "--timeout",
        type=float,
        help="End the cell after this many seconds; the turn continues on the server.",
    ),
)
queue_option = argument(
    "--queue", action="store_true", help="Wait in the queue if the session is busy."
)
no_wait_option = argument(
    "--no-wait", action="store_true", help="Send without waiting; the turn runs on the server."
)


# -- parsing ---------------------------------------------------------------------------------------


def with_parsed_options(
    magic: Callable[[Any, argparse.Namespace], T],
) -> Callable[[Any, str], T | None]:
    """Make a line magic from a function of its parsed options; -h prints the help instead."""

    @functools.wraps(magic)
    def parse_and_call(self: Any, line: str) -> T | None:
        options = parse(getattr(self, magic.__name__), line)
        try:
            return None if options is None else magic(self, options)
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, TurnInterrupted):
                raise
            raise TurnInterrupted("Interrupted.") from None

    return parse_and_call


def parse(magic: Callable[..., Any], line: str) -> argparse.Namespace | None:
    """Parse the options and arguments of a line; print the help and return None for -h.

    Raises:
        UsageError: The line is invalid.
    """
    return split(magic, line)[0]


def split(
    magic: Callable[..., Any], line: str, *, verbatim: bool = False
) -> tuple[argparse.Namespace | None, str]:
    """Parse a line as `parse` does; with `verbatim`, leave the text after the options as typed.

    Returns:
        The options, or None for -h, and the text ("" without `verbatim`).

    Raises:
        UsageError: The line is invalid.
    """
    argv, rest = _to_argv(magic, line, verbatim)
    if argv is None:
        print(magic.__doc__)
        return None, ""
    parser: Any = magic.parser  # type: ignore[attr-defined]  # set by magic_arguments
    options = parser.parse_args(argv)
    _check_session(options)
    _check_seconds(options)
    return options, rest


def _check_session(options: argparse.Namespace) -> None:
    """Reject an empty session name: it comes from an empty variable, not from a missing option.

    Raises:
        UsageError: The name of a session is empty.
    """
    session = getattr(options, "session", None)
    if any(not name.strip() for name in ([session] if isinstance(session, str) else session or [])):
        raise UsageError("The name of a session is empty. Give an id or a title.")


def _check_seconds(options: argparse.Namespace) -> None:
    """Check that durations are not negative, and not NaN, which would never end.

    Raises:
        UsageError: A duration is negative or NaN.
    """
    for name in ("timeout", "seconds"):
        duration = getattr(options, name, None)
        if duration is not None and not duration >= 0:
            raise UsageError(f"--{name} must be 0 or more seconds, not {duration:g}.")


def _to_argv(magic: Callable[..., Any], line: str, verbatim: bool) -> tuple[list[str] | None, str]:
    options: list[str] = []
    words: list[str] = []
    rest = line
    while rest.strip():
        token, quoted, after = _next_token(rest)
        if token in ("-h", "--help") and not quoted:
            return None, ""
        if token == "--" and not quoted:
            rest = after
            break
        if token.startswith("-") and token != "-" and not quoted:
            option, rest = _join_option(magic, token, after)
            options.append(option)
        elif verbatim:
            break
        else:
            words.append(Quoted(token) if quoted else token)
            rest = after
    if verbatim:
        return options, rest.lstrip(" \t")
    while rest.strip():
        token, quoted, rest = _next_token(rest)
        words.append(Quoted(token) if quoted else token)
    dashed = any(word.startswith("-") for word in words)
    return options + ["--"] * dashed + words, ""


def _next_token(text: str) -> tuple[str, bool, str]:
    """Return the next token without quotes, whether it was fully quoted, and the remaining text."""
    match = _TOKEN.match(text)
    if match is None:
        return "", False, ""
    prefix, double, single, plain = match.groups()
    if plain is not None:
        return plain, False, text[match.end() :]
    value = double if double is not None else single
    return (prefix or "") + value, not prefix, text[match.end() :]


def _join_option(magic: Callable[..., Any], token: str, after: str) -> tuple[str, str]:
    """Return an option as one `--name=value` word, and the remaining text.

    Argparse accepts a value that is empty or begins with a dash only in this form.
    """
    actions: dict[str, argparse.Action] = magic.parser._option_string_actions  # type: ignore[attr-defined]
    name, equals, value = token.partition("=")
    action = _find_action(magic, actions, name)
    long = next((n for n in action.option_strings if n.startswith("--")), name)
    if action.nargs == 0:
        if equals:
            raise UsageError(f"{name} takes no value (see %{magic.__name__} -h)")
        return long, after
    quoted = bool(equals)
    if not equals:
        value, quoted, after = _next_token(after)
    # argparse drops "--" even if it is a value (Python 3.11).
    if value == "--" or (not quoted and (not value or value in actions)):
        raise UsageError(f"{name} needs a value (see %{magic.__name__} -h)")
    return f"{long}={value}", after


def _find_action(
    magic: Callable[..., Any], actions: dict[str, argparse.Action], name: str
) -> argparse.Action:
    if name in actions:
        return actions[name]
    known = sorted(n for n in actions if n.startswith("--"))
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UsageError(
        f"%{magic.__name__} has no option {name}.{hint} It has: {', '.join(known) or 'none'}. "
        "Put text that begins with a dash after --"
    )


def check_turn_options(options: argparse.Namespace) -> None:
    """Check -o and --permission, which all magics that follow a turn share.

    Raises:
        UsageError: One of them is invalid.
    """
    check_out(options)
    if options.permission not in (None, "ask", "once", "reject"):
        raise UsageError(f"--permission takes ask, once or reject, not {options.permission!r}.")


def check_out(options: argparse.Namespace) -> None:
    """Check -o.

    Raises:
        UsageError: It is not a valid variable name.
    """
    if options.out and (not options.out.isidentifier() or iskeyword(options.out)):
        raise UsageError(f"-o takes a variable name, not {options.out!r}.")


def session_names(names: list[str]) -> list[str]:
    """Split a list of sessions: one per id or quoted title; otherwise all words form one title.

    Raises:
        UsageError: Only some of the words are ids or quoted. A title may contain quotes, and the
            text inside them may be the title of another session.
    """
    separate = [isinstance(name, Quoted) or name.startswith("ses_") for name in names]
    if any(separate) and not all(separate):
        raise UsageError(
            "Ambiguous session list. Give ids, or quote each title; put a title that contains "
            "quotes in quotes of the other kind."
        )
    return names if any(separate) or not names else [" ".join(names)]
