"""Whether something can be sent again after it went wrong: what is known, and how well.

Everything here concludes from what was seen. That nothing was seen is told as just that: only what
certainly never reached a server is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .turn import Turn

ExecutionState = Literal["not_sent", "running", "stopped", "unknown"]
SafetyLevel = Literal["safe", "no_effects_seen", "inspect", "unknown"]

# What stands before a server says these when it lost patience or got no answer: whether it passed
# the request on it doesn't say.
GATEWAY_STATUSES = (408, 499, 502, 503, 504)
# Tools that leave nothing behind.
_READ_ONLY = {
    "read",
    "grep",
    "glob",
    "list",
    "skill",
    "question",
    "todowrite",
    "todoread",
    "invalid",
}


@dataclass(frozen=True, slots=True)
class RetrySafety:
    """How a write stands that failed or was interrupted.

    Attributes:
        execution_state: not_sent, running, stopped, or unknown.
        resend_safety: safe (it never arrived, or was refused), no_effects_seen (it ran, and left
            nothing that one could see), inspect (it did something: look first), or unknown.
        evidence: What was seen.
    """

    execution_state: ExecutionState
    resend_safety: SafetyLevel
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{_SAY[self.resend_safety]} ({'; '.join(self.evidence)})."


_SAY = {
    "safe": "It can be sent again",
    "no_effects_seen": "No effect was seen that would be doubled by sending it again",
    "inspect": "Look at what it did before you send it again",
    "unknown": "Nobody knows whether sending it again would do it twice",
}


def assess_turn(turn: Turn, *, sent: bool = True) -> RetrySafety:
    """How a turn stands that didn't go as it should.

    Args:
        turn: As much of it as was received.
        sent: Whether the server has its prompt, or may have it.
    """
    if not sent:
        return RetrySafety("not_sent", "safe", ("the server does not have the prompt",))
    stored = "the server has the prompt" if turn.stored else "the server does not show the prompt"
    evidence = ("the request was written", stored, *_effects(turn))
    match turn.outcome:
        case "running":
            return RetrySafety("running", "inspect", (*evidence, "it still runs"))
        case "unknown":
            return RetrySafety("unknown", "inspect" if _did(turn) else "unknown", evidence)
        case _:
            safety: SafetyLevel = "inspect" if _did(turn) else "no_effects_seen"
            return RetrySafety("stopped", safety, evidence)


def assess_unanswered_request(request: str, *, sent: bool) -> RetrySafety:
    """How a single request stands that got no answer."""
    if not sent:
        return RetrySafety("not_sent", "safe", (f"{request} was not written",))
    return RetrySafety("unknown", "unknown", (f"{request} was written", "no answer came"))


def of_running_request() -> RetrySafety:
    """How a single request stands that the server is still working on."""
    return RetrySafety("running", "inspect", ("the request was written",))


def of_match(found: str, evidence: tuple[str, ...]) -> RetrySafety:
    """How a command stands by what was found of it on the server: matched, ambiguous or none."""
    if found == "matched":
        return RetrySafety("running", "inspect", evidence)
    return RetrySafety("unknown", "inspect" if found == "ambiguous" else "unknown", evidence)


def assess_unreadable_reply(request: str) -> RetrySafety:
    """How a single request stands that was answered with something that can't be read."""
    return RetrySafety(
        "unknown", "unknown", (f"{request} was answered", "its result can't be read")
    )


def assess_refusal(request: str, status: int) -> RetrySafety:
    """How a single request stands that the server said no to."""
    said = f"{request} was answered with HTTP {status}"
    if 300 <= status < 500 and status not in GATEWAY_STATUSES:
        return RetrySafety("stopped", "safe", (said,))
    return RetrySafety("unknown", "unknown", (said,))


def _did(turn: Turn) -> bool:
    return bool(turn.diffs) or any(t.tool not in _READ_ONLY and _ran(t.status) for t in turn.tools)


def _ran(status: str) -> bool:
    return status != "pending"


def _effects(turn: Turn) -> tuple[str, ...]:
    """Which tools ran, and which files changed."""
    ran = dict.fromkeys(t.tool for t in turn.tools if _ran(t.status))
    files = dict.fromkeys(d.file for d in turn.diffs)
    tools = f"tools run: {', '.join(ran)}" if ran else "no tool ran"
    return (tools, f"files changed: {', '.join(files)}") if files else (tools,)
