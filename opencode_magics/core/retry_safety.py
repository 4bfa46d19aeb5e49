"""Assess whether a failed or interrupted request can be sent again.

Assessments rest on observations only. A request is "safe" only if it certainly never reached the
server or was refused; a request without observed effects is "no_effects_seen".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .turn import Turn

ExecutionState = Literal["not_sent", "running", "stopped", "unknown"]
SafetyLevel = Literal["safe", "no_effects_seen", "inspect", "unknown"]

# A proxy replies with these on a timeout or without a reply from the server: the server may or may
# not have received the request.
GATEWAY_STATUSES = (408, 499, 502, 503, 504)
_READ_ONLY_TOOLS = {
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
    """The assessment of a write that failed or was interrupted.

    Attributes:
        execution_state: not_sent, running, stopped, or unknown.
        resend_safety: safe (it never arrived, or was refused), no_effects_seen (it ran without
            visible effects), inspect (it had effects: check them first), or unknown.
        evidence: The observations that support it.
    """

    execution_state: ExecutionState
    resend_safety: SafetyLevel
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{_SUMMARIES[self.resend_safety]} ({'; '.join(self.evidence)})."


_SUMMARIES = {
    "safe": "It can be sent again",
    "no_effects_seen": "No effects were seen that sending it again would repeat",
    "inspect": "Check its effects before you send it again",
    "unknown": "It is unknown whether sending it again would repeat its effects",
}


def assess_turn(turn: Turn, *, sent: bool = True) -> RetrySafety:
    """Assess a turn that did not succeed.

    Args:
        turn: The turn as far as it was received.
        sent: Whether the server may have its prompt.
    """
    if not sent:
        return RetrySafety("not_sent", "safe", ("the server does not have the prompt",))
    stored = "the server has the prompt" if turn.stored else "the prompt was not seen on the server"
    evidence = ("the request was sent", stored, *_effects(turn))
    match turn.outcome:
        case "running":
            return RetrySafety("running", "inspect", (*evidence, "it is still running"))
        case "unknown":
            return RetrySafety("unknown", "inspect" if _has_effects(turn) else "unknown", evidence)
        case _:
            safety: SafetyLevel = "inspect" if _has_effects(turn) else "no_effects_seen"
            return RetrySafety("stopped", safety, evidence)


def assess_unanswered_request(request: str, *, sent: bool) -> RetrySafety:
    """Assess a request that got no reply."""
    if not sent:
        return RetrySafety("not_sent", "safe", (f"{request} was not sent",))
    return RetrySafety("unknown", "unknown", (f"{request} was sent", "no reply was received"))


def assess_running_request() -> RetrySafety:
    """Assess a request that the server is still processing."""
    return RetrySafety("running", "inspect", ("the request was sent",))


def assess_match(match: str, evidence: tuple[str, ...]) -> RetrySafety:
    """Assess a command by the status of its correlation: matched, ambiguous or none."""
    if match == "matched":
        return RetrySafety("running", "inspect", evidence)
    return RetrySafety("unknown", "inspect" if match == "ambiguous" else "unknown", evidence)


def assess_unreadable_reply(request: str) -> RetrySafety:
    """Assess a request whose reply can't be decoded."""
    return RetrySafety(
        "unknown", "unknown", (f"{request} was answered", "its result can't be read")
    )


def assess_refusal(request: str, status: int) -> RetrySafety:
    """Assess a request that the server answered with an error status."""
    observation = f"{request} was answered with HTTP {status}"
    if 300 <= status < 500 and status not in GATEWAY_STATUSES:
        return RetrySafety("stopped", "safe", (observation,))
    return RetrySafety("unknown", "unknown", (observation,))


def _has_effects(turn: Turn) -> bool:
    return bool(turn.diffs) or any(
        t.tool not in _READ_ONLY_TOOLS and _ran(t.status) for t in turn.tools
    )


def _ran(status: str) -> bool:
    return status != "pending"


def _effects(turn: Turn) -> tuple[str, ...]:
    """Describe which tools ran and which files changed."""
    ran = dict.fromkeys(t.tool for t in turn.tools if _ran(t.status))
    files = dict.fromkeys(d.file for d in turn.diffs)
    tools = f"tools run: {', '.join(ran)}" if ran else "no tool ran"
    return (tools, f"files changed: {', '.join(files)}") if files else (tools,)
