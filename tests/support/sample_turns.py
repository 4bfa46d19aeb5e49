"""Turns built from plain values, for tests of what a cell displays."""

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


def answer(*parts: Part, id: str = "msg_1", usage: Usage | None = USAGE, **fields: Any) -> Message:
    """Return a finished step of an answer; `fields` override its header."""
    header: dict[str, Any] = {
        "created": 1_100,
        "completed": 4_200,
        "parent": PROMPT.id,
        "agent": "build",
        "model": ModelRef("mock", "m1"),
        "finish": "stop",
        **fields,
    }
    end = (StepEnd(f"{id}-z", header["finish"], usage),) if header["completed"] else ()
    all_parts = (StepStart(f"{id}-0"), *parts, *end)
    return Message(id, SESSION, "assistant", parts=all_parts, reported=usage, **header)


def turn(*answers: Message, **fields: Any) -> Turn:
    """Return a turn with these answers, which is over unless `fields` say otherwise."""
    values = {"checked": True, "status": Status("idle"), **fields}
    return Turn(SESSION, PROMPT.id, log=(PROMPT, *answers), **values)


def running(*parts: Part, **fields: Any) -> Turn:
    """Return a turn that is running its only step."""
    half = answer(*parts, completed=None, finish=None, usage=None)
    return turn(half, checked=False, status=Status("busy"), **fields)


def says(text: str, **fields: Any) -> Turn:
    """Return a turn that answers with a text."""
    return turn(answer(Text("t1", text, 0, 1)), **fields)


def tool(name: str = "bash", call: str = "call_1", **fields: Any) -> ToolCall:
    """Return a completed tool call."""
    values = {"status": "completed", "input": {"command": "git push"}, "start": 0, "end": 400}
    return ToolCall(id=f"prt_{call}", call=call, tool=name, **values | fields)


def permission(call: str | None = "call_1", **fields: Any) -> Permission:
    """Return a permission request for a shell command."""
    values = {"session": SESSION, "action": "bash", "command": "git push", **fields}
    return Permission(f"per_{call}", call=call, **values)


def everything_hostile(evil: str) -> Turn:
    """Return a turn with the same text in every field that others can control."""
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
