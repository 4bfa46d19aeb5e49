"""Tab completion in lines of our magics: in a shell, in kernels, and where nothing is offered."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter, rectify_completions
from support import kernels
from support.ipython_shell import Shell

from opencode_magics.client.client import Client
from opencode_magics.magics import completion
from opencode_magics.magics.completion import Completer, Suggestion
from opencode_magics.magics.cursor import cursor_context
from opencode_magics.practice.world import Practice


def tab(shell: Shell, cell: str) -> list[str]:
    """Return the cell with each of the completions at its | (or its end) applied."""
    before, _, after = cell.partition("|")
    with provisionalcompleter():
        raw = shell.Completer.completions(before + after, len(before))
        completions = list(rectify_completions(before + after, raw))
    return [f"{before[: c.start]}{c.text}{(before + after)[c.end :]}" for c in completions]


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Check a condition up to 100 times; each check presses Tab once."""
    return any(condition() for _ in range(100))


# -- where the cursor is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("magic", "text", "dest", "typed", "words"),
    [
        ("oc_prompt", "", None, "", ""),
        ("oc_prompt", "--mod", None, "--mod", "--mod"),
        ("oc_prompt", "--model ", "model", "", ""),
        ("oc_prompt", "-m pra", "model", "pra", "pra"),
        ("oc_prompt", "--new -m=pra", "model", "pra", "pra"),
        ("oc_prompt", '--session "paint the', "session", '"paint the', '"paint the'),
        ("oc_prompt", "--session='paint the", "session", "'paint the", "'paint the"),
        ("oc_prompt", '--session "paint it" --agent ', "agent", "", ""),
        ("oc_session", "paint the fe", "session", "fe", "paint the fe"),
        ("oc_session", "paint the ", "session", "", "paint the "),
        ("oc_show", "--last 3 paint t", "session", "t", "paint t"),
        ("oc_show", "paint --last 3 t", "session", "t", "t"),
        ("oc_export", "hi", "path", "hi", "hi"),
        ("oc_export", "history paint t", "session", "t", "paint t"),
        ("oc_export", "--all history ", "session", "", ""),
        ("oc_reply", "per_1 ", "reply", "", ""),
        ("oc_turn", "x", None, "x", "x"),
        ("oc_connect", "x y", None, "y", "x y"),
    ],
)
def test_a_line_is_read_up_to_the_cursor(
    alone: Shell, magic: str, text: str, dest: str | None, typed: str, words: str
) -> None:
    context = cursor_context(alone.find_line_magic(magic), text)
    assert (context.dest, context.typed, context.words) == (dest, typed, words)


@pytest.mark.parametrize(
    ("magic", "text", "dest", "typed"),
    [
        ("oc_prompt", "--agent plan Why ", None, ""),
        ("oc_prompt", "--agent plan Why --mo", None, "--mo"),
        ("oc_command", "rev", "name", "rev"),
        ("oc_command", "--agent plan review gr", "text", "gr"),
        ("oc_command", "review ", "text", ""),
    ],
)
def test_free_text_has_no_options(
    alone: Shell, magic: str, text: str, dest: str | None, typed: str
) -> None:
    context = cursor_context(alone.find_line_magic(magic), text, verbatim=True)
    assert (context.dest, context.typed) == (dest, typed)
    assert context.options == (dest == "name")


# -- in a shell ------------------------------------------------------------------------------------


@pytest.fixture
def titled(shell: Shell, client: Client) -> Iterator[Shell]:
    """A shell that created three sessions with unique titles."""
    for title in ("Paint the fence white", 'Say "don\'t" twice', "Rather say don't"):
        shell.run(f"%oc_new {title}")
    yield shell
    for tracked in completer(shell).state.tracked.values():
        client.run(client.dialect.delete(tracked.session))


def test_options_are_completed(shell: Shell) -> None:
    assert tab(shell, "%%oc_prompt --per") == ["%%oc_prompt --permission"]
    assert tab(shell, "%%oc_prompt --per|\nWhy?") == ["%%oc_prompt --permission\nWhy?"]
    assert tab(shell, "df = %oc_sessions --ro") == ["df = %oc_sessions --roots"]
    completions = tab(shell, "%oc_sessions ")
    assert "%oc_sessions --since" in completions
    assert tab(shell, "%oc_sessions --") == completions


def test_an_option_is_offered_again_only_if_it_may_be_repeated(shell: Shell) -> None:
    assert "%%oc_prompt --new --new" not in tab(shell, "%%oc_prompt --new --")
    assert tab(shell, "%%oc_prompt --file notes.txt --fi") == [
        "%%oc_prompt --file notes.txt --file"
    ]


