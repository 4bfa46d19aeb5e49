"""Turns made of plain values, for the tests of what a cell shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opencode_magics.core.model import (
    Failure,
    FileDiff,
    Message,
    ModelRef,
    Option,
    Part,
    Permission,
    Question,
    QuestionItem,
    Reasoning,
    Session,
    Status,
    StepEnd,
    StepStart,
    Text,
    ToolCall,
    Usage,
)
from opencode_magics.core.turn import Retry, SettledRequest, Turn

SESSION, CHILD = "ses_1", "ses_2"
PROMPT = Message("msg_0", SESSION, "user", 1_000, 1_000, parts=(Text("p0", "Do it", 0, 0),))
USAGE = Usage(600, 30, 20, 400, 0, 0.00267)
EDIT = FileDiff("app.py", "--- app.py\n+++ app.py\n@@ -1,2 +1,2 @@\n-old\n+new\n same\n", 1, 1)


def answer(*parts: Part, id: str = "msg_1", usage: Usage | None = USAGE, **told: Any) -> Message:
    """A finished step of an answer; `told` overrides its header."""
    header: dict[str, Any] = {
        "created": 1_100,
        "completed": 4_200,
        "parent": PROMPT.id,
        "agent": "build",
        "model": ModelRef("mock", "m1"),
        "finish": "stop",
        **told,
    }
    end = (StepEnd(f"{id}-z", header["finish"], usage),) if header["completed"] else ()
    whole = (StepStart(f"{id}-0"), *parts, *end)
    return Message(id, SESSION, "assistant", parts=whole, reported=usage, **header)


def turn(*answers: Message, **told: Any) -> Turn:
    """A turn of these answers, over unless told otherwise."""
    over = {"checked": True, "status": Status("idle"), **told}
    return Turn(SESSION, PROMPT.id, log=(PROMPT, *answers), **over)


def running(*parts: Part, **told: Any) -> Turn:
    """A turn that still works on its only step."""
    half = answer(*parts, completed=None, finish=None, usage=None)
    return turn(half, checked=False, status=Status("busy"), **told)


def says(text: str, **told: Any) -> Turn:
    """A turn that answers with a text."""
    return turn(answer(Text("t1", text, 0, 1)), **told)


def tool(name: str = "bash", call: str = "call_1", **told: Any) -> ToolCall:
    """A completed tool call."""
    said = {"status": "completed", "input": {"command": "git push"}, "start": 0, "end": 400, **told}
    return ToolCall(id=f"prt_{call}", call=call, tool=name, **said)


def permission(call: str | None = "call_1", **told: Any) -> Permission:
    """A permission for a shell command."""
    said = {"session": SESSION, "action": "bash", "command": "git push", **told}
    return Permission(f"per_{call}", call=call, **said)


def everything_hostile(evil: str) -> Turn:
    """A turn that has the same text wherever somebody else can put one."""
    diff = FileDiff(evil, f"--- {evil}\n+++ {evil}\n@@ -1 +1 @@ {evil}\n-{evil}\n+{evil}\n", 1, 1)
    question = Question("q", CHILD, (QuestionItem(evil, evil, (Option(evil, evil),)),) * 2)
    asked = permission(None, action=evil, command=evil, session=CHILD, patterns=(evil,))
    edit = replace(asked, id="per_edit", command=None, diff=diff)
    many = replace(asked, id="per_many", command=f"{evil}\n{evil}")
    half = running(
        Text("a", evil),
        Reasoning("b", evil, 0, 1),
        tool(evil, title=evil, input={evil: evil}, output=evil, diffs=(diff,), child=evil),
        tool("bash", call="2", status="error", input={"command": evil}, error=evil),
        tool("edit", call="3", diffs=(diff, diff)),
        permissions=(asked, edit, many),
        questions=(question,),
        sessions=(Session(CHILD, evil, parent=SESSION),),
        retries=(Retry(1, evil, None, None),),
        failures=(Failure(evil, evil, 400, evil),),
        settled_requests=(SettledRequest(replace(asked, id="done"), evil, evil),),
    )
    (prompt, message) = half.log
    message = replace(message, agent=evil, model=ModelRef(evil, evil, evil))
    return replace(half, log=(prompt, replace(message, error=Failure(evil, evil))))
