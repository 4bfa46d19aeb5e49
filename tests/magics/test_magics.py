"""The magics in a shell, on a real server: what is sent, shown and stored, and what raises."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
import time
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from IPython.core.error import UsageError
from support.generations import tool_names
from support.ipython_shell import Shell, is_short_error, until, wait_until_busy

from opencode_magics.client.client import Client
from opencode_magics.client.server import _passwords
from opencode_magics.core.model import Attachment, Message, Session
from opencode_magics.core.turn import Turn
from opencode_magics.errors import (
    AnswerNeeded,
    AuthenticationError,
    SessionBusyError,
    UnknownNameError,
)
from opencode_magics.magics import TOPICS, load
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice

BOTH_GENERATIONS = True
World = Practice | Simulator


def ask(shell: Shell, line: str, body: str = "#text 2") -> Turn:
    """Run a prompt that raises nothing and return its turn."""
    shell.run(f"%%oc_prompt {line}\n{body}")
    turn: Turn = shell.run("%oc_turn").value
    return turn


def new(shell: Shell, title: str = "a test") -> Session:
    session: Session = shell.run(f"%oc_new {title}").value
    return session


# -- connecting ------------------------------------------------------------------------------------


def test_connect_uses_the_server_of_the_environment_and_shows_the_directory(
    shell: Shell, world: World
) -> None:
    shown = shell.run("%oc_connect")
    assert world.url in shown.text
    assert f"OpenCode {world.version}" in shown.text
    assert f"directory {world.directory}" in shown.text


def test_connect_shows_its_result_once(shell: Shell) -> None:
    assert len(shell.run("%oc_connect").lines) == 1
    assert shell.run("client = %oc_connect").text == ""
    assert isinstance(shell.user_ns["client"], Client)


def test_connect_takes_an_address_and_a_directory(
    shell: Shell, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my dir"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENCODE_SERVER_URL")
    for line in (f'{world.url} --directory "{folder}"', f"-d '~/my dir' {world.url}/"):
        assert shell.run(f"%oc_connect {line}").value.directory == str(folder)


def test_the_configured_directory_is_used(shell: Shell, tmp_path: Path) -> None:
    shell.run(f"%config OpenCodeMagics.directory = {str(tmp_path)!r}")
    assert shell.run("%oc_connect").value.directory == str(tmp_path)


def test_a_missing_directory_raises_a_short_error(shell: Shell, tmp_path: Path) -> None:
    for magic in ("oc_connect", "oc_new"):
        shown = shell.fails(f"%{magic} --directory '{tmp_path}/no where'")
        assert f"No such directory: {tmp_path}/no where" in shown.text
        assert is_short_error(shown)


def test_the_first_magic_that_needs_a_server_connects_and_says_so(
    bare: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.access.items():
        monkeypatch.setenv(name, value)
    bare.run("%load_ext opencode_magics")
    assert world.url in bare.run("df = %oc_models").text
    assert bare.run("df = %oc_models").text == ""


def test_reconnecting_deselects_the_session(shell: Shell) -> None:
    new(shell)
    shell.run("%oc_connect;")
    assert "no current session" in shell.fails("%oc_session").text


@pytest.mark.parametrize("wrong", ["", "not it"])
def test_a_wrong_password_raises_a_short_error(
    shell: Shell, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCODE_SERVER_PASSWORD", wrong)
    shown = shell.fails("%oc_connect")
    assert isinstance(shown.error, AuthenticationError)
    assert is_short_error(shown)
    assert "Set OPENCODE_SERVER_PASSWORD" in shown.text


def test_a_person_is_asked_for_the_password(
    shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENCODE_SERVER_PASSWORD")
    monkeypatch.setattr("getpass.getpass", lambda prompt: world.password)
    shell.types("")
    assert world.url in shell.run("%oc_connect").text


def test_the_old_connection_stays_when_the_new_one_fails(shell: Shell) -> None:
    session = new(shell)
    shell.fails("%oc_connect http://127.0.0.1:9")
    assert shell.run("%oc_session").value.id == session.id


LEAKS = """
%oc_connect
%whos
get_ipython().find_line_magic("oc_turn").__self__.state.__dict__
[c for c in get_ipython().configurables if "OpenCode" in repr(c)]
1 / 0
%oc_session nosuchsession
%%oc_prompt --session nosuchsession
%%oc_prompt\\n#err400
%%oc_prompt\\n#bash echo hi
%oc_prompt --file /nowhere hi
%oc_connect http://127.0.0.1:9
%oc_connect http://127.0.0.1:9/%zz
%oc_connect ftp://x
"""


def test_the_password_is_never_shown(
    shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verbose traceback, which lists variables, doesn't show it either."""
    shell.run("%xmode Verbose")
    try:
        cells = [cell.replace("\\n", "\n") for cell in LEAKS.strip().splitlines()]
        seen = "".join(shell.see(cell).text for cell in cells)
        with_password = world.url.replace("//", f"//opencode:{world.password}@")
        shell.user_ns["address"] = with_password
        seen += shell.see("%oc_connect {address}").text
        seen += shell.see("%oc_connect {address}x").text
        monkeypatch.setenv("OPENCODE_SERVER_PASSWORD", world.password + "x")
        seen += shell.see("%oc_connect").text
    finally:
        shell.run("%xmode Context")
    assert "ZeroDivisionError" in seen
    assert world.url in seen
    assert world.password not in seen


