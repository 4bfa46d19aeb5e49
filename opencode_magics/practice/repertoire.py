"""The practice model's answers to requests in plain words.

`REPERTOIRE` maps patterns to functions that return a script for a conversation; the first pattern
that matches the request wins. The scripts work on the practice workspace like a real model, and
their texts depend on the results of their tools.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .script import Call, Script, Step, bash, failure, todos, use
from .workspace import BUGGY, FIXED

PYTHON = "python" if os.name == "nt" else "python3"
RUN_TESTS = f"{PYTHON} test_greet.py"


@dataclass(frozen=True)
class Exchange:
    """A request, and the results of the model's tools since."""

    request: str
    results: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """The latest tool result."""
        return self.results[-1] if self.results else ""

    @property
    def fixed(self) -> bool:
        """Whether a result shows that the bug is fixed."""
        return any("if not others" in result for result in self.results)


def plain_script(exchange: Exchange) -> Script:
    """Return the script for a request in plain words; an unknown one gets a list of examples."""
    for pattern, script in REPERTOIRE:
        if re.search(pattern, exchange.request, re.IGNORECASE):
            return script(exchange)
    return (Step(WHAT_TO_ASK),)


def refusal(exchange: Exchange) -> Step | None:
    """Return the model's reply to a refused tool call; None if it was not refused."""
    if re.search(r"rejected permission|a rule which prevents", exchange.last):
        return Step("Understood, I'll leave it. Tell me if you want it done another way.")
    return None


def explain_file(exchange: Exchange) -> Script:
    """Read greet.py and explain it."""
    return (
        use("read", filePath="greet.py", say="Let me read it first.", think=THINK_FILE),
        Step(EXPLAIN_FILE + (FINE if exchange.fixed else ODD), THINK_READ, deltas=24, delay=0.02),
    )


def explain_project(exchange: Exchange) -> Script:
    """Read three files in one step and explain how they fit together."""
    calls = [Call("read", {"filePath": name}) for name in ("README.md", "greet.py", "party.py")]
    return (
        Step("I'll look at the files.", THINK_PROJECT, tuple(calls)),
        Step(EXPLAIN_PROJECT, deltas=24, delay=0.02),
    )


def run_tests(exchange: Exchange) -> Script:
    """Run the tests (asks for permission)."""
    return (
        bash(RUN_TESTS, "Run the tests", say="I'll run the tests."),
        Step(verdict(exchange), deltas=8, delay=0.02),
    )


def fix_bug(exchange: Exchange) -> Script:
    """Read, edit (asks for permission with a diff), run the tests (asks again)."""
    read = use("read", filePath="greet.py", think=THINK_BUG)
    if exchange.fixed and len(exchange.results) == 1:
        return (read, Step("`greet_all` already handles a party of one. Nothing to fix."))
    edit = use(
        "edit",
        say="With a single guest there are no others to join. I'll answer that case first.",
        filePath="greet.py",
        oldString=BUGGY,
        newString=FIXED,
    )
    tests = bash(RUN_TESTS, "Run the tests", say="Now the tests.")
    return (read, edit, tests, Step(f"{verdict(exchange)} {FIX}", deltas=12, delay=0.02))


def add_file(exchange: Exchange) -> Script:
    """Write a new file (asks for permission)."""
    return (
        use("write", filePath="farewell.py", content=FAREWELL, say="A module of its own, then."),
        Step("I wrote `farewell.py`. It mirrors `greet.py`, so both read the same way."),
    )


def ask(exchange: Exchange) -> Script:
    """Ask the user two questions and repeat the answers."""
    return (
        use("question", questions=QUESTIONS, say="Two things I'd like to know."),
        Step(answers(exchange), deltas=8),
    )


def delegate_review(exchange: Exchange) -> Script:
    """Delegate a review to the subagent `reviewer`, which needs no permission."""
    return delegate("Review greet.py and report what you find.", exchange)


def delegate_tests(exchange: Exchange) -> Script:
    """Delegate to the subagent `reviewer`, which needs permission to run the tests."""
    return delegate("Check greet.py with its tests and report what you find.", exchange)


