"""Scripts of the practice model, and the `#keyword` scripts for tests.

A script is the list of steps for one request; a step is a reply of the model (text, reasoning, tool
calls) or a failure. The last step ends the turn. Scripts are plain values, independent of HTTP and
OpenCode.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# drop: the connection breaks halfway; garbage: the stream becomes invalid halfway; hang: there is
# no reply; page: the reply is a web page (OpenCode 1.18.33 treats it as an empty step).
FaultName = Literal["drop", "garbage", "hang", "page"]


@dataclass(frozen=True)
class Call:
    """One tool call of a step."""

    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True)
class HTTPFailure:
    """An HTTP error instead of an answer."""

    status: int
    message: str
    code: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A reply of the model, or a failure that occurs `times` times (None: always)."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    deltas: int = 4
    delay: float = 0.0
    finish: str = ""
    usage: Mapping[str, int] | None = None
    failure: HTTPFailure | FaultName | None = None
    times: int | None = None


Script = tuple[Step, ...]

DONE = Step("Done.")


def use(tool: str, *, say: str = "", think: str = "", **args: Any) -> Step:
    """Return a step that calls one tool."""
    return Step(say, think, (Call(tool, args),))


def bash(command: str, description: str = "Run a command", say: str = "", think: str = "") -> Step:
    """Return a step that runs a shell command."""
    return use("bash", say=say, think=think, command=command, description=description)


def todos(*statuses: str) -> Step:
    """Return a step that writes a todo list with these statuses."""
    names = ("Read the code", "Fix the bug", "Run the tests")
    items = [
        {"content": name, "status": status, "priority": "high"}
        for name, status in zip(names, statuses, strict=False)
    ]
    return use("todowrite", todos=items)


COLOUR_AND_SIZES = (
    {
        "question": "Which colour?",
        "header": "Colour",
        "options": [
            {"label": "Red", "description": "warm"},
            {"label": "Blue", "description": "cool"},
        ],
    },
    {
        "question": "Which sizes?",
        "header": "Sizes",
        "multiple": True,
        "options": [
            {"label": "S", "description": "small"},
            {"label": "L", "description": "large"},
        ],
    },
)


def keyword_script(text: str) -> Script | None:
    """Return the script for a `#keyword arguments` line; None if there is no such line."""
    match = KEYWORD.search(text)
    if match is None:
        return None
    # OpenCode wraps a queued prompt in a tag: its end is not an argument.
    argument = match["argument"].split("</")[0].strip()
    try:
        return KEYWORDS[match["name"]](argument)
    except (ValueError, TypeError) as error:
        return (Step(failure=failure(400, f"#{match['name']} cannot be read: {error}")),)


def _text(argument: str) -> Script:
    (count,) = _numbers(argument, 12)
    return (Step(" ".join(f"word{i}" for i in range(count)), deltas=count),)


def _reason(argument: str) -> Script:
    thought = "First I think. Then I think again. Finally I know."
    return (Step("The answer is 42.", thought, deltas=8),)


def _two(argument: str) -> Script:
    calls = [
        Call("bash", {"command": f"echo {word}", "description": f"Say {word}"})
        for word in ("one", "two")
    ]
    return (Step(calls=tuple(calls)), DONE)


def _edit(argument: str) -> Script:
    words = argument.split()
    path, old, new = words + ["notes.txt", "hello", "goodbye"][len(words) :]
    return (use("edit", filePath=path, oldString=old, newString=new), DONE)


def _write(argument: str) -> Script:
    return (use("write", filePath=argument or "new.txt", content="hello world\nline two\n"), DONE)


def _todo(argument: str) -> Script:
    return (todos("in_progress", "pending"), todos("completed", "in_progress"), DONE)


def _task(argument: str) -> Script:
    prompt = argument or "#text 3"
    call = use("task", description="do sub work", prompt=prompt, subagent_type="general")
    return (call, DONE)


def _long(argument: str) -> Script:
    size, deltas = _numbers(argument, 200, 400)
    line = "The quick brown fox jumps over the lazy dog {:06d}. "
    lines = (line.format(i) for i in range(size * 1024 // len(line.format(0)) + 1))
    return (Step("".join(lines)[: size * 1024], deltas=deltas),)


def _slow(argument: str) -> Script:
    words = argument.split()
    (count,) = _numbers(argument, 40)
    delay = float(words[1]) if len(words) > 1 else 0.25
    return (Step(" ".join(f"slow{i}" for i in range(count)), deltas=count, delay=delay),)


def _error(status: int) -> Callable[[str], Script]:
    def script(argument: str) -> Script:
        return (
            Step(
                f"Recovered after {status}.",
                failure=failure(status, f"scripted failure {status}"),
                times=_times(argument),
            ),
        )

    return script


def _overflow(argument: str) -> Script:
    return (Step("It fits now.", failure=OVERFLOW, times=_times(argument)),)


def _drop(argument: str) -> Script:
    text = "This answer is cut before it reaches its end."
    return (Step(text, deltas=6, failure="drop", times=_times(argument)),)


def _usage(argument: str) -> Script:
    return (Step("Counted.", usage=_json(argument)),)


def _plan(argument: str) -> Script:
    return tuple(_step_from_json(step) for step in _json(argument))


def _step_from_json(step: dict[str, Any]) -> Step:
    """Read a step from JSON: the fields of Step, with calls as [tool, args] pairs."""
    calls = tuple(Call(tool, args) for tool, args in step.pop("calls", ()))
    return replace(Step(**step), calls=calls)


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> HTTPFailure:
    """Return an HTTP error as OpenAI-compatible servers send it; a 429 has a retry-after of 1 s."""
    default = {"retry-after": "1"} if status == 429 else {}
    return HTTPFailure(
        status, message, f"scripted_{status}", default if headers is None else headers
    )


OVERFLOW = HTTPFailure(
    400,
    "This model's maximum context length is 200000 tokens. "
    "However, your messages resulted in 240000 tokens.",
    "context_length_exceeded",
)


def _json(argument: str) -> Any:
    return json.JSONDecoder().raw_decode(argument)[0]


def _numbers(argument: str, *defaults: int) -> list[int]:
    numbers = [int(word) for word in argument.split()[: len(defaults)] if word.isdigit()]
    return numbers + list(defaults[len(numbers) :])


def _times(argument: str) -> int | None:
    word, *_ = *argument.split(), ""
    return int(word) if word.isdigit() else None


KEYWORDS: Mapping[str, Callable[[str], Script]] = {
    "text": _text,
    "reason": _reason,
    "bash": lambda argument: (bash(argument or "echo hi", say="Running it."), DONE),
    "two": _two,
    "edit": _edit,
    "write": _write,
    "read": lambda argument: (use("read", filePath=argument or "notes.txt"), DONE),
    "todo": _todo,
    "task": _task,
    "question": lambda argument: (use("question", questions=list(COLOUR_AND_SIZES)), DONE),
    "long": _long,
    "slow": _slow,
    "err400": _error(400),
    "err401": _error(401),
    "err429": _error(429),
    "err500": _error(500),
    "overflow": _overflow,
    "drop": _drop,
    "hang": lambda argument: (Step(failure="hang"),),
    "empty": lambda argument: (Step(),),
    "length": lambda argument: (Step("cut short", finish="length"),),
    "garbage": lambda argument: (Step("This answer turns to nonsense.", failure="garbage"),),
    "page": lambda argument: (Step(failure="page"),),
    "usage": _usage,
    "plan": _plan,
}

KEYWORD = re.compile(rf"(?<!\S)#(?P<name>{'|'.join(KEYWORDS)})\b[ \t]*(?P<argument>[^\n]*)")