# An `opencode` that passes the health check and interrupts its parent at any other request.
INTERRUPTS = """
import http.server, os, signal, sys, time

class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/global/health":
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(5)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"healthy": true, "version": "1.18.33"}')

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Server).serve_forever()
"""


def test_the_password_is_not_shown_when_a_start_is_interrupted(
    alone: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "opencode"
    program.write_text(f"#!{sys.executable}\n{INTERRUPTS}", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    alone.run("%xmode Verbose")
    shown = alone.fails("%oc_start")
    alone.run("%xmode Context")
    assert isinstance(shown.error, KeyboardInterrupt)
    assert "Interrupted." in shown.text
    password = state_of(alone).own_server.password
    assert len(password) > 20
    assert password not in shown.text
    assert b64encode(f"opencode:{password}".encode()).decode() not in shown.text
    assert alone.run("%oc_stop").lines == ["The server stopped."]


# -- the server of a notebook ----------------------------------------------------------------------


@pytest.fixture
def on_path(
    shell: Shell, opencode: Path, practice: Practice, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """The shell with `opencode` on its PATH and no server configured."""
    for name in list(os.environ.keys() - practice.env.keys()):
        if name not in ("IPYTHONDIR", "PYTEST_CURRENT_TEST"):
            monkeypatch.delenv(name)
    for name, value in practice.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(opencode.parent), practice.env["PATH"]]))
    return shell


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=60).status_code == 401
    except httpx.TransportError:
        return False


def test_a_server_is_started_used_and_stopped(on_path: Shell, practice: Practice) -> None:
    shown = on_path.run("client = %oc_start")
    client: Client = on_path.user_ns["client"]
    assert client.url != practice.url
    assert client.directory == str(practice.directory)
    assert "Starting OpenCode" in shown.text
    assert answers(client.url)
    assert "already runs a server" in on_path.fails("%oc_start").text
    assert ask(on_path, "--title own").outcome == "succeeded"
    assert on_path.run("%oc_stop").lines == ["The server stopped."]
    assert not answers(client.url)
    assert is_short_error(on_path.fails("%oc_stop"))


def test_the_record_of_a_server_that_died_is_removed(on_path: Shell) -> None:
    on_path.run("%oc_start --keep")
    first = state_of(on_path).own_server
    first._signal(signal.SIGKILL)
    first._process.wait()
    on_path.run("%oc_start")
    passwords = _passwords()
    on_path.run("%oc_stop")
    assert first.url not in passwords


def test_a_server_that_is_kept_outlives_the_extension(on_path: Shell) -> None:
    shown = on_path.run("client = %oc_start --keep")
    client: Client = on_path.user_ns["client"]
    server = state_of(on_path).own_server
    try:
        assert f"%oc_connect {client.url}" in shown.text
        on_path.run("%reload_ext opencode_magics")
        assert answers(client.url)
        assert on_path.run(f"%oc_connect {client.url}").value.url == client.url
    finally:
        server.stop()
    assert not answers(client.url)


