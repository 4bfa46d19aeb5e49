"""The argument line of a magic: options as in a shell, free text as it was typed."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments

from opencode_magics.magics.options import parse, session_names, split


@magic_arguments()
@argument("words", nargs="*", help="Anything.")
@argument("-t", "--title", help="A title.")
@argument("--file", action="append", default=[], help="A file; may be repeated.")
@argument("--limit", type=int, help="A number.")
@argument("-n", "--new", action="store_true", help="A new one.")
def listing(line: str) -> None:
    """List things.

    Example::

        %listing --limit 3
    """


def options(line: str) -> Namespace:
    parsed = parse(listing, line)
    assert parsed is not None
    return parsed


def options_and_text(line: str) -> tuple[Namespace, str]:
    """Return the options and the text of a line that ends in free text."""
    parsed, text = split(listing, line, verbatim=True)
    assert parsed is not None
    return parsed, text


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ['--title "a b"', '--title="a b"', "-t 'a b'", "--title='a b'"])
def test_quotes_group_a_value_and_are_removed(line: str) -> None:
    """`magic_arguments` keeps the quotes and splits `--title="a b"` in two (IPython 9.18).

    Case G3-05.
    """
    parsed = options(f"{line} rest")
    assert (parsed.title, parsed.words) == ("a b", ["rest"])


@pytest.mark.parametrize(
    "value",
    [
        "don't",
        '5"',
        "it's",
        '"',
        "C:\\new\\table.txt",
        "\\\\host\\share\\x",
        "a=b",
        "a;b",
        "{x}",
        "$HOME",
        "ünï",
        "-7d",
    ],
)
def test_a_value_without_spaces_needs_no_quotes(value: str) -> None:
    assert options(f"--title {value} --new").title == value
    assert options(f"--title={value} --new").title == value


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ('--title "C:\\Program Files\\x\\"', "C:\\Program Files\\x\\"),
        ('--title ""', ""),
        ("--title=", ""),
        ('--title "it\'s broken"', "it's broken"),
        ("--title 'say \"hi\" twice'", 'say "hi" twice'),
        ('--title "-x --new"', "-x --new"),
        ('--title "--new"', "--new"),
    ],
)
def test_only_the_quotes_of_a_quoted_value_are_removed(line: str, title: str) -> None:
    parsed = options(line)
    assert (parsed.title, parsed.new, parsed.words) == (title, False, [])


def test_options_may_come_before_between_and_after_words() -> None:
    parsed = options("one --title x two -n three --file a --file 'b c'")
    assert parsed.words == ["one", "two", "three"]
    assert (parsed.title, parsed.new, parsed.file) == ("x", True, ["a", "b c"])


def test_words_after_two_dashes_are_not_options() -> None:
    parsed = options("--new -- --title -x 'a b'")
    assert (parsed.new, parsed.title, parsed.words) == (True, None, ["--title", "-x", "a b"])


def test_a_quoted_word_is_not_an_option() -> None:
    assert options('"--new" "-h"').words == ["--new", "-h"]


@pytest.mark.parametrize(
    "line", ["--title", "-t", "--new --title", "--title --new x", "-t --file x"]
)
def test_a_missing_value_is_an_error(line: str) -> None:
    """Otherwise `-o --no-wait` would store the turn in a variable of that name."""
    with pytest.raises(UsageError, match=r"^(--title|-t) needs a value \(see %listing -h\)$"):
        options(line)


@pytest.mark.parametrize("line", ["--new=yes", "-n=1", "--new="])
def test_a_switch_takes_no_value(line: str) -> None:
    with pytest.raises(UsageError, match="takes no value"):
        options(line)


@pytest.mark.parametrize("line", ["--nope", "--ti x", "-x", "--title-x=3", "-nt x", "---"])
def test_the_error_for_an_unknown_option_lists_all_options(line: str) -> None:
    """Abbreviations are unknown, too: a new option could change their meaning."""
    name = line.split("=")[0].split()[0]
    with pytest.raises(UsageError) as caught:
        options(line)
    assert f"%listing has no option {name}." in str(caught.value)
    assert "It has: --file, --limit, --new, --title." in str(caught.value)


def test_the_error_for_a_misspelled_option_has_a_suggestion() -> None:
    with pytest.raises(UsageError, match="Did you mean --title"):
        options("--titel x")


def test_a_value_of_the_wrong_type_is_an_error() -> None:
    with pytest.raises(UsageError, match="--limit: invalid int value: 'ten'"):
        options("--limit ten")


@magic_arguments()
def bare(line: str) -> None:
    """Take nothing."""


@pytest.mark.parametrize("line", ["word", "-- word", "'-x'"])
def test_an_extra_word_is_an_error(line: str) -> None:
    with pytest.raises(UsageError, match=r"unrecognized arguments: .*(word|-x)"):
        parse(bare, line)


@pytest.mark.parametrize("line", ["-h", "--help", "--new -h", "word --help"])
def test_help_is_printed_and_nothing_else_happens(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case G3-13."""
    assert parse(listing, line) is None
    printed = capsys.readouterr().out
    assert "List things." in printed
    assert "--limit LIMIT" in printed


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("", []),
        ("Fix the login", ["Fix the login"]),
        ("ses_1 ses_2", ["ses_1", "ses_2"]),
        ("'Fix the login'", ["Fix the login"]),
        ("'Fix the login' \"Don't\"", ["Fix the login", "Don't"]),
        ("ses_1 'Fix the login' 'login'", ["ses_1", "Fix the login", "login"]),
        ("-- 'Fix the login' '-x'", ["Fix the login", "-x"]),
        ("\"Rename 'foo' to bar\"", ["Rename 'foo' to bar"]),
        ("Don't Fix's", ["Don't Fix's"]),
    ],
)
def test_sessions_are_named_one_by_one_or_by_one_title(line: str, names: list[str]) -> None:
    assert session_names(options(line).words) == names


