"""The Tab key in a line of our magics: in a shell, in kernels, and where it must stay still."""

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
    """The cell as it would be with each of the completions at its | (or its end)."""
    before, _, after = cell.partition("|")
    with provisionalcompleter():
        found = shell.Completer.completions(before + after, len(before))
        every = list(rectify_completions(before + after, found))
    return [f"{before[: c.start]}{c.text}{(before + after)[c.end :]}" for c in every]


def until(true: Callable[[], bool]) -> bool:
    """Whether something comes true within some Tabs."""
    return any(true() for _ in range(100))


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
    found = cursor_context(alone.find_line_magic(magic), text)
    assert (found.dest, found.typed, found.words) == (dest, typed, words)


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
    found = cursor_context(alone.find_line_magic(magic), text, verbatim=True)
    assert (found.dest, found.typed) == (dest, typed)
    assert found.options == (dest == "name")


# -- in a shell ------------------------------------------------------------------------------------


@pytest.fixture
def titled(shell: Shell, client: Client) -> Iterator[Shell]:
    """A shell whose notebook has made three sessions, with titles that no others have."""
    for title in ("Paint the fence white", 'Say "don\'t" twice', "Rather say don't"):
        shell.run(f"%oc_new {title}")
    yield shell
    for tracked in completer(shell).state.tracked.values():
        client.run(client.dialect.delete(tracked.session))


def test_options_are_completed(shell: Shell) -> None:
    assert tab(shell, "%%oc_prompt --per") == ["%%oc_prompt --permission"]
    assert tab(shell, "%%oc_prompt --per|\nWhy?") == ["%%oc_prompt --permission\nWhy?"]
    assert tab(shell, "df = %oc_sessions --ro") == ["df = %oc_sessions --roots"]
    every = tab(shell, "%oc_sessions ")
    assert "%oc_sessions --since" in every
    assert tab(shell, "%oc_sessions --") == every


def test_an_option_is_offered_once_if_it_counts_once(shell: Shell) -> None:
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
    ("line", "whole"),
    [
        ("%%oc_prompt --session paint", '%%oc_prompt --session "Paint the fence white"'),
        ("%%oc_prompt --session 'paint the", "%%oc_prompt --session 'Paint the fence white'"),
        ('%%oc_prompt -s "paint|"', '%%oc_prompt -s "Paint the fence white"'),
        ("%oc_usage --session=pain", '%oc_usage --session="Paint the fence white"'),
        ("%oc_session rather", "%oc_session Rather say don't"),
        ("%oc_usage --session rather", '%oc_usage --session "Rather say don\'t"'),
    ],
)
def test_a_completed_title_is_one_value(titled: Shell, line: str, whole: str) -> None:
    assert whole in tab(titled, line)


def test_a_title_that_no_quotes_can_hold_is_offered_by_its_id(
    titled: Shell, client: Client
) -> None:
    assert not [line for line in tab(titled, "%%oc_prompt --session say") if "twice" in line]
    (session,) = [s for s in client.sessions() if "twice" in s.title]
    assert f"%%oc_prompt --session {session.id}" in tab(titled, "%%oc_prompt --session ses")


def test_options_do_not_take_the_place_of_a_title(titled: Shell) -> None:
    assert tab(titled, "%oc_show paint the ") == ["%oc_show Paint the fence white"]
    assert "%oc_show nothing --last" in tab(titled, "%oc_show nothing ")


def test_a_title_that_several_have_is_not_offered(titled: Shell) -> None:
    titled.run("%oc_new paint the fence white;")
    assert [t for t in tab(titled, "%oc_session paint") if "fence" in t] == []


def test_variables_are_offered_and_tables_where_it_takes_one(shell: Shell) -> None:
    shell.run("import pandas as pd; sales = pd.DataFrame({'a': [1]}); sale_price = 3; _sales = 4")
    for option in ("--var", "--schema"):
        line = f"%%oc_prompt {option} sale"
        assert tab(shell, line) == [f"{line}_price", f"{line}s"]
    assert tab(shell, "%%oc_map sale") == ["%%oc_map sales"]


def test_what_was_completed_is_understood(titled: Shell) -> None:
    for title in ("Paint the fence white", "Rather say don't"):
        (line, *_) = tab(titled, f"%oc_session {title[:5]}")
        assert titled.run(line).value.title == title