def test_unloading_stops_a_server_that_is_not_kept(
    on_path: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path.run("client = %oc_start")
    on_path.run("%unload_ext opencode_magics")
    assert not answers(on_path.user_ns["client"].url)


def test_the_error_for_a_missing_program_says_how_to_install_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    shown = shell.fails("%oc_start")
    assert is_short_error(shown)
    assert "npm install -g opencode-ai" in shown.text


def state_of(shell: Shell) -> Any:
    """Return the state of a shell's magics."""
    return shell.find_line_magic("oc_turn").__self__.state


# -- sessions --------------------------------------------------------------------------------------


def test_a_frame_is_shown_once_or_assigned_or_hidden(shell: Shell) -> None:
    """Case G3-14."""
    shown = shell.run("df = %oc_sessions")
    assert (shown.text, shown.outputs) == ("", [])
    assert isinstance(shell.user_ns["df"], pd.DataFrame)
    assert shell.run("%oc_sessions").text.count("DataFrame") + 1
    assert len(re.findall(r"^Out\[", shell.run("%oc_sessions").text, re.MULTILINE)) == 1
    for hidden in ("%oc_sessions;", "%oc_sessions ;", "%oc_sessions --roots;", "%oc_models;"):
        assert shell.run(hidden).text == ""


def test_frames_have_the_same_columns_and_dtypes_when_they_are_empty(shell: Shell) -> None:
    new(shell)
    full = shell.run("%oc_sessions").value
    empty = shell.run("%oc_sessions --search 'no session has this title'").value
    assert len(full) > len(empty) == 0
    assert list(full.columns) == list(empty.columns)
    assert list(map(str, full.dtypes)) == list(map(str, empty.dtypes))
    assert {str(t) for t in full.dtypes} == {
        "string",
        "category",
        "Int64",
        "Float64",
        "datetime64[ms, UTC]",
    }


def test_sessions_show_their_usage(shell: Shell, generation: str) -> None:
    turn = ask(shell, "--title costly")
    row = until(lambda: used(shell, turn.session))
    assert turn.usage is not None
    assert (row["cost"], row["output"]) == (turn.cost, turn.usage.output)
    if generation == "1.x":  # 2.x reports what the session was created with, not what answered
        assert (row["provider"], row["model"], row["agent"]) == ("practice", "scripted", "build")


def used(shell: Shell, session: str) -> Any:
    """Return the session's row, or None until its cost is known (1.18.33: once it is idle)."""
    frame = shell.run("%oc_sessions").value.set_index("id")
    row = frame.loc[session].to_dict()
    return row if row["cost"] > 0 else None


def test_roots_excludes_subagents(shell: Shell) -> None:
    turn = ask(shell, "--title root", "#task #text 2")
    child = turn.subagents[0].id
    frame = shell.run("%oc_sessions").value.set_index("id")
    assert frame.loc[child, "parent"] == turn.session
    assert child not in set(shell.run("%oc_sessions --roots").value["id"])


def test_sessions_are_searched_by_title(shell: Shell) -> None:
    found = {new(shell, f"Needle {n} in {{hay}}").id for n in range(2)}
    new(shell, "something else")
    assert set(shell.run('%oc_sessions --search "nEEdle"').value["id"]) == found


def test_archived_sessions_are_listed_on_demand(
    shell: Shell, client: Client, practice: Practice
) -> None:
    session = new(shell, "put away")
    httpx.patch(
        f"{practice.url}/session/{session.id}",
        json={"time": {"archived": int(time.time() * 1000)}},
        auth=("opencode", practice.password),
        trust_env=False,
    ).raise_for_status()
    assert session.id not in set(shell.run("%oc_sessions").value["id"])
    rows = shell.run("%oc_sessions --archived").value.set_index("id")
    assert pd.notna(rows.loc[session.id, "archived"])


def test_start_takes_an_age_or_a_date(shell: Shell) -> None:
    session = new(shell)
    for start in ("7d", "12h", "1.5h", "30m", "1w", "2020-01-01", "2020-01-01T12:00+02:00"):
        assert session.id in set(shell.run(f"%oc_sessions --start {start}").value["id"])
    assert len(shell.run("%oc_sessions --start 2100-01-01").value) == 0
    shown = shell.fails("%oc_sessions --start yesterday")
    assert "write 7d, 12h, 30m (ago) or a date" in shown.text
    assert is_short_error(shown)


def test_no_session_is_left_out_silently(
    shell: Shell, client: Client, world: World, tmp_path: Path
) -> None:
    """1.18.33 lists at most 100 sessions and doesn't say so."""
    folder = tmp_path / "100% full é"
    folder.mkdir()
    client.create("first", str(folder))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: client.create(f"n {n}", str(folder)).id, range(103)))
    line = f'--directory "{folder}"'
    frame = shell.run(f"%oc_sessions {line}").value
    assert len(frame) == 104
    assert set(made) < set(frame["id"])
    assert list(frame["updated"]) == sorted(frame["updated"], reverse=True)
    latest = shell.run(f"%oc_sessions {line} --limit 2").value
    assert list(latest["id"]) == list(frame["id"][:2])
    assert set(made) < set(shell.run("%oc_sessions --all").value["id"])
    assert not set(made) & set(shell.run("%oc_sessions").value["id"])


