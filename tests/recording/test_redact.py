"""Redaction: the secrets that are hidden in a recording, and the texts that stay."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.generations import both_generations
from support.turns import live, played

from opencode_magics.client.client import Client
from opencode_magics.core.model import Session
from opencode_magics.recording.files import load, make_recording, save
from opencode_magics.recording.redact import HIDDEN, Redactor

REDACTOR = Redactor(
    "/home/ana", "ana", {"SOME_TOKEN": "tok-from-the-environment", "PATH": "/usr/bin/x"}
)

LETTERS, HEX = "abcdefghijklmnop0123456789", "0123456789abcdef" * 2
SECRETS = [
    ("OPENAI_API_KEY={}", "abcdefgh"),
    ("export DB_PASSWORD='{}'", "hunter"),
    ('{{"password": "{}"}}', "correct horse"[:7]),
    ("client_secret: {}", "a1b2c3d4"),
    ("--token {}", "abc123"),
    ("mysql --password={}", "s3cret!"),
    ("curl -u joe:{} http://x", "pass"),
    ("postgres://joe:{}@db/x", "p4ss"),
    ("Authorization: Bearer {}", "abc.def-123"),
    ("Authorization: Basic {}", "b3BlbmNvZGU6cHc="),
    ("Cookie: {}", "sid=31d4d96e407aad42"),
    ("key {} there", "sk-ant-api03-abcdefghijklmnop"),
    ("{}", "ghp_0123456789abcdefghijABCDEFGHIJ"),
    ("{}", "github_pat_0123456789abcdefghijABC"),
    ("{}", "AKIAIOSFODNN7EXAMPLE"),
    ("{}", "xoxb-123456789012-abcdef"),
    ("{}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_def"),
    ("{}", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"),
    ("DB_PASS={}", "s3cret!"),
    ('password = "{}"', "correct horse, it's & battery"),
    ("'password' => '{}'", "hunter"),
    (r"{{\\\"password\\\":\\\"{}\\\"}}", "hunter"),
    ("<Password>{}</Password>", "hunter"),
    ("machine x login joe password {}", "s3cr3t-77"),
    ("OPENAI_KEY={}", "abc123abc123"),
    ("https://{}@github.com/x", "s3cr3ts3cr3t9"),
    ("Authorization: {}", "s3cr3ts3cr3t9"),
    ("Authorization: token {}", "s3cr3ts3cr3t9"),
    ("it is {} there", "tok-from-the-environment"),
    # Case G4: tokens that stand bare.
    ("{}", f"gsk_{LETTERS}"),
    ("{}", f"xai-{LETTERS}"),
    ("{}", "fc-0123456789abcdef0123"),
    ("{}", f"pplx-{LETTERS}"),
    ("{}", f"r8_{LETTERS}"),
    ("{}", f"tvly-{LETTERS}"),
    ("{}", f"SG.{LETTERS}.{LETTERS}"),
    ("{}", f"dckr_pat_{LETTERS}"),
    ("{}", f"dop_v1_{HEX}"),
    ("{}", f"dapi{HEX}"),
    ("{}", f"sntrys_{LETTERS}"),
    ("{}", f"123456789:AA{LETTERS}{LETTERS}"),
    ("{}", f"M{LETTERS[:24]}.Gabcde.{LETTERS}abc"),
    ("https://hooks.slack.com/services/{}", "T00000000/B00000000/XXXXXXXXXXXX"),
    ("https://maps.example.com/x?key={}", "AbCdEfGh12345678"),
    ("db.example.com:5432:shop:joe:{}", "s3cret!"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_secret_is_hidden(text: str, secret: str) -> None:
    assert REDACTOR.redact_text(text.format(secret)) == text.format(HIDDEN)


@pytest.mark.parametrize(
    "text",
    [
        "def login(token: str, password: bytes) -> Token:",
        "max_tokens=4096, tokens: 200000",
        "a secret: nobody knows",
        "basic understanding of bearer tokens",
        "see https://example.org:8080/path@2",
        "git log --oneline -u 5",
        "mariana and banana",
        "path/home/of/x and ~/home/y",
        "class Basic understanding",
        "git clone ssh://git@github.com/x",
        "tests that pass: 1234567, fail: 0",
        "SORT_KEY=created_at_first",
        "if token == other: pass",
        "a.c:12:3: error: expected ;",
        "tests/test_a.py:12:34: note",
        "12:30:45 it began",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert REDACTOR.redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/ana/p/x.py", "~/p/x.py"),
        ("cat /home/ana", "cat ~"),
        ("file:///home/ana/p", "file://~/p"),
        ("GET /x?directory=%2Fhome%2Fana%2Fp", "GET /x?directory=~%2Fp"),
        (r'{"cwd":"\/home\/ana\/p"}', r'{"cwd":"~\/p"}'),
        ("/home/anabel/p", "~/p"),
        ("/Users/bob/p", "~/p"),
        (r"C:\Users\Bob\p", r"~\p"),
        ("ana wrote it", "user wrote it"),
        ("home/ana2", "home/ana2"),
    ],
)
def test_a_home_and_a_name_are_hidden(text: str, redacted: str) -> None:
    assert REDACTOR.redact_text(text) == redacted


def test_protocol_words_are_never_taken_for_a_name() -> None:
    redactor = Redactor(None, "completed")
    assert redactor.redact_value({"status": "completed", "text": "completed"}) == {
        "status": "completed",
        "text": "user",
    }


@pytest.mark.parametrize("name", ["reason", "action", "status", "type", "tool", "id", "userID"])
def test_a_tools_field_named_like_a_protocol_field_is_redacted(name: str) -> None:
    field = {name: "curl -u joe:p4ssw0rd http://x > /home/ana/x"}
    assert REDACTOR.redact_value(field) == {name: f"curl -u joe:{HIDDEN} http://x > ~/x"}
    assert REDACTOR.redact_value({name: "ghp_0123456789abcdefghijABCDEFGHIJ"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    ("value", "redacted"),
    [
        ({"accessKeyID": "abc"}, {"accessKeyID": HIDDEN}),
        ({"password": 12345678}, {"password": HIDDEN}),
        ({"secret": {"value": "abc"}}, {"secret": {"value": HIDDEN}}),
        ({"name": "DB_PASSWORD", "value": "abc"}, {"name": "DB_PASSWORD", "value": HIDDEN}),
        ({"max_tokens": 4096, "pass": 3}, {"max_tokens": 4096, "pass": 3}),
    ],
)
def test_any_field_named_like_a_secret_is_redacted(value: object, redacted: object) -> None:
    assert REDACTOR.redact_value(value) == redacted


@pytest.mark.parametrize(
    "piece",
    [
        "password ",
        "token=",
        'token="',
        "<password>",
        "A_KEY=",
        "A_",
        "://a",
        "authorization:",
        "a-",
    ],
)
def test_a_long_text_is_redacted_quickly(piece: str) -> None:
    began = time.monotonic()
    REDACTOR.redact_text(piece * (200_000 // len(piece)))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["password", "apiKey", "authToken", "client_secret"])
def test_a_field_named_like_a_secret_is_redacted(name: str) -> None:
    assert REDACTOR.redact_value({name: "x", "tokens": {"input": 3}}) == {
        name: HIDDEN,
        "tokens": {"input": 3},
    }


def test_a_known_secret_is_hidden_everywhere_even_if_cut_off() -> None:
    redactor = Redactor()
    redactor.learn([{"input": {"command": "export TOKEN=swordfish-99"}}])
    assert redactor.redact_text("it printed swordfish-99.") == f"it printed {HIDDEN}."
    assert redactor.redact_text("it prints swordf") == f"it prints {HIDDEN}"
    assert redactor.redact_text("a sword") == f"a {HIDDEN}"
    assert redactor.redact_text("swordplay is fun") == "swordplay is fun"


@given(st.lists(st.integers(1, 60), max_size=8))
def test_pieces_are_redacted_like_the_whole_text(cuts: list[int]) -> None:
    whole = "a /home/ana/x sk-abcdefghijklmnopqrst and TOKEN=abc, ana."
    places = sorted({c for c in cuts if c < len(whole)})
    pieces = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    assert "".join(REDACTOR.redact_pieces(pieces)) == REDACTOR.redact_text(whole)


def test_redacting_twice_changes_nothing() -> None:
    for text, secret in SECRETS:
        once = REDACTOR.redact_text(text.format(secret))
        assert REDACTOR.redact_text(once) == once


LEAK = "export API_KEY=zebra-stripes-77 ; echo {home}/x ; echo sk-abcdefghijklmnop1234"


@both_generations
def test_a_real_turn_is_redacted_and_folds_alike(
    client: Client,
    session: Session,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The home directory is the workspace's parent, so that all paths are below it."""
    monkeypatch.setenv("HOME", str(workspace.parent))
    command = LEAK.format(home=workspace.parent)
    turn = live(client, session, f"#bash {command}; echo $API_KEY; pwd")
    assert "zebra-stripes-77" in turn.tools[0].output
    path = save(turn, tmp_path / "it.jsonl")
    written = path.read_text()
    for secret in ("zebra", "sk-abcdef", str(workspace.parent), json.dumps(str(workspace.parent))):
        assert secret not in written
    (saved,) = load(path)
    replayed = played(saved)
    assert saved.head["session"]["directory"] == f"~/{workspace.name}"
    assert (replayed.outcome, replayed.steps, replayed.usage) == (
        turn.outcome,
        turn.steps,
        turn.usage,
    )
    assert [t.status for t in replayed.tools] == [t.status for t in turn.tools]
    assert f"~/{workspace.name}" in replayed.tools[0].output
    assert replayed.settled_requests[0].reply == "once"
    assert "zebra-stripes-77" in str(make_recording(turn))
