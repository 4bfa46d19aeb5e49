"""How the simulated 2.x runs commands: what they admit carries nothing that names them.

A template becomes one ordinary prompt; one with `subtask` a session below, whose result comes back
later as a synthetic prompt; a command without a template stands for a plugin's own, which admits
nothing. With `late` (seconds) the answer comes first.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from .agent import Backend
from .journal import SessionRecord

_PLACE = re.compile(r"\$(ARGUMENTS|\d+)")


def expand(template: str, text: str) -> str:
    """A template with the arguments in it; the last number takes all that is left."""
    words = text.split()
    last = max((int(n) for n in _PLACE.findall(template) if n.isdigit()), default=0)

    def value(found: re.Match[str]) -> str:
        if found[1] == "ARGUMENTS":
            return text
        place = int(found[1])
        return " ".join(words[place - 1 :] if place == last else words[place - 1 : place])

    return _PLACE.sub(value, template)


def run_command(
    backend: Backend,
    record: SessionRecord,
    name: str,
    command: Mapping[str, Any],
    text: str,
    delivery: str,
) -> None:
    """Run a command; returns when its answer is due."""
    if "template" not in command:
        return
    run = threading.Thread(
        target=_admit, args=(backend, record, name, command, text, delivery), daemon=True
    )
    run.start()
    if not command.get("late"):
        run.join()


def _admit(
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
        _start_below(backend, record, name, command, prompt)
        return
    if command.get("agent"):
        backend.publish("agent.selected", record, agent=command["agent"])
    backend.enqueue(record, "user", {"text": prompt}, delivery, backend.journal.ids.new("msg"))
    backend.wake(record)


def _start_below(
    backend: Backend, record: SessionRecord, name: str, command: Mapping[str, Any], prompt: str
) -> None:
    title = command.get("description") or name
    body = {"parentID": record.id, "title": title, "agent": command.get("agent") or "general"}
    child = backend.open(body, record.directory)
    backend.enqueue(child, "user", {"text": prompt}, "steer", backend.journal.ids.new("msg"))
    backend.wake(child)
    threading.Thread(target=_bring_back, args=(backend, record, child), daemon=True).start()


def _bring_back(backend: Backend, record: SessionRecord, child: SessionRecord) -> None:
    """Tell the session above what came of the one below, when that is idle."""
    while child.id in backend.running:
        time.sleep(0.02)
    state = "completed" if child.info.get("outcome") == "succeeded" else "error"
    answer = next((r for r in reversed(child.rows) if r["type"] == "assistant"), None)
    said = "".join(p["text"] for p in (answer or {}).get("content", ()) if p["type"] == "text")
    title, agent = child.info["title"], child.info["agent"]
    head = f'<subagent sessionID="{child.id}" state="{state}" description="{title}">'
    link = {"source": "subagent", "childID": child.id, "agent": agent, "state": state}
    payload = {"text": f"{head}\n{said}\n</subagent>", "metadata": link}
    if record.id in backend.sessions:
        backend.enqueue(record, "synthetic", payload, "steer", backend.journal.ids.new("msg"))
        backend.wake(record)