def test_directories_are_resolved_by_the_kernel(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.18.33 takes `~` literally and resolves a relative path from its own directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    session = shell.run("%oc_new --directory here relative").value
    assert session.directory == str(tmp_path / "here")
    for named in ("~/here", "here", "./here/"):
        frame = shell.run(f"%oc_sessions --directory {named}").value
        assert list(frame["id"]) == [session.id]


def test_a_session_is_chosen_by_id_by_prefix_and_by_title(shell: Shell) -> None:
    session = new(shell, "the one and only title")
    prefix = session.id[:-4]
    for name in (session.id, prefix, "the one and only title", "'The One and only TITLE'"):
        new(shell, "in between")
        assert shell.run(f"%oc_session {name}").value.id == session.id
        assert shell.run("%oc_session").value.id == session.id


def test_an_unknown_session_fails_with_a_suggestion(shell: Shell) -> None:
    new(shell, "refactor the parser")
    shown = shell.fails("%oc_session refactor the passer")
    assert isinstance(shown.error, UnknownNameError)
    assert "Did you mean 'refactor the parser'" in shown.text
    assert is_short_error(shown)


def test_an_ambiguous_prefix_fails_with_the_candidates(shell: Shell) -> None:
    _, other = new(shell), new(shell)
    shown = shell.fails("%oc_session ses_")
    assert isinstance(shown.error, UnknownNameError)
    assert re.search(r"matches \d+ sessions", shown.text)
    assert is_short_error(shown)
    assert shell.run("%oc_session").value.id == other.id


def test_without_a_session_the_error_says_how_to_create_one(shell: Shell) -> None:
    shown = shell.fails("%oc_session")
    assert "%oc_new" in shown.text
    assert is_short_error(shown)


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        ('"a b"', "a b"),
        ("a {12} $HOME title", "a {12} $HOME title"),
        ("it's 5\" wide", "it's 5\" wide"),
        ("Why is it slow?", "Why is it slow?"),
    ],
)
def test_a_new_session_has_its_title_as_typed(shell: Shell, typed: str, title: str) -> None:
    session = new(shell, typed)
    assert session.title == title
    assert shell.run("%oc_session").value == session


def test_models_and_agents_are_frames(shell: Shell) -> None:
    models = shell.run("%oc_models").value.set_index("model")
    assert models.loc["practice/scripted", "price_output"] == 15.0
    assert list(models.index[models["default"]]) == ["practice/scripted"]
    agents = shell.run("%oc_agents").value.set_index("agent")
    assert agents.loc["plan", "mode"] == "primary"
    assert "title" not in agents.index


# -- what is sent ----------------------------------------------------------------------------------

BODIES = [
    "{name: len(name) for name in names}",
    'f"{x!r}" and ${HOME} and $HOME',
    "{{ jinja }} and {In[3]} and {12}",
    "{",
    "it's broken, don't guess",
    'say """hello""" and \'bye\' \\n \\',
    ">>> f(1)\n1\nWhy?",
    "text before\n\n>>> f(1)\n... more\n",
    "In [1]: f(1)\nOut[1]: 1",
    "\n\n  indented, after blank lines\n\ttab\n\n",
    "trailing blanks   \n   ",
    "%oc_prompt is a magic\n%%oc_prompt too\n!ls\n?",
    "-s is no option here --title",
    "a form feed \x0c, a separator \u2028, an é and a \N{THUMBS UP SIGN}",
]


@pytest.mark.parametrize("body", BODIES)
def test_the_body_is_sent_exactly_as_typed(shell: Shell, client: Client, body: str) -> None:
    """Only the final newline may be dropped. IPython 9.18 strips `>>> ` from other cells.

    Case G3-01.
    """
    shell.user_ns.update(name=1, names=[], x=2, price=42)
    assert stored(shell, client, f"%%oc_prompt --no-wait --title x\n{body}") in (body, body[:-1])


def stored(shell: Shell, client: Client, cell: str) -> str:
    """Run a cell and return the prompt that the server stored."""
    shell.run(cell)
    turn: Turn = shell.run("%oc_turn").value
    first = client.messages(client.session(turn.session))[0]
    assert first.id == turn.prompt
    return first.text


@pytest.mark.parametrize(
    "text",
    [
        "why is {12} and $price",
        "it's broken, don't guess",
        "What does greet.py do?",
        "Why? ",
        "first; second;",
        "%oc_prompt is what I typed, why?",
    ],
)
def test_a_line_is_sent_as_typed(shell: Shell, client: Client, text: str) -> None:
    """IPython expands `{}` and `$`, and treats a final question mark as a request for help.

    Case G3-02.
    """
    shell.user_ns["price"] = 42
    sent = stored(shell, client, f"%oc_prompt --no-wait --title x {text}")
    assert sent == text.rstrip()


def test_the_first_line_of_a_cell_is_not_expanded(shell: Shell, client: Client) -> None:
    """Case G3-02."""
    shell.user_ns["price"] = 42
    turn = ask(shell, '--title "why is {12} and $price, $HOME" -o kept')
    assert client.session(turn.session).title == "why is {12} and $price, $HOME"


def test_a_title_may_have_an_apostrophe_and_a_quote(shell: Shell, client: Client) -> None:
    """Case G3-06."""
    turn = ask(shell, "--title don't --agent build")
    assert client.session(turn.session).title == "don't"
    turn = ask(shell, "--title 'a 5\" disk'")
    assert client.session(turn.session).title == 'a 5" disk'


def test_a_question_mark_after_the_name_still_shows_help(shell: Shell) -> None:
    for cell in ("%oc_prompt?", "%%oc_prompt?", "%oc_sessions?"):
        assert "Example::" in shell.run(cell).text or shell.run(cell).outputs