@pytest.mark.parametrize(
    ("line", "whole"),
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
def test_values_are_completed(shell: Shell, line: str, whole: str) -> None:
    assert until(lambda: whole in tab(shell, line))


def test_files_with_blanks_and_folders_are_completed(shell: Shell, workspace: Path) -> None:
    (workspace / "a folder").mkdir()
    (workspace / "a folder" / "notes two.txt").touch()
    assert tab(shell, "%%oc_prompt --file a") == ['%%oc_prompt --file "a folder/']
    assert tab(shell, '%%oc_prompt --file "a folder/n') == [
        '%%oc_prompt --file "a folder/notes two.txt"'
    ]
    assert tab(shell, "%oc_connect --directory a") == ['%oc_connect --directory "a folder/']
    gre = "%oc_connect --directory gre"
    assert completer(shell).suggestions(gre, 0, len(gre))[1] == []


@pytest.mark.parametrize(
    "name", [b"zz\x1b[31m", b"zz\xff", b"zz\r", b"zz\n", "zz\u2028z".encode()], ids=ascii
)
def test_what_nobody_types_is_not_offered(shell: Shell, workspace: Path, name: bytes) -> None:
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
    where = len(cell.split("\n")) - 1, len(cell.split("\n")[-1])
    assert completer(shell).suggestions(cell, *where)[1] == []


def completer(shell: Shell) -> Completer:
    return Completer(shell, shell.find_line_magic("oc_turn").__self__.state)


# -- what it must not do ---------------------------------------------------------------------------


def test_no_server_is_looked_for(alone: Shell) -> None:
    """None is connected yet, and completing connects none."""
    for line in ("%oc_session ", "%%oc_prompt --model "):
        assert completer(alone).suggestions(line, 0, len(line))[1] == []
        tab(alone, line)
    assert completer(alone).state.connected is None


def test_an_answer_that_comes_late_is_there_at_the_next_tab(shell: Shell) -> None:
    ours, come = completer(shell), threading.Event()

    def slow(client: Client) -> tuple[Suggestion, ...]:
        come.wait()
        return (Suggestion("late", "word"),)

    assert ours.asked("x", slow) == ()  # although nothing has come
    come.set()
    assert until(lambda: ours.asked("x", slow) == (Suggestion("late", "word"),))


def test_a_server_that_has_gone_is_asked_once_and_nothing_raised(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = completer(shell)
    asked = []

    def gone(client: Client) -> tuple[Suggestion, ...]:
        asked.append(client)
        raise ConnectionError

    assert [ours.asked("x", gone) for _ in range(3)] == [()] * 3
    assert len(asked) == 1
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_ours_is_not_shown(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Completer, "suggestions", broken)
    tab(shell, "%oc_session ")
    assert capsys.readouterr() == ("", "")


def test_another_server_has_other_sessions(shell: Shell) -> None:
    ours = completer(shell)
    count: list[Client] = []

    def ask(client: Client) -> tuple[Suggestion, ...]:
        return (Suggestion(str(count.append(client)), "x"),)

    ours.asked("x", ask)
    ours.asked("x", ask)
    shell.run("%oc_connect;")
    ours.asked("x", ask)
    assert len(count) == 2


# -- loading and unloading -------------------------------------------------------------------------


def ours_in(shell: Shell) -> list[Any]:
    matchers = shell.Completer.custom_matchers
    return [m for m in matchers if m.matcher_identifier == completion._ID]


def test_reloading_keeps_one_matcher_and_unloading_none(alone: Shell) -> None:
    alone.run("%reload_ext opencode_magics\n%reload_ext opencode_magics")
    assert len(ours_in(alone)) == 1
    alone.run("%unload_ext opencode_magics")
    assert ours_in(alone) == []


# -- in kernels ------------------------------------------------------------------------------------


def completed(front: kernels.KernelClient, cell: str, column: int) -> list[str]:
    """The cell as it would be with each of the completions."""
    reply = front.complete(cell, column)
    start, end = reply["cursor_start"], reply["cursor_end"]
    return [cell[:start] + match + cell[end:] for match in reply["matches"]]


@pytest.mark.parametrize("version", ["6.31.0", kernels.OURS])
def test_a_kernel_completes(
    version: str, start_kernel: kernels.StartKernel, practice: Practice, workspace: Path
) -> None:
    """By a `complete_request`, as a notebook sends it; names of Python don't come between."""
    with start_kernel(version) as front:
        front.run(f"import os; os.environ.update({json.dumps(practice.access)})")
        front.run(f"os.chdir({str(workspace)!r})")
        front.run("%load_ext opencode_magics")
        front.run("%oc_connect;\n%oc_new Import the data;")
        for cell, column, whole in (
            ("%%oc_prompt --age\nWhy?", 17, ["%%oc_prompt --agent\nWhy?"]),
            ("%oc_session imp", 15, ["%oc_session Import the data"]),
            ("%oc_session import the d", 24, ["%oc_session Import the data"]),
            ("x = %oc_show imp", 16, ["x = %oc_show Import the data"]),
            ("%%oc_prompt --file gr", 21, ["%%oc_prompt --file greet.py"]),
            ("%oc_prompt --model practice/scr", 31, ["%oc_prompt --model practice/scripted"]),
        ):
            assert until(lambda c=cell, at=column, w=whole: completed(front, c, at) == w)
        front.run("%oc_end --delete;")
