"""Commands of the simulated 2.x. As in 2.x, the inputs that they create don't name them.

A template becomes an ordinary prompt; with `subtask` it starts a child session, whose result
arrives later as a synthetic prompt. A command without a template represents one of a plugin, which
creates no input. With `late` (seconds) the reply is sent before the input is created.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from .agent import Backend
from .journal import SessionRecord

_PLACEHOLDER = re.compile(r"\$(ARGUMENTS|\d+)")


def expand(template: str, text: str) -> str:
    """Insert the arguments into a template; the last number takes all remaining words."""
    words = text.split()
    last = max((int(n) for n in _PLACEHOLDER.findall(template) if n.isdigit()), default=0)

    def value(match: re.Match[str]) -> str:
        if match[1] == "ARGUMENTS":
            return text
        number = int(match[1])
        return " ".join(words[number - 1 :] if number == last else words[number - 1 : number])

    return _PLACEHOLDER.sub(value, template)


def run_command(
    backend: Backend,
    record: SessionRecord,
    name: str,
    command: Mapping[str, Any],
    text: str,
    delivery: str,
) -> None:
    """Run a command; return when its reply is due."""
    if "template" not in command:
        return
    thread = threading.Thread(
        target=_create_input, args=(backend, record, name, command, text, delivery), daemon=True
    )
    thread.start()
    if not command.get("late"):
        thread.join()


def _create_input(
    backend: Backend,
    record: SessionRecord,
    name: str,
    command: Mapping[str, Any],
    text: str,
    delivery: str,
) -> None:
    time.sleep(command.get("late", 0))
    prompt = expand(command["template"], text)
    if command.get("subtask"):
        _start_child(backend, record, name, command, prompt)
        return
    if command.get("agent"):
        backend.publish("agent.selected", record, agent=command["agent"])
    backend.enqueue(record, "user", {"text": prompt}, delivery, backend.journal.ids.new("msg"))
    backend.wake(record)


def _start_child(
    backend: Backend, record: SessionRecord, name: str, command: Mapping[str, Any], prompt: str
) -> None:
    title = command.get("description") or name
    body = {"parentID": record.id, "title": title, "agent": command.get("agent") or "general"}
    child = backend.open(body, record.directory)
    backend.enqueue(child, "user", {"text": prompt}, "steer", backend.journal.ids.new("msg"))
    backend.wake(child)
    threading.Thread(target=_return_result, args=(backend, record, child), daemon=True).start()


def _return_result(backend: Backend, record: SessionRecord, child: SessionRecord) -> None:
    """Wait until a child session is idle, and send its result to its parent."""
    while child.id in backend.running:
        time.sleep(0.02)
    state = "completed" if child.info.get("outcome") == "succeeded" else "error"
    answer = next((r for r in reversed(child.rows) if r["type"] == "assistant"), None)
    text = "".join(p["text"] for p in (answer or {}).get("content", ()) if p["type"] == "text")
    title, agent = child.info["title"], child.info["agent"]
    head = f'<subagent sessionID="{child.id}" state="{state}" description="{title}">'
    link = {"source": "subagent", "childID": child.id, "agent": agent, "state": state}
    payload = {"text": f"{head}\n{text}\n</subagent>", "metadata": link}
    if record.id in backend.sessions:
        backend.enqueue(record, "synthetic", payload, "steer", backend.journal.ids.new("msg"))
        backend.wake(record)