def test_expand_fills_in_variables_of_the_notebook(shell: Shell, client: Client) -> None:
    shell.user_ns.update(path="greet.py", n=3)
    body = "Explain {{path}} in {{ n }} lines, but not {path} or {{a.b}}"
    sent = stored(shell, client, f"%%oc_prompt --no-wait --expand --title x\n{body}")
    assert sent == "Explain greet.py in 3 lines, but not {path} or {{a.b}}"


def test_expand_refuses_unknown_names(shell: Shell, client: Client) -> None:
    session = new(shell)
    shown = shell.fails("%%oc_prompt --expand\nExplain {{pth}}")
    assert isinstance(shown.error, UsageError)
    assert "no variable 'pth'" in shown.text
    assert client.messages(session) == ()


def test_a_prompt_is_sent_to_the_named_session(shell: Shell, client: Client) -> None:
    session = new(shell, "the named one")
    current = new(shell, "the current one")
    for name in (session.id, session.id[:-3], '"the named one"'):
        assert ask(shell, f"-s {name}").session == session.id
    assert ask(shell, "").session == current.id
    assert shell.run("%oc_session").value.id == current.id


def test_a_new_session_becomes_the_current_one(shell: Shell, client: Client) -> None:
    old = new(shell)
    for option in ("-n", "--new --title other", "--title more"):
        turn = ask(shell, option)
        assert turn.session != old.id
        assert shell.run("%oc_session").value.id == turn.session


def test_the_first_prompt_creates_a_session(shell: Shell) -> None:
    first, second = ask(shell, ""), ask(shell, "")
    assert first.session == second.session


def test_the_requested_model_variant_and_agent_answer(shell: Shell) -> None:
    turn = ask(shell, "-m practice/scripted --variant high --agent plan --title x")
    assert (str(turn.model), turn.model and turn.model.variant) == ("practice/scripted", "high")
    assert turn.agent == "plan"
    assert str(ask(shell, "--model frugal").model) == "practice/frugal"


def test_the_configured_model_and_agent_are_used(shell: Shell) -> None:
    shell.run("%config OpenCodeMagics.model = 'practice/frugal'")
    shell.run("%config OpenCodeMagics.agent = 'plan'")
    turn = ask(shell, "--title x")
    assert (str(turn.model), turn.agent) == ("practice/frugal", "plan")
    assert ask(shell, "--agent build").agent == "build"


def test_a_session_keeps_its_agent(shell: Shell, practice: Practice) -> None:
    """1.18.33 would answer a prompt without an agent with "build". Case G1-33."""
    made = httpx.post(
        f"{practice.url}/session",
        params={"directory": str(practice.directory)},
        json={"title": "planned", "agent": "plan"},
        auth=("opencode", practice.password),
        trust_env=False,
    ).json()
    assert ask(shell, f"-s {made['id']}").agent == "plan"


# A single transparent pixel.
PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def test_files_are_attached_with_their_content(
    shell: Shell, client: Client, tmp_path: Path, generation: str
) -> None:
    (tmp_path / "with space.md").write_text("# The secret word is abracadabra\n", encoding="utf-8")
    (tmp_path / "dot.png").write_bytes(PNG)
    line = f'--file "{tmp_path}/with space.md" --file {tmp_path}/dot.png --title x'
    turn = ask(shell, line)
    assert turn.outcome == "succeeded"
    prompt = client.run(client.dialect.message(client.session(turn.session), turn.prompt))
    files = [p for p in prompt.parts if isinstance(p, Attachment)]
    assert [(f.mime, f.filename) for f in files] == [
        ("text/plain", "with space.md"),
        ("image/png", "dot.png"),
    ]
    if generation == "1.x":  # 2.x stores the bytes separately
        assert "abracadabra" in prompt.text