def test_sessions_are_completed_by_title_and_by_id(titled: Shell) -> None:
    session = titled.run("%oc_session Paint the fence white").value
    for line in ("%oc_abort paint|", "%oc_abort paint the fe|"):
        assert tab(titled, line)[0] == "%oc_abort Paint the fence white"
    assert f"%oc_status {session.id}" in tab(titled, f"%oc_status {session.id[:-3]}")
    assert f"%oc_status {session.id} {session.id}" in tab(
        titled, f"%oc_status {session.id} {session.id[:-3]}"
    )


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("%%oc_prompt --session paint", '%%oc_prompt --session "Paint the fence white"'),
        ("%%oc_prompt --session 'paint the", "%%oc_prompt --session 'Paint the fence white'"),
        ('%%oc_prompt -s "paint|"', '%%oc_prompt -s "Paint the fence white"'),
        ("%oc_usage --session=pain", '%oc_usage --session="Paint the fence white"'),
        ("%oc_session rather", "%oc_session Rather say don't"),
        ("%oc_usage --session rather", '%oc_usage --session "Rather say don\'t"'),
    ],
)
def test_a_completed_title_is_one_value(titled: Shell, line: str, completed: str) -> None:
    assert completed in tab(titled, line)


def test_a_title_that_cannot_be_quoted_is_offered_by_its_id(titled: Shell, client: Client) -> None:
    assert not [line for line in tab(titled, "%%oc_prompt --session say") if "twice" in line]
    (session,) = [s for s in client.sessions() if "twice" in s.title]
    assert f"%%oc_prompt --session {session.id}" in tab(titled, "%%oc_prompt --session ses")


def test_options_are_not_offered_in_place_of_a_title(titled: Shell) -> None:
    assert tab(titled, "%oc_show paint the ") == ["%oc_show Paint the fence white"]
    assert "%oc_show nothing --last" in tab(titled, "%oc_show nothing ")


def test_a_title_of_several_sessions_is_not_offered(titled: Shell) -> None:
    titled.run("%oc_new paint the fence white;")
    assert [t for t in tab(titled, "%oc_session paint") if "fence" in t] == []


def test_variables_are_offered_and_only_tables_for_a_table(shell: Shell) -> None:
    shell.run("import pandas as pd; sales = pd.DataFrame({'a': [1]}); sale_price = 3; _sales = 4")
    for option in ("--var", "--schema"):
        line = f"%%oc_prompt {option} sale"
        assert tab(shell, line) == [f"{line}_price", f"{line}s"]
    assert tab(shell, "%%oc_map sale") == ["%%oc_map sales"]


def test_a_completed_line_runs(titled: Shell) -> None:
    for title in ("Paint the fence white", "Rather say don't"):
        (line, *_) = tab(titled, f"%oc_session {title[:5]}")
        assert titled.run(line).value.title == title


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("%%oc_prompt --model prac", "%%oc_prompt --model practice/scripted"),
        ("%%oc_prompt --agent pl", "%%oc_prompt --agent plan"),
        ("%%oc_prompt --file not", "%%oc_prompt --file notes.txt"),
        ("%%oc_prompt --permission on", "%%oc_prompt --permission once"),
        ("%oc_status --wait a", "%oc_status --wait all"),
        ("%oc_usage --by model,da", "%oc_usage --by model,day"),
        ("%oc_export --format js", "%oc_export --format jsonl"),
        ("%oc_revert --k", "%oc_revert --keep-files"),
        ("%oc_command exp", "%oc_command explain"),
        ("%%oc_command exp", "%%oc_command explain"),
        ("%oc_command explain gr", "%oc_command explain greet.py"),
        ("%oc_help oc_us", "%oc_help oc_usage"),
        ("for x in y:\n    %oc_status --ti", "for x in y:\n    %oc_status --timeout"),
        ("%%time\n%oc_status --ti", "%%time\n%oc_status --timeout"),
    ],
)
def test_values_are_completed(shell: Shell, line: str, completed: str) -> None:
    assert becomes_true(lambda: completed in tab(shell, line))


def test_files_with_blanks_and_folders_are_completed(shell: Shell, workspace: Path) -> None:
    (workspace / "a folder").mkdir()
    (workspace / "a folder" / "notes two.txt").touch()
    assert tab(shell, "%%oc_prompt --file a") == ['%%oc_prompt --file "a folder/']
    assert tab(shell, '%%oc_prompt --file "a folder/n') == [
        '%%oc_prompt --file "a folder/notes two.txt"'
    ]
    assert tab(shell, "%oc_connect --directory a") == ['%oc_connect --directory "a folder/']
    line = "%oc_connect --directory gre"
    assert completer(shell).suggestions(line, 0, len(line))[1] == []


@pytest.mark.parametrize(
    "name", [b"zz\x1b[31m", b"zz\xff", b"zz\r", b"zz\n", "zz\u2028z".encode()], ids=ascii
)
def test_names_that_cannot_be_typed_are_not_offered(
    shell: Shell, workspace: Path, name: bytes
) -> None:
    with open(os.path.join(os.fsencode(workspace), name), "wb"):
        pass
    for line in ("%oc_replay zz", "%oc_replay 'zz", "%%oc_prompt --file zz"):
        assert completer(shell).suggestions(line, 0, len(line))[1] == []