@pytest.mark.parametrize(
    "line",
    [
        "Rename 'foo' to bar",
        'it\'s "foo"',
        "'Fix' the 'login'",
        "'a b' 'it's c'",
        "ses_notes for monday",
        "ses_1 login",
        "-- 'Fix the login' -x",
    ],
)
def test_a_title_that_contains_quotes_is_not_split(line: str) -> None:
    with pytest.raises(UsageError, match="Ambiguous session list"):
        session_names(options(line).words)


@magic_arguments()
@argument("session", nargs="*", help="One.")
def with_words(line: str) -> None:
    """Take sessions."""


@magic_arguments()
@argument("-s", "--session", help="One.")
def with_option(line: str) -> None:
    """Take a session."""


@pytest.mark.parametrize(
    ("magic", "line"),
    [
        (with_words, "''"),
        (with_words, "ses_1 ' '"),
        (with_option, "-s ''"),
        (with_option, '--session=" "'),
    ],
)
def test_an_empty_name_is_not_the_current_session(magic: Any, line: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        parse(magic, line)


@magic_arguments()
@argument("--timeout", type=float, help="So long.")
@argument("--seconds", type=float, default=30.0, help="So long.")
def with_seconds(line: str) -> None:
    """Take a time."""


@pytest.mark.parametrize("line", ["--timeout -1", "--timeout nan", "--seconds=nan"])
def test_durations_are_not_negative_or_nan(line: str) -> None:
    with pytest.raises(UsageError, match="0 or more seconds"):
        parse(with_seconds, line)


# -- free text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "it's broken, don't guess",
        'a title with one " quote',
        "why is {12} and $price",
        "trailing blanks   ",
        "two  blanks\tand a tab",
        '"quoted" to begin with',
        "- a list item",
        "x --title y -h",
        "say -- nothing",
        "C:\\new \\",
    ],
)
def test_text_is_taken_as_typed(text: str) -> None:
    """Case G3-06."""
    parsed, received = options_and_text(f"--title 'a b' -n {text}")
    assert received == text
    assert (parsed.title, parsed.new) == ("a b", True)


def test_text_that_begins_with_a_dash_goes_after_two_dashes() -> None:
    assert options_and_text("-n -- -5 is a number")[1] == "-5 is a number"
    with pytest.raises(UsageError, match="Put text that begins with a dash after --"):
        options_and_text("-5 is a number")


# Leading spaces and tabs are not part of the text: they separate it from the options.
texts = st.text().filter(lambda text: text.strip() and text.lstrip(" \t") == text)


@given(texts)
def test_any_text_after_two_dashes_arrives_exactly(text: str) -> None:
    assert options_and_text(f"--title 'a b' -- {text}")[1] == text


@given(texts.filter(lambda text: not text.strip().startswith("-")))
def test_any_text_after_the_options_arrives_exactly(text: str) -> None:
    parsed, received = options_and_text(f'-n --title="a b" {text}')
    assert received == text
    assert parsed.title == "a b"


@given(st.text(alphabet=st.characters(exclude_characters='"')).filter(lambda v: v != "--"))
def test_any_value_in_quotes_arrives_exactly(value: str) -> None:
    assert options(f'--title "{value}"').title == value