def test_a_relative_file_is_found_in_the_kernels_directory(shell: Shell) -> None:
    assert ask(shell, "--file notes.txt --title x").outcome == "succeeded"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "No such file or directory"),
        (".", None, "Is a directory"),
        ("~nobody-of-this-name/x", None, "No such file or directory"),
        ("data.zip", b"PK\x03\x04\x00\xff", "application/zip can't be read by a model"),
        ("data.bin", b"\x00\x01", "can't be read by a model"),
        ("latin.txt", "é".encode("latin-1"), "not UTF-8"),
        ("huge.txt", b" " * 20_000_001, "20,000,001 bytes"),
    ],
)
def test_an_unusable_file_fails_before_anything_is_sent(
    shell: Shell, client: Client, name: str, content: bytes | None, message: str
) -> None:
    """1.18.33 accepts any file, and then every later prompt of the session fails."""
    session = new(shell)
    if content is not None:
        Path(name).write_bytes(content)
    shown = shell.fails(f"%%oc_prompt --file {name}\n#text 2")
    assert message in shown.text
    assert f"--file {name}" in shown.text
    assert is_short_error(shown)
    assert client.messages(session) == ()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model practice/scriptd", "Did you mean 'practice/scripted'"),
        ("--model nope", "No model 'nope'"),
        ("--agent biuld", "Did you mean 'build'"),
        ("--variant hihg", "has no variant 'hihg'. It has: low, medium, high."),
        ("--model practice/small --variant high", "has no variant 'high'"),
    ],
)
def test_unknown_names_fail_before_anything_is_sent(
    shell: Shell, client: Client, option: str, message: str
) -> None:
    """1.18.33 accepts them with status 204 and never answers."""
    session = new(shell)
    shown = shell.fails(f"%%oc_prompt {option}\n#text 2")
    assert isinstance(shown.error, UnknownNameError)
    assert message in shown.text
    assert is_short_error(shown)
    assert client.messages(session) == ()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%oc_prompt", "For example: %oc_prompt"),
        ("%oc_prompt -n --title x", "For example: %oc_prompt"),
        ("%%oc_prompt\n\n  \t\n", "For example: %oc_prompt"),
        ("%%oc_prompt", "cell body is empty"),
        ("%oc_prompt %%oc_prompt\n", "must be the first line"),
        ("# a comment\n%%oc_prompt\nhello", "first line of its cell"),
        ("%oc_turn", "Try: %oc_prompt"),
        ("%oc_session", "%oc_new"),
        ("%oc_stop", "%oc_start"),
        ("%%oc_prompt --permission maybe\nhi", "ask, once or reject, not 'maybe'"),
        ("%%oc_prompt -o 2x\nhi", "-o takes a variable name, not '2x'"),
        ("%%oc_prompt -o class\nhi", "-o takes a variable name, not 'class'"),
        ("%%oc_prompt -o\nhi", "-o needs a value"),
        ("%%oc_prompt -s x -n\nhi", "Use either --session"),
        ("%%oc_prompt --timeout soon\nhi", "invalid float value: 'soon'"),
        ("%%oc_prompt hello\nhi", "unrecognized arguments: hello"),
        ("%oc_prompt --nope hi", "has no option --nope"),
        ("%oc_sessions --nope", "has no option --nope"),
        ("%oc_sessions --limit ten", "invalid int value: 'ten'"),
        ("%oc_sessions --limit 0", "--limit must be at least 1"),
        ("%oc_sessions --limit", "--limit needs a value"),
        ("%oc_sessions --all --directory /x", "Use either --all or --directory"),
        ("%oc_sessions x", "unrecognized arguments: x"),
        ("%oc_connect one two", "unrecognized arguments: two"),
        ("%oc_models x", "unrecognized arguments: x"),
    ],
)
def test_bad_arguments_fail_in_one_line_and_nothing_is_sent(
    alone: Shell, cell: str, message: str
) -> None:
    """Cases G3-13 and G3-16."""
    shown = alone.fails(cell)
    assert isinstance(shown.error, UsageError)
    assert message in shown.text
    assert len(shown.lines) == 1
    assert shown.text.startswith("UsageError: ")


@pytest.mark.parametrize("name", sorted({n for t in TOPICS for n in t.magics["line"]}))
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_shown_and_nothing_is_sent(alone: Shell, name: str, option: str) -> None:
    """Case G3-13."""
    shown = alone.run(f"%{name} {option}")
    assert "Example::" in shown.text
    assert shown.value is None


def test_a_comment_above_the_magic_sends_nothing(alone: Shell) -> None:
    """Case G3-21."""
    assert isinstance(alone.fails("# why\n%%oc_prompt\nhello\n").error, UsageError)


# -- following a turn ------------------------------------------------------------------------------


def test_a_prompt_shows_its_answer_and_returns_nothing(shell: Shell) -> None:
    shown = shell.run("%%oc_prompt -o turn\n#text 3")
    assert shown.value is None
    assert shown.lines[0] == "word0 word1 word2"
    assert shown.lines[-1].startswith("succeeded · build · practice/scripted · 1 step · 0 tools ·")
    turn = shell.user_ns["turn"]
    assert (turn.outcome, turn.text) == ("succeeded", "word0 word1 word2")
    assert shell.run("%oc_turn").value is turn


def test_a_turn_reads_the_same_when_it_is_shown_again(shell: Shell) -> None:
    streamed = shell.run("%%oc_prompt -o turn\n#reason").lines
    again = shell.run("turn").lines
    assert again[1:] == streamed


@pytest.mark.parametrize("text", ["/etc/hostname", "http://example.invalid/x"])
def test_an_answer_that_is_a_path_or_an_address_is_shown_as_text(shell: Shell, text: str) -> None:
    """Case G4-05."""
    shown = shell.run(f'%%oc_prompt\n#plan [{{"text": "{text}"}}]')
    assert shown.lines[0] == text


