"""Write a synthetic history of many sessions into the database of a stopped OpenCode.

The rows have the format of OpenCode 1.18.33; their content is made up and depends only on the seed.
Sizes are log-normal: about 5 kB of JSON per message, 180 kB per session. `spent` computes from the
database the costs that the package must find over HTTP.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

DAY = 86_400_000
_NANO = Decimal("1e-9")
NOW = 1_796_000_000_000
# provider, model, and USD per million tokens: input, output, cache read, cache write
MODELS = (
    ("anthropic", "large", 5.0, 25.0, 0.5, 6.25),
    ("anthropic", "medium", 3.0, 15.0, 0.3, 3.75),
    ("openai", "codex", 1.75, 14.0, 0.175, 0.0),
    ("free", "pickle", 0.0, 0.0, 0.0, 0.0),
)
TOOLS = ("read", "read", "read", "bash", "bash", "edit", "grep", "write", "task")


class Corpus(NamedTuple):
    """The numbers of rows written."""

    sessions: int
    messages: int
    parts: int


def fill_database(database: Path, sessions: int, messages: int, seed: int = 7) -> Corpus:
    """Add sessions to the only project with version control.

    Args:
        database: The database of an OpenCode that is not running.
        sessions: The number of sessions; a fifth are subagents of others.
        messages: The average number of messages per session.
        seed: The seed of the random generator.
    """
    with sqlite3.connect(database) as db:
        project = db.execute("select id, worktree from project where vcs is not null").fetchone()
        writer = _Writer(random.Random(seed), *project)
        for number in range(sessions):
            writer.session(number, messages)
        for table, rows in writer.rows.items():
            names = ", ".join(rows[0])
            places = ", ".join(f":{name}" for name in rows[0])
            db.executemany(f"insert into {table} ({names}) values ({places})", rows)
    db.close()
    return Corpus(*(len(writer.rows[t]) for t in ("session", "message", "part")))


class _Writer:
    def __init__(self, chance: random.Random, project: str, directory: str) -> None:
        self._chance = chance
        self._project, self._directory = project, directory
        self._count = 0
        self._roots: list[tuple[str, int]] = []
        self._source = _source()
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def session(self, number: int, messages: int) -> None:
        """Add a session with its turns."""
        chance = self._chance
        child = number > 9 and chance.random() < 0.2
        parent, start = chance.choice(self._roots) if child else (None, 0)
        now = start + chance.randrange(3_600_000) if child else NOW - chance.randrange(90 * DAY)
        id = self._id("ses")
        if not child:
            self._roots.append((id, now))
        agent = chance.choice(("general", "explore") if child else ("build", "build", "plan"))
        model = chance.choice(MODELS)
        totals = [0.0, 0, 0, 0, 0, 0]
        created, left = now, max(2, round(chance.lognormvariate(0, 0.8) * messages * 0.72))
        while left > 0:
            steps = min(left, chance.choice((1, 2, 4, 8, 12)))
            now = self._turn(id, agent, model, now, steps, totals)
            left -= steps + 1
        names = ("cost", *(f"tokens_{t}" for t in _TOKENS))
        row = {"id": id, "project_id": self._project, "parent_id": parent, "slug": f"s-{number}"}
        row |= {"directory": self._directory, "path": "", "title": f"Session {number}"}
        row |= {"version": "1.18.33", "agent": agent, "time_created": created, "time_updated": now}
        row["model"] = json.dumps({"id": model[1], "providerID": model[0], "variant": "default"})
        self.rows["session"].append(row | dict(zip(names, totals, strict=True)))

    def _turn(
        self, session: str, agent: str, model: Any, now: int, steps: int, totals: list[Any]
    ) -> int:
        prompt = self._id("msg")
        who = {"providerID": model[0], "modelID": model[1]}
        diffs = [{"file": "a.py", "patch": self._text(900), "additions": 1, "deletions": 0}]
        summary = {"diffs": diffs if self._chance.random() < 0.4 else []}
        user = {"role": "user", "time": {"created": now}, "agent": agent, "model": who}
        self._message(session, prompt, now, user | {"summary": summary})
        self._part(session, prompt, now, {"type": "text", "text": self._text(180)})
        for step in range(steps):
            now = self._step(session, prompt, agent, model, now + 30, step == steps - 1, totals)
        return now + self._chance.randrange(10_000, 600_000)

    def _step(
        self,
        session: str,
        prompt: str,
        agent: str,
        model: Any,
        began: int,
        last: bool,
        totals: list[Any],
    ) -> int:
        chance, id, now = self._chance, self._id("msg"), began + self._chance.randrange(400, 4000)
        snapshot = f"{chance.getrandbits(160):040x}"
        self._part(session, id, now, {"type": "step-start", "snapshot": snapshot})
        for kind in ("reasoning", "text"):
            if chance.random() < (0.4 if kind == "reasoning" or not last else 1.0):
                end = now + chance.randrange(200, 9000)
                time = {"start": now, "end": end}
                text = self._text(420 if kind == "reasoning" else 700)
                self._part(session, id, now, {"type": kind, "text": text, "time": time})
                now = end
        if not last:
            now = self._tool(session, id, now)
        used = [chance.randrange(200, 9000), chance.randrange(20, 900), chance.randrange(300)]
        used += [chance.randrange(60_000), chance.randrange(5_000) if model[5] else 0]
        _, _, fresh, out, read, write = model
        cost = (
            used[0] * fresh + (used[1] + used[2]) * out + used[3] * read + used[4] * write
        ) / 1e6
        failed = chance.random() < 0.012
        if failed:
            cost, used = 0, [0] * 5
        cache = {"read": used[3], "write": used[4]}
        tokens = {"input": used[0], "output": used[1], "reasoning": used[2], "cache": cache}
        info = {"role": "assistant", "parentID": prompt, "mode": agent, "agent": agent}
        info |= {"path": {"cwd": self._directory, "root": self._directory}}
        info |= {"providerID": model[0], "modelID": model[1], "cost": cost, "tokens": tokens}
        info["time"] = {"created": began, "completed": now + 50}
        if failed:
            error = {"message": "Overloaded", "statusCode": 529, "isRetryable": True}
            info["error"] = {"name": "APIError", "data": error}
        else:
            info["finish"] = "stop" if last else "tool-calls"
            end = {"type": "step-finish", "reason": info["finish"], "snapshot": snapshot}
            self._part(session, id, now, end | {"cost": cost, "tokens": tokens})
        for at, value in enumerate((cost, *used)):
            totals[at] += value
        self._message(session, id, began, info)
        return now + 50

    def _tool(self, session: str, message: str, now: int) -> int:
        chance, tool = self._chance, self._chance.choice(TOOLS)
        end, path = (
            now + chance.randrange(5, 4000),
            f"{self._directory}/src/f{chance.randrange(90)}.py",
        )
        args, output, meta = {"filePath": path}, self._text(700), {"truncated": False}
        match tool:
            case "read":
                output = self._text(3200)
                meta |= {"preview": output[:700], "display": {"path": path, "text": output}}
            case "bash":
                args = {"command": self._text(60), "description": "Run"}
                meta |= {"output": output, "exit": chance.choice((0, 0, 0, 1))}
            case "edit":
                old, new = self._text(260), self._text(300)
                args |= {"oldString": old, "newString": new}
                patch = f"--- a\n+++ b\n@@ -1 +1 @@\n-{old}\n+{new}\n"
                meta |= {"filediff": {"file": path, "patch": patch, "additions": 1, "deletions": 1}}
            case "write":
                args |= {"content": self._text(2200)}
        state = {"status": "completed", "input": args, "output": output, "metadata": meta}
        state |= {"title": tool, "time": {"start": now, "end": end}}
        if chance.random() < 0.05:
            state = {"status": "error", "input": args, "error": "No.", "time": state["time"]}
        call = f"call_{chance.getrandbits(96):024x}"
        self._part(
            session, message, now, {"type": "tool", "tool": tool, "callID": call, "state": state}
        )
        return end

    def _message(self, session: str, id: str, now: int, info: dict[str, Any]) -> None:
        row = {"id": id, "session_id": session, "time_created": now, "time_updated": now}
        self.rows["message"].append(row | {"data": _json(info)})

    def _part(self, session: str, message: str, now: int, part: dict[str, Any]) -> None:
        row = {"id": self._id("prt"), "message_id": message, "session_id": session}
        row |= {"time_created": now, "time_updated": now, "data": _json(part)}
        self.rows["part"].append(row)

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count:012x}{self._chance.getrandbits(56):014x}"

    def _text(self, size: int) -> str:
        size = max(12, round(self._chance.lognormvariate(0, 0.9) * size * 1.2))
        start = self._chance.randrange(len(self._source) - 40_000)
        return self._source[start : start + min(size, 40_000)]


_TOKENS = ("input", "output", "reasoning", "cache_read", "cache_write")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _source() -> str:
    """Return realistic text: the source of Python's standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:100]
    text = "".join(f.read_text(encoding="utf-8", errors="replace") for f in files)
    return text + "naïve café, “quotes”, 日本語のコメント\n" * 200