def delegate(prompt: str, exchange: Exchange) -> Script:
    """Send `prompt` to the subagent `reviewer` and summarize its result."""
    task = use(
        "task",
        say="The reviewer is the right one for this.",
        description="Review greet.py",
        prompt=prompt,
        subagent_type="reviewer",
    )
    summary = ALL_WELL if SOUND in exchange.last else ONE_FINDING
    return (task, Step(f"The reviewer is back. {summary}", deltas=8, delay=0.02))


def review(exchange: Exchange) -> Script:
    """Read and report, as the reviewer."""
    return (use("read", filePath="greet.py"), Step(report(exchange), deltas=8))


def check(exchange: Exchange) -> Script:
    """Read, run the tests and report, as the reviewer."""
    tests = bash(RUN_TESTS, "Run the tests")
    result = f"{verdict(exchange)}\n\n{report(exchange)}"
    return (use("read", filePath="greet.py"), tests, Step(result, deltas=8))


def recover(exchange: Exchange) -> Script:
    """Fail twice with "too many requests" and then answer."""
    busy = failure(429, "Too many requests. Try again in a second.")
    return (Step(RECOVERED, failure=busy, times=2),)


def make_plan(exchange: Exchange) -> Script:
    """Keep a todo list while reading."""
    return (
        todos("in_progress", "pending", "pending"),
        use("read", filePath="greet.py"),
        todos("completed", "pending", "pending"),
        Step("The plan stands. Ask me to *fix the bug* and I'll carry it out."),
    )


def count(exchange: Exchange) -> Script:
    """Count for half a minute, to be interrupted."""
    numbers = "\n".join(f"{number}. of sixty" for number in range(1, 61))
    return (Step(numbers, deltas=60, delay=0.5),)


def fill_in(exchange: Exchange) -> Script:
    """Answer with JSON of the types in the request's schema."""
    schema = json.JSONDecoder().raw_decode(exchange.request.split("```json\n")[-1])[0]
    value = json.dumps(sample(schema, schema, "answer"), indent=2)
    return (Step(f"```json\n{value}\n```", deltas=8),)


def sample(schema: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Any:
    """Return a value of the types in a schema; its other constraints are ignored."""
    if "$ref" in schema:
        return sample(root["$defs"][schema["$ref"].rpartition("/")[2]], root, name)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], root, name)
    match schema.get("type"):
        case "object":
            return {k: sample(s, root, k) for k, s in schema.get("properties", {}).items()}
        case "array":
            item = sample(schema.get("items") or {}, root, name)
            return [item] * schema.get("minItems", 2)
        case "integer" | "number" as kind:
            return schema.get("minimum", 1 if kind == "integer" else 0.5)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return f"the {name}"


def continue_(exchange: Exchange) -> Script:
    """Answer the follow-up requests that OpenCode itself sends."""
    return (Step("The work is done, and its result is above."),)


def verdict(exchange: Exchange) -> str:
    """Summarize the last run of the tests."""
    tally = re.findall(r"(\d+) passed, (\d+) failed", "\n".join(exchange.results))
    if not tally:
        return "The tests did not finish, so I can't say."
    passed, failed = tally[-1]
    if failed == "0":
        return f"All {passed} tests pass."
    return f"{passed} tests pass and **{failed} fails**: {FAILS}"


def answers(exchange: Exchange) -> str:
    """Repeat the user's answers."""
    texts = re.findall(r'"="([^"]*)"', exchange.last)
    if not texts:
        return "Then I'll decide: friendly, and in English."
    return f"Good: **{'** and **'.join(texts)}** it is. I'll keep to that from now on."


def report(exchange: Exchange) -> str:
    """Return the reviewer's report."""
    return f"- `greet` is fine.\n- `greet_all`: {SOUND if exchange.fixed else UNSOUND}\n"


THINK_FILE = "The user wants to understand the file. I should read it before I say anything."
THINK_READ = "What it does first, then how it does it, then whatever looks odd."
THINK_PROJECT = "A small project. The README says what it is for, the two modules say how."
THINK_BUG = "The failing case is a party of one. I need to see how greet_all joins the names."