@pytest.mark.parametrize(
    ("option", "script", "outcome"),
    [
        ("--permission once", "#bash echo hi", "succeeded"),
        ("--permission reject", "#bash echo hi", "rejected"),
        ("", "#bash echo hi", "rejected"),
        ("", "#question", "rejected"),
        ("", "#task #bash mkdir x", "succeeded"),
        ("", "#length", "succeeded"),
        ("", "#err429 1", "succeeded"),
    ],
)
def test_these_turns_raise_nothing(shell: Shell, option: str, script: str, outcome: str) -> None:
    assert ask(shell, option, script).outcome == outcome


def test_the_cell_shows_who_decided(shell: Shell) -> None:
    assert "reject (nobody can answer here)" in shell.run("%%oc_prompt\n#bash echo hi").text
    shell.run("%config OpenCodeMagics.noninteractive = 'once'")
    assert "once (nobody can answer here)" in shell.run("%%oc_prompt\n#bash echo hi").text
    shell.run("%config OpenCodeMagics.permission = 'reject'")
    assert "reject (policy 'reject')" in shell.run("%%oc_prompt\n#bash echo hi").text


def test_the_policy_error_stops_the_turn_and_says_what_was_asked(
    shell: Shell, client: Client, workspace: Path, generation: str
) -> None:
    (bash,) = tool_names(generation, "bash")
    shell.run("%config OpenCodeMagics.noninteractive = 'error'")
    shown = shell.fails("%%oc_prompt -o turn\n#bash touch made")
    assert isinstance(shown.error, AnswerNeeded)
    assert f"AnswerNeeded: The agent is waiting for a permission: {bash} 'touch made'" in shown.text
    assert "Traceback" not in shown.text
    assert shell.user_ns["turn"].outcome == "aborted"
    assert not (workspace / "made").exists()
    assert client.permissions() == ()


def test_a_person_answers_in_the_cell(shell: Shell, workspace: Path, generation: str) -> None:
    (bash,) = tool_names(generation, "bash")
    shell.types("what?", "1", "3 not this one")
    shown = shell.run("%%oc_prompt\n#bash touch made")
    asked = f"Permission: {bash}\n    Command:\n        touch made\n    In:\n        {workspace}\n"
    assert f"{asked}[1] Allow once" in shown.text
    assert "→ once" in shown.text
    assert (workspace / "made").exists()
    shown = shell.run("%%oc_prompt -o turn\n#bash touch other")
    assert "→ reject (not this one)" in shown.text
    assert shell.user_ns["turn"].outcome == "succeeded"
    assert not (workspace / "other").exists()


def test_a_persons_answers_reach_the_agent(shell: Shell) -> None:
    shell.types("2", "1, 2")
    turn = ask(shell, "", "#question")
    assert "Blue" in turn.tools[0].output
    assert "S, L" in turn.tools[0].output


def test_a_permission_request_names_its_subagent(shell: Shell, workspace: Path) -> None:
    shell.types("1")
    shown = shell.run("%%oc_prompt -o turn\n#task #bash mkdir made")
    assert "Permission for subagent do sub work" in shown.text
    assert (workspace / "made").is_dir()
    assert shell.user_ns["turn"].outcome == "succeeded"


def test_the_policy_decides_when_the_input_ends(shell: Shell) -> None:
    """The end of the input doesn't count as an answer."""
    shell.types()
    assert "reject (nobody can answer here)" in shell.run("%%oc_prompt\n#bash echo hi").text


# -- without waiting for the turn ------------------------------------------------------------------


def test_the_turn_continues_after_the_timeout_of_its_cell(shell: Shell, client: Client) -> None:
    """Case G1-04."""
    session = new(shell)
    shown = shell.run("%%oc_prompt --timeout 4 -o turn\n#slow 400 .1")
    assert f"Still running on the server, in session {session.id}" in shown.text
    assert shell.user_ns["turn"].outcome == "running"
    assert shell.user_ns["turn"].text.startswith("slow0 slow1")
    assert session.id in client.statuses()
    assert [m.role for m in client.messages(session)] == ["user", "assistant"]
    client.abort(session)


def test_a_prompt_to_a_busy_session_is_refused_or_queued(shell: Shell, client: Client) -> None:
    session = new(shell)
    shown = shell.run("%%oc_prompt --no-wait -o first\n#slow 25 .2")
    assert f"Sent to session {session.id}; the turn runs on the server." in shown.text
    assert shell.user_ns["first"].outcome == "running"
    assert shell.user_ns["first"].question_text == "#slow 25 .2"
    wait_until_busy(client, session)
    shown = shell.fails("%%oc_prompt\n#text 2")
    assert isinstance(shown.error, SessionBusyError)
    assert "--queue" in shown.text
    assert is_short_error(shown)
    assert len(prompts(client, session)) == 1
    turn = ask(shell, "--queue", "#text 2")
    assert (turn.outcome, turn.text) == ("succeeded", "word0 word1")
    assert len(prompts(client, session)) == 2


