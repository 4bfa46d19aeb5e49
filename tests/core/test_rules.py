"""Permission rules are evaluated as OpenCode documents."""

from __future__ import annotations

import pytest

from opencode_magics.core.model import Effect, Rule, SavedRule
from opencode_magics.core.rules import Rulebook, decide, matches


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("*", "", True),
        ("*", "src/a/b.py", True),
        ("src/*", "src/a/b.py", True),
        ("*.env", "a/.env", True),
        ("*.env", "a/.env.local", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("git push *", "git push origin", True),
        ("git push *", "git push", True),
        ("git push *", "git pushing", False),
        ("git*", "git push\n--force", True),
        ("a.b", "axb", False),
        ("[a]", "a", False),
    ],
)
def test_wildcards_match_as_documented(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


ALLOW, ASK, DENY = Rule("*", "*", "allow"), Rule("shell", "*", "ask"), Rule("shell", "rm *", "deny")
PUSH = SavedRule("psv_1", "shell", "git push *")
REMOVE = SavedRule("psv_2", "shell", "rm *")


@pytest.mark.parametrize(
    ("resources", "agent", "session", "saved", "effect", "origin"),
    [
        (["ls"], [], [], [], "ask", "default"),
        (["ls"], [ALLOW], [], [], "allow", "agent"),
        (["ls"], [ALLOW, ASK], [], [], "ask", "agent"),
        (["ls"], [ASK, ALLOW], [], [], "allow", "agent"),
        (["ls"], [ALLOW, ASK], [ALLOW], [], "allow", "session"),
        (["rm x"], [DENY], [ALLOW], [], "allow", "session"),
        (["git push"], [ASK], [], [PUSH], "allow", "saved"),
        (["rm x"], [DENY], [], [REMOVE], "deny", "agent"),
        (["rm x"], [ALLOW], [DENY], [REMOVE], "deny", "session"),
        (["ls", "git push"], [ASK], [], [PUSH], "ask", "agent"),
        (["ls", "rm x"], [ALLOW, DENY], [], [], "deny", "agent"),
        (["git push", "git push -f"], [ASK], [], [PUSH], "allow", "saved"),
    ],
)
def test_the_last_rule_that_matches_decides(
    resources: list[str],
    agent: list[Rule],
    session: list[Rule],
    saved: list[SavedRule],
    effect: Effect,
    origin: str,
) -> None:
    verdict = decide("shell", resources, agent, session, saved)
    assert (verdict.effect, verdict.origin) == (effect, origin)


def test_the_deciding_one_of_several_resources_is_named() -> None:
    assert decide("shell", ["ls", "rm x"], [ALLOW, DENY]).resource == "rm x"


def test_an_unknown_agent_is_denied_everything() -> None:
    assert Rulebook(None).decide("read", ["a"]).effect == "deny"
    assert Rulebook(()).decide("read", ["a"]).effect == "ask"


def test_a_verdict_says_which_rule_decides() -> None:
    assert repr(decide("shell", ["rm x"], [DENY])) == (
        "<deny: 'rm x', by rule 'deny shell rm *' of the agent>"
    )
    assert "no rule matches" in repr(decide("shell", ["ls"], []))
    assert 'by an earlier "always"' in repr(decide("shell", ["git push"], [ASK], (), [PUSH]))