EXPLAIN_FILE = """\
`greet.py` makes greetings. It has two functions:

- `greet(name)` greets **one** guest;
- `greet_all(names)` greets **many** in one sentence.

The interesting line is the unpacking:

```python
*others, last = [name.title() for name in names]
```

It splits the guests into the last one and all before it, so that the sentence can put
commas between the others and an *and* before the last.
"""

ODD = """
One thing looks odd: for a **single** guest `others` is empty, and the sentence begins
"Hello,  and Ada!". `test_greet.py` has a case for it. Shall I run the tests?
"""

FINE = """
A party of one is answered before that, by `greet` itself.
"""

EXPLAIN_PROJECT = """\
The project greets the guests of a party:

| file | what it does |
|---|---|
| `guests.txt` | the guests, one a line |
| `greet.py` | makes the greetings |
| `party.py` | reads the guests and prints one greeting for all |
| `test_greet.py` | the tests, for plain Python |

So `party.py` is three lines long:

```python
with open("guests.txt") as file:
    print(greet_all(file.read().split()))
```
"""

FAILS = """\
a party of one is greeted with a stray *and*.

```text
got 'Hello,  and Ada!', expected 'Hello, Ada!'
```

`greet_all` joins an empty list of others. Ask me to *fix the bug*.
"""

FIX = """\
A single guest is now greeted by `greet` itself:

```python
if not others:
    return greet(last)
```
"""

SOUND = "sound; a party of one has an answer of its own."
UNSOUND = "reads well, but is wrong for a party of one: `others` is empty."
ALL_WELL = "It found nothing to complain about."
ONE_FINDING = (
    "It found one thing: `greet_all` is wrong for a party of one. Ask me to *fix the bug*."
)

RECOVERED = """\
Here I am. The provider had too many requests and asked to wait; OpenCode tried again
until it worked. Nothing was lost, and nothing was sent twice.
"""

FAREWELL = '''\
"""Farewells for one guest."""


def farewell(name):
    """Say goodbye to one guest: "Goodbye, Ada!"."""
    return f"Goodbye, {name.title()}!"
'''

QUESTIONS = [
    {
        "question": "How should the greetings sound?",
        "header": "Tone",
        "options": [
            {"label": "Friendly", "description": "Hello, Ada!"},
            {"label": "Formal", "description": "Good evening, Ada."},
        ],
    },
    {
        "question": "In which languages?",
        "header": "Languages",
        "multiple": True,
        "options": [
            {"label": "English", "description": "as now"},
            {"label": "French", "description": "Bonjour, Ada !"},
            {"label": "German", "description": "Hallo, Ada!"},
        ],
    },
]

WHAT_TO_ASK = """\
I am the practice model: a script, not a mind, so I know only a few things. OpenCode and
everything it does around me are real. Ask me to

- *explain greet.py* or *explain the project*
- *run the tests*
- *fix the bug*
- *write a farewell*
- *ask me something*
- *delegate a review*, or *have a subagent run the tests*
- *make a plan*
- *count slowly*
- *fail and recover*
"""

REPERTOIRE: tuple[tuple[str, Callable[[Exchange], Script]], ...] = (
    (r"fits this JSON Schema", fill_in),
    # OpenCode's own follow-up requests after a compaction and after a subtask command.
    (r"exceeded the provider's size limit|Summarize the task tool output", continue_),
    (r"(delegate|subagent).*\btests?\b", delegate_tests),
    (r"delegate|subagent", delegate_review),
    (r"^check .*\btests?\b", check),
    (r"\breview\b", review),
    (r"\bfail\b.*\brecover\b|\brate limit", recover),
    (r"\bfix\b|\bbug\b", fix_bug),
    (r"\btests?\b", run_tests),
    (r"\bask me\b|\bquestion\b", ask),
    (r"\bplan\b|\btodo", make_plan),
    (r"\bwrite\b|\bfarewell\b|\badd\b", add_file),
    (r"\bcount\b|\bslowly\b", count),
    (r"\bexplain\b.*\b(project|repo\w*|workspace)\b|what is this", explain_project),
    (r"\bexplain\b|greet\.py", explain_file),
)