def prompts(client: Client, session: Session) -> list[Message]:
    return [m for m in client.messages(session) if m.role == "user"]


# -- loading and unloading -------------------------------------------------------------------------


def traces(shell: Shell) -> dict[str, Any]:
    """Return everything in a shell that the extension may change."""
    formatters = shell.display_formatter.formatters.values()
    manager = shell.input_transformer_manager
    return {
        "magics": {k: sorted(v) for k, v in shell.magics_manager.magics.items()},
        "registry": sorted(shell.magics_manager.registry),
        "configurables": [type(c).__name__ for c in shell.configurables],
        "formatters": [kinds(f) for f in formatters],
        "transforms": [
            *manager.cleanup_transforms,
            *manager.line_transforms,
            *manager.token_transformers,
        ],
        "matchers": [m.matcher_identifier for m in shell.Completer.custom_matchers],
        "hooks": {name: str(getattr(shell.hooks, name, "")) for name in sorted(shell.hooks)},
        "callbacks": {k: list(v) for k, v in shell.events.callbacks.items()},
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("opencode")),
        "names": sorted(name for name in shell.user_ns if not name.startswith("_")),
    }


def kinds(formatter: Any) -> list[str]:
    """Return the types of a formatter, including those that are not imported yet."""
    imported = [f"{kind.__module__}.{kind.__name__}" for kind in formatter.type_printers]
    return sorted([*imported, *map(".".join, formatter.deferred_printers)])


def test_unloading_leaves_nothing_behind(
    bare: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.access.items():
        monkeypatch.setenv(name, value)
    bare.run("%unload_ext nothing")  # makes IPython load its own extension magics first
    before = traces(bare)
    bare.run("%load_ext opencode_magics")
    assert traces(bare) != before
    bare.run("%%oc_prompt --title x\n#text 2")
    bare.run("%oc_turn;")
    bare.run("%unload_ext opencode_magics")
    assert traces(bare) == before


def test_reloading_duplicates_nothing_and_names_the_deselected_session(shell: Shell) -> None:
    """Case G3-09."""
    session = new(shell)
    before, at_exit = traces(shell), atexit._ncallbacks()
    shown = shell.run("%reload_ext opencode_magics")
    assert f"%oc_session {session.id}" in shown.text
    for _ in range(2):
        assert shell.run("%reload_ext opencode_magics").text == ""
    assert (traces(shell), atexit._ncallbacks()) == (before, at_exit)
    assert shell.run(f"%oc_session {session.id}").value.id == session.id
    assert shell.run("%%oc_prompt\n#text 2").text.count("word0 word1") == 1


def test_loading_twice_duplicates_nothing(shell: Shell) -> None:
    before = traces(shell)
    load(shell)
    assert traces(shell) == before


def test_two_shells_do_not_share_their_sessions(shell: Shell) -> None:
    """State belongs to the instance, not to the module."""
    new(shell)
    other = Shell()
    load(other)
    assert state_of(other).session is None
    assert state_of(shell).session is not None


def test_options_are_listed_with_help_and_survive_a_reload(shell: Shell) -> None:
    listed = shell.run("%config OpenCodeMagics").text
    for option in ("directory", "model", "agent", "permission", "noninteractive"):
        assert f"OpenCodeMagics.{option}" in listed
    shell.run("%config OpenCodeMagics.permission = 'reject'")
    shell.run("%reload_ext opencode_magics")
    assert "'reject'" in shell.run("%config OpenCodeMagics.permission").text


def test_an_invalid_option_value_changes_nothing(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    shell.run("%config OpenCodeMagics.permission = 'maybe'")
    assert "any of ['ask', 'once', 'reject'], not the str 'maybe'" in caplog.text
    assert "'ask'" in shell.run("%config OpenCodeMagics.permission").text
    shown = shell.run("%reload_ext opencode_magics")
    assert len(shown.lines) == 1
    assert "not the str 'maybe'" in shown.text


def test_a_turn_that_was_left_running_is_read_again(shell: Shell) -> None:
    new(shell)
    shell.run("%oc_prompt --no-wait #text 3")
    turn = until(lambda: (t := shell.run("%oc_turn").value).outcome != "running" and t)
    assert (turn.outcome, turn.text) == ("succeeded", "word0 word1 word2")


@pytest.mark.parametrize("cut", ["\u2028", "\u2029", "\x0b", "\x0c", "\x85"])
def test_unusual_line_separators_are_part_of_the_prompt(shell: Shell, cut: str) -> None:
    new(shell)
    shell.run(f"%oc_prompt #text 1 {cut}this_would_run = 1\nafter = 2")
    assert shell.run("%oc_turn").value.question_text == f"#text 1 {cut}this_would_run = 1"
    assert "this_would_run" not in shell.user_ns
    assert shell.user_ns["after"] == 2