@pytest.mark.parametrize(
    "cell",
    [
        "%%oc_prompt\nprint --ag",
        "%%oc_prompt\n%oc_status --ti",
        "%oc_prompt Why does fix_the --ti",
        "oc_status --ti",
        "%oc_nothing --ti",
        "'%oc_status --ti",
        "%oc_sessio",
    ],
)
def test_nothing_is_offered_elsewhere(shell: Shell, cell: str) -> None:
    row, column = len(cell.split("\n")) - 1, len(cell.split("\n")[-1])
    assert completer(shell).suggestions(cell, row, column)[1] == []


def completer(shell: Shell) -> Completer:
    return Completer(shell, shell.find_line_magic("oc_turn").__self__.state)


# -- servers and errors ----------------------------------------------------------------------------


def test_completion_never_connects(alone: Shell) -> None:
    """The shell has no connection yet, and completing doesn't create one."""
    for line in ("%oc_session ", "%%oc_prompt --model "):
        assert completer(alone).suggestions(line, 0, len(line))[1] == []
        tab(alone, line)
    assert completer(alone).state.connected is None


def test_a_late_answer_is_used_at_the_next_tab(shell: Shell) -> None:
    tested, may_answer = completer(shell), threading.Event()

    def slow(client: Client) -> tuple[Suggestion, ...]:
        may_answer.wait()
        return (Suggestion("late", "word"),)

    assert tested.from_server("x", slow) == ()  # returns before the answer
    may_answer.set()
    assert becomes_true(lambda: tested.from_server("x", slow) == (Suggestion("late", "word"),))


def test_a_server_that_is_down_is_asked_once_without_an_error(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = completer(shell)
    requests = []

    def fail(client: Client) -> tuple[Suggestion, ...]:
        requests.append(client)
        raise ConnectionError

    assert [tested.from_server("x", fail) for _ in range(3)] == [()] * 3
    assert len(requests) == 1
    assert capsys.readouterr() == ("", "")


def test_an_internal_error_is_not_shown(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Completer, "suggestions", broken)
    tab(shell, "%oc_session ")
    assert capsys.readouterr() == ("", "")


def test_answers_of_another_server_are_not_reused(shell: Shell) -> None:
    tested = completer(shell)
    requests: list[Client] = []

    def fetch(client: Client) -> tuple[Suggestion, ...]:
        return (Suggestion(str(requests.append(client)), "x"),)

    tested.from_server("x", fetch)
    tested.from_server("x", fetch)
    shell.run("%oc_connect;")
    tested.from_server("x", fetch)
    assert len(requests) == 2


# -- loading and unloading -------------------------------------------------------------------------


def our_matchers(shell: Shell) -> list[Any]:
    matchers = shell.Completer.custom_matchers
    return [m for m in matchers if m.matcher_identifier == completion._ID]


def test_reloading_keeps_one_matcher_and_unloading_none(alone: Shell) -> None:
    alone.run("%reload_ext opencode_magics\n%reload_ext opencode_magics")
    assert len(our_matchers(alone)) == 1
    alone.run("%unload_ext opencode_magics")
    assert our_matchers(alone) == []


# -- in kernels ------------------------------------------------------------------------------------


def completed(front: kernels.KernelClient, cell: str, column: int) -> list[str]:
    """Return the cell with each of the completions applied."""
    reply = front.complete(cell, column)
    start, end = reply["cursor_start"], reply["cursor_end"]
    return [cell[:start] + match + cell[end:] for match in reply["matches"]]


@pytest.mark.parametrize("version", ["6.31.0", kernels.OURS])
def test_a_kernel_completes(
    version: str, start_kernel: kernels.StartKernel, practice: Practice, workspace: Path
) -> None:
    """The reply to a `complete_request` of a notebook has no Python names in it."""
    with start_kernel(version) as front:
        front.run(f"import os; os.environ.update({json.dumps(practice.access)})")
        front.run(f"os.chdir({str(workspace)!r})")
        front.run("%load_ext opencode_magics")
        front.run("%oc_connect;\n%oc_new Import the data;")
        for cell, column, expected in (
            ("%%oc_prompt --age\nWhy?", 17, ["%%oc_prompt --agent\nWhy?"]),
            ("%oc_session imp", 15, ["%oc_session Import the data"]),
            ("%oc_session import the d", 24, ["%oc_session Import the data"]),
            ("x = %oc_show imp", 16, ["x = %oc_show Import the data"]),
            ("%%oc_prompt --file gr", 21, ["%%oc_prompt --file greet.py"]),
            ("%oc_prompt --model practice/scr", 31, ["%oc_prompt --model practice/scripted"]),
        ):
            assert becomes_true(lambda c=cell, at=column, e=expected: completed(front, c, at) == e)
        front.run("%oc_end --delete;")
