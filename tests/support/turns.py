"""Send prompts and follow their turns to the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from opencode_magics.client.client import Client
from opencode_magics.core.model import Permission, Session
from opencode_magics.core.turn import Turn
from opencode_magics.recording.format import Recording
from opencode_magics.sessions.replay import Replay
from opencode_magics.sessions.run import Run, prepare


def finish(run: Run, seconds: float = 120.0, **answers: object) -> Turn:
    """Follow a run to its end; permissions get `decision`, questions `answers`."""
    deadline = time.monotonic() + seconds
    for turn in run:
        if time.monotonic() > deadline:
            raise AssertionError(f"still {turn!r} after {seconds} s; note: {run.note}")
        for permission in turn.permissions:
            run.decide(permission, answers.get("decision", "once"), answers.get("message", ""))
        for question in turn.questions:
            if answers.get("answers") is None:
                run.dismiss(question)
            else:
                run.answer(question, answers["answers"])
    return run.turn


def prompted(client: Client, session: Session, text: str, **options: object) -> Turn:
    answers = {k: options.pop(k) for k in ("decision", "message", "answers") if k in options}
    with prepare(client, session, text, **options) as run:
        run.start()
        return finish(run, **answers)


def played(recording: Recording, speed: float = math.inf) -> Turn:
    """Replay a recording and return its final turn."""
    run = Replay(recording, speed)
    for _ in run:
        pass
    return run.turn


def answer(run: Run) -> None:
    """Allow every permission, and choose the first option of every question."""
    for request in run.waiting:
        if isinstance(request, Permission):
            run.decide(request, "once")
        else:
            run.answer(request, [[i.options[0].label] for i in request.items])


def live(client: Client, session: Session, text: str, act: Callable[[Run], Any] = answer) -> Turn:
    """Send a prompt and follow its turn to the end."""
    with prepare(client, session, text) as run:
        run.start()
        for _ in run:
            act(run)
    return run.turn