# -- reading the database --------------------------------------------------------------------------


class ModelCall(NamedTuple):
    """A model call: session, model, time (ms), cost (USD), and whether a fork copied it."""

    session: str
    model: str
    time: int
    cost: Decimal
    copied: bool


def calls(database: Path) -> Iterator[ModelCall]:
    """Yield every model call in the database."""
    query = """
        select s.id, json_extract(m.data, '$.modelID'), m.time_created,
               json_extract(m.data, '$.cost'), m.time_created < s.time_created
        from message m join session s on s.id = m.session_id
        where json_extract(m.data, '$.role') = 'assistant'
    """
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        for session, model, time, cost, copied in db.execute(query):
            yield ModelCall(session, model, time, Decimal(repr(cost)), bool(copied))
    db.close()


def spent(database: Path, by: str, zone: str, copies: bool) -> dict[str, Decimal]:
    """Return USD by "session", "model" or "day" in a time zone, with or without forks' copies."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for call in calls(database):
        if call.copied and not copies:
            continue
        day = f"{datetime.fromtimestamp(call.time / 1000, ZoneInfo(zone)):%Y-%m-%d}"
        sums[{"session": call.session, "model": call.model, "day": day}[by]] += call.cost
    return sums


def differences(
    ours: Iterable[tuple[str, float]], theirs: Mapping[str, Decimal]
) -> dict[str, tuple[float, Decimal]]:
    """Return sums that differ by at least a thousandth of a micro-dollar; missing ones are 0."""
    pairs = {key: (cost, theirs.get(key, Decimal())) for key, cost in ours}
    pairs |= {key: (0.0, cost) for key, cost in theirs.items() if key not in pairs}
    return {k: (a, b) for k, (a, b) in pairs.items() if abs(Decimal(repr(float(a))) - b) >= _NANO}
