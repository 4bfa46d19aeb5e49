"""The agent of the simulated 2.x server: executions, steps, tools, permissions and questions.

It uses the practice model, and its tools really run in the workspace. Scripts use the tool names of
1.x; `V2_TOOLS` translates them to those of 2.x.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.model import Rule, SavedRule
from ...core.patches import make_patch, split_lines
from ...core.rules import decide
from ..environment import environment
from ..model import SUMMARY, TITLE, ModelRequest, PracticeModel, pieces, usage
from ..script import OVERFLOW, Call, HTTPFailure, Step
from ..workspace import PRICES
from .journal import Journal, SessionRecord, Wire, now

MODEL_REF = {"id": "scripted", "providerID": "practice", "variant": "default"}
SPAWNED = "You are a subagent spawned by another session.\n"
_TICK = 0.02
_RETRY_AFTER = 0.5  # seconds before a request to the provider is retried

_ALLOW = Rule("*", "*", "allow")
DEFAULTS = (_ALLOW, Rule("external_directory", "*", "ask"), Rule("read", "*.env", "ask"))
CONFIGURED = (Rule("shell", "*", "ask"), Rule("edit", "*", "ask"))
AGENTS: Mapping[str, tuple[str, str, tuple[Rule, ...]]] = {
    "build": ("primary", "The default agent", (*DEFAULTS, *CONFIGURED)),
    "plan": ("primary", "Plans and changes nothing", (*DEFAULTS, Rule("edit", "*", "deny"))),
    "general": ("subagent", "Works on a task of its own", (*DEFAULTS, *CONFIGURED)),
    "reviewer": (
        "all",
        "Reviews code and reports what it found; changes nothing",
        (*DEFAULTS, *CONFIGURED, Rule("edit", "*", "deny")),
    ),
}

V2_TOOLS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "bash": ("shell", {"command": "command"}),
    "edit": ("edit", {"filePath": "path", "oldString": "oldString", "newString": "newString"}),
    "write": ("write", {"filePath": "path", "content": "content"}),
    "read": ("read", {"filePath": "path"}),
    "task": (
        "subagent",
        {"subagent_type": "agent", "description": "description", "prompt": "prompt"},
    ),
    "question": ("question", {"questions": "questions"}),
}


def v2_tool_call(call: Call) -> tuple[str, Wire]:
    """Translate a scripted call to the tool name and input of 2.x."""
    name, names = V2_TOOLS.get(call.tool, (call.tool, {}))
    args = dict(call.args)
    return name, {names[k]: v for k, v in args.items() if k in names} if names else args


class ExecutionStopped(Exception):  # noqa: N818 - not an error: it was interrupted
    """The execution was interrupted; `reason` is the one sent to clients."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ExecutionFailed(Exception):  # noqa: N818 - an outcome
    """The execution failed; `error` is sent to clients."""

    def __init__(self, kind: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.error = {"type": kind, "message": message} | ({"status": status} if status else {})


class Declined(Exception):  # noqa: N818 - an answer
    """A person refused without a message, which ends the tool call and the turn."""


@dataclass
class PendingRequest:
    """A pending permission or form."""

    wire: Wire
    settled: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    message: str = ""
    cancelled: bool = False


@dataclass
class ShellProcess:
    """A shell process and its output file."""

    info: Wire
    output: Path
    process: subprocess.Popen[bytes] | None = None


class Backend:
    """State shared by all executions: the journal, the model, pending requests, saved rules."""

    def __init__(self, root: Path, model: PracticeModel) -> None:
        self.root = root
        self.model = model
        self.journal = Journal()
        self.sessions: dict[str, SessionRecord] = {}
        self.running: dict[str, Execution] = {}
        self.permissions: dict[str, PendingRequest] = {}
        self.forms: dict[str, PendingRequest] = {}
        self.saved: list[SavedRule] = []
        self.shells: dict[str, ShellProcess] = {}
        self.snapshots: dict[str, dict[str, str]] = {}
        self.mcp: dict[str, str] = {}  # MCP server name: status
        self.warm: set[str] = set()  # directories whose plugins are loaded
        self.lock = threading.RLock()

    def open(self, body: Wire, directory: str) -> SessionRecord:
        """Create a session."""
        fields: Wire = {
            k: body[k] for k in ("parentID", "title", "metadata", "permissions") if k in body
        }
        key = body.get("id") or self.journal.ids.new("ses", falling=True)
        fields |= {k: body[k] for k in ("agent", "model") if body.get(k)}
        info: Wire = {"id": key, "projectID": project_of(directory), **fields}
        info |= {"cost": 0, "tokens": _tokens(0, 0, 0, 0), "location": {"directory": directory}}
        created = now()
        info["time"] = {"created": created, "updated": created}
        record = self.sessions[key] = SessionRecord(info)
        data = {"sessionID": key, "slug": "quiet-harbour", "version": "2.0.16", "subpath": ""}
        data |= {"projectID": info["projectID"], "location": info["location"], **fields}
        self.journal.publish("session.created", data, record)
        return record

    def publish(self, kind: str, record: SessionRecord, **data: Any) -> Wire:
        """Publish an event of a session."""
        return self.journal.publish(f"session.{kind}", {"sessionID": record.id, **data}, record)

    def enqueue(
        self, record: SessionRecord, kind: str, payload: Wire, delivery: str, key: str
    ) -> Wire:
        """Put an item into the inbox of a session, and return it as the server does."""
        item = {"type": kind, "payload": payload, "delivery": delivery}
        event = self.publish("inbox.enqueued", record, inboxID=key, item=item)
        return receipt(record, key) | {"time": {"created": event["created"]}}

    def wake(self, record: SessionRecord) -> None:
        """Start an execution of a session, unless one is running."""
        with self.lock:
            if record.id not in self.running:
                execution = self.running[record.id] = Execution(self, record)
                execution.start()

    def spend(self, record: SessionRecord, cost: float, tokens: Wire) -> None:
        """Add to the total usage of a session."""
        old = record.info["tokens"]
        total = {k: old[k] + tokens[k] for k in ("input", "output", "reasoning")}
        total["cache"] = {k: old["cache"][k] + tokens["cache"][k] for k in ("read", "write")}
        record.info |= {"tokens": total, "cost": record.info["cost"] + cost}
        self.publish("usage.updated", record, cost=record.info["cost"], tokens=total)

    def settle_permission(self, key: str, decision: str, message: str) -> None:
        """Reply to a permission, and to other pending ones that the reply settles."""
        request = self.permissions[key]
        self._reply(key, decision, message)
        if decision == "always":
            project = self.sessions[request.wire["sessionID"]].info["projectID"]
            for pattern in request.wire.get("save", ()):
                rule = f"psv_{secrets.token_hex(8)}"
                saved = SavedRule(rule, request.wire["action"], pattern, project, now())
                self.saved.append(saved)
        pending = self.permissions.items()
        for other in [k for k, r in pending if self._is_settled_by(decision, request, r)]:
            self._reply(other, decision, message)

    def _is_settled_by(self, decision: str, request: PendingRequest, other: PendingRequest) -> bool:
        if decision == "reject":
            return bool(other.wire["sessionID"] == request.wire["sessionID"])
        record = self.sessions[other.wire["sessionID"]]
        allowed = self.effect(record, other.wire["action"], other.wire["resources"]) == "allow"
        return decision == "always" and bool(allowed)

    def _reply(self, key: str, decision: str, message: str) -> None:
        request = self.permissions.pop(key)
        request.answer, request.message = decision, message
        session = request.wire["sessionID"]
        data = {"sessionID": session, "requestID": key, "reply": decision}
        self.journal.publish("permission.replied", data, self.sessions[session])
        request.settled.set()

    def effect(self, record: SessionRecord, action: str, resources: Sequence[str]) -> str:
        """Return the effect of a session's permission rules on an action."""
        rules = AGENTS[record.info.get("agent") or "build"][2]
        own = [Rule(**r) for r in record.info.get("permissions") or ()]
        saved = [s for s in self.saved if s.project == record.info["projectID"]]
        return decide(action, resources, rules, own, saved).effect

    def snapshot(self, directory: str) -> str | None:
        """Save the texts of a directory's files and return their key; None outside git."""
        folder = Path(directory)
        if not (folder / ".git").exists():
            return None
        texts = {}
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and inside.parts[0] != ".git" and path.suffix in _SUFFIXES:
                texts[str(inside)] = path.read_text(encoding="utf-8", errors="replace")
        key = hashlib.sha1(json.dumps(texts).encode()).hexdigest()
        self.snapshots[key] = texts
        return key

    def stop(self) -> None:
        """Stop all executions."""
        for execution in list(self.running.values()):
            execution.interrupt("shutdown")
        for execution in list(self.running.values()):
            execution.join(5)
        self.journal.close()


_SUFFIXES = (".py", ".txt", ".md", ".ipynb", "")


def project_of(directory: str) -> str:
    """Return the id of a directory's project: its git repository, or "global"."""
    folders = (Path(directory), *Path(directory).parents)
    root = next((p for p in folders if (p / ".git").exists()), None)
    return "global" if root is None else hashlib.sha1(str(root).encode()).hexdigest()


def receipt(record: SessionRecord, key: str) -> Wire:
    """Return an inbox item as the server sends it."""
    return {"id": key, "sessionID": record.id, **record.items[key]}


def changes_between(before: Mapping[str, str], after: Mapping[str, str]) -> list[Wire]:
    """Return the changes between two snapshots, file by file."""
    names = sorted({*before, *after})
    return [_change(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]


def _change(name: str, before: str | None, after: str | None) -> Wire:
    patch = make_patch(split_lines(before or ""), split_lines(after or ""))
    body = [line for line in patch.splitlines() if not line.startswith(("---", "+++", "@@"))]
    status = "added" if before is None else "deleted" if after is None else "modified"
    return {
        "file": name,
        "patch": f"Index: {name}\n{'=' * 67}\n--- {name}\n+++ {name}\n{_hunks(patch)}",
        "additions": sum(line.startswith("+") for line in body),
        "deletions": sum(line.startswith("-") for line in body),
        "status": status,
    }


def _hunks(patch: str) -> str:
    lines = patch.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("---", "+++", "diff ")))


class Execution(threading.Thread):
    """One busy period of a session; it handles all prompts that arrive meanwhile."""

    def __init__(self, backend: Backend, record: SessionRecord) -> None:
        super().__init__(name=f"execution-{record.id}", daemon=True)
        self.backend = backend
        self.record = record
        self._reason = ""
        self._resumes = False

    def interrupt(self, reason: str, resume: bool = False) -> None:
        """Interrupt it; with `resume`, steering prompts start another execution."""
        self._resumes = self._resumes or resume
        self._reason = self._reason or reason

    def check(self) -> None:
        """Raise `ExecutionStopped` if it was interrupted."""
        if self._reason:
            raise ExecutionStopped(self._reason)

    def pause(self, seconds: float) -> None:
        """Wait, unless it is interrupted."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            time.sleep(min(_TICK, seconds))
        self.check()

    def run(self) -> None:
        """Work until the inbox is empty."""
        self._publish("execution.started")
        try:
            self._work()
        except ExecutionStopped as stop:
            self._publish("execution.interrupted", reason=stop.reason)
        except ExecutionFailed as failed:
            self._publish("execution.failed", error=failed.error)
        else:
            self._publish("execution.succeeded")
        self._finish()

    def _finish(self) -> None:
        """Mark the session as idle, shortly after its final event as in 2.x."""
        time.sleep(0.005)
        with self.backend.lock:
            self.backend.running.pop(self.record.id, None)
            delivery = "steer" if self._resumes else None
            parked = bool(self._reason) and not self._resumes
            if not parked and any(self._queued(delivery)):
                self.backend.wake(self.record)

    def _publish(self, kind: str, **data: Any) -> Wire:
        return self.backend.publish(kind, self.record, **data)

    # -- the inbox -------------------------------------------------------------------------------

    def _queued(self, delivery: str | None = None) -> list[str]:
        items = self.record.items
        return [k for k in self.record.inbox if delivery in (None, items[k]["delivery"])]

    def _work(self) -> None:
        kinds = {e["type"] for e in self.record.events}
        if self._queued() and not any(k.endswith("instructions.updated") for k in kinds):
            self._publish("instructions.updated", delta={"core/environment": "0" * 64})
        while self._deliver_next():
            self._turn()

    def _deliver_next(self) -> bool:
        """Deliver all steering prompts, or else the first queued one."""
        self.check()
        if self._deliver_steers():
            return True
        queued = self._queued()[:1]
        for key in queued:
            self._deliver(key)
        return bool(queued)

    def _deliver_steers(self) -> bool:
        steers = self._queued("steer")
        for key in steers:
            self._deliver(key)
        return bool(steers)

    def _deliver(self, key: str) -> None:
        item = self.record.items[key]
        self._publish("inbox.delivered", inboxID=key)
        if item["type"] == "compaction":
            self.compact("manual", key)

    def _turn(self) -> None:
        """Run steps until the model is done; deliver steering prompts between them."""
        if not self._needs_answer():
            return
        while True:
            finish = self._step()
            if not self._deliver_steers() and finish != "tool-calls":
                return

    def _needs_answer(self) -> bool:
        last = next((r for r in reversed(self.record.rows) if r["type"] in _DIALOG), None)
        return last is not None and last["type"] in ("user", "synthetic")

    # -- a step ----------------------------------------------------------------------------------

    def _step(self) -> str:
        self.check()
        agent = self.record.info.get("agent") or "build"
        if agent not in AGENTS:
            raise ExecutionFailed("agent.not-found", f"Agent not found: {agent}")
        model = self.record.info.get("model") or MODEL_REF
        if (model["providerID"], model["id"]) not in MODELS:
            name = f"{model['providerID']}/{model['id']}"
            raise ExecutionFailed("provider.no-route", f"Model unavailable: {name}")
        key = self.backend.journal.ids.new("msg")
        before = self.backend.snapshot(self.record.directory)
        data: Wire = {"agent": agent, "model": {"variant": "default"} | model, "started": now()}
        data |= {"snapshot": before} if before else {}
        request = self.conversation(str(model["id"]))
        return _Call(self, key, data, request).run()

    def conversation(self, model: str) -> ModelRequest:
        """Return the conversation as a request to the model."""
        messages: list[Wire] = [{"role": "system", "content": "You are a simulated agent."}]
        for row in self.record.rows:
            match row["type"]:
                case "user" | "synthetic":
                    # The prefix has the word "subagent", which selects a script.
                    text = row["text"].removeprefix(SPAWNED)
                    messages.append({"role": "user", "content": text})
                case "assistant" if row.get("finish") not in (None, "error"):
                    messages += _model_messages(row)
                case "compaction" if row["status"] == "completed":
                    last = messages[-1] if len(messages) > 1 else None
                    pending = [last] if last and last["role"] == "user" else []
                    messages = [messages[0], {"role": "user", "content": row["summary"]}, *pending]
        return ModelRequest(model, self.record.id, tuple(messages), True)

    def compact(self, reason: str, key: str | None = None) -> None:
        """Summarize the conversation, on request (`key` is the inbox item) or on overflow."""
        extra = {"inputID": key} if key else {}
        self._publish("compaction.started", reason=reason, **extra)
        if not any(r["type"] == "assistant" for r in self.record.rows) and reason == "manual":
            error = {"type": "compaction.unavailable", "message": "Nothing to compact yet"}
            self._publish("compaction.failed", reason=reason, error=error, **extra)
            return
        for piece in pieces(SUMMARY, 4):
            self._publish("compaction.delta", text=piece)
        cost, tokens = _bill(
            usage(ModelRequest("scripted", "", (), False), Step(SUMMARY)), "scripted"
        )
        self.backend.spend(self.record, cost, tokens)
        data = {"model": MODEL_REF, "text": SUMMARY, "cost": cost, "tokens": tokens, "recent": ""}
        self._publish("compaction.ended", reason=reason, **data)

    def add_title(self) -> None:
        """Give the session a title, which a small model generates during the first step."""
        if self.record.info.get("title") or self.record.info.get("parentID"):
            return
        counts = usage(ModelRequest("small", "", ({}, {}), False), Step(TITLE))
        cost, tokens = _bill(counts, "small")
        self._publish("usage.recorded", source="title", cost=cost, tokens=tokens)
        self.backend.spend(self.record, cost, tokens)
        self._publish("renamed", title=TITLE)


_DIALOG = ("user", "synthetic", "assistant")
MODELS = {("practice", "scripted"), ("practice", "frugal"), ("practice", "small")}


def _model_messages(row: Wire) -> list[Wire]:
    texts = [p["text"] for p in row["content"] if p["type"] == "text"]
    messages: list[Wire] = [{"role": "assistant", "content": "".join(texts)}]
    for part in row["content"]:
        if part["type"] == "tool":
            state = part["state"]
            result = "\n".join(c["text"] for c in state.get("content") or ())
            result = result or (state.get("error") or {}).get("message", "")
            messages.append({"role": "tool", "content": result})
    return messages


def _tokens(new: int, output: int, reasoning: int, cached: int) -> Wire:
    cache = {"read": cached, "write": 0}
    return {"input": new, "output": output, "reasoning": reasoning, "cache": cache}


def _bill(counts: Wire, model: str) -> tuple[float, Wire]:
    """Return the cost and the tokens of a call; the four token counts don't overlap."""
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
    new, output = counts["prompt_tokens"] - cached, counts["completion_tokens"] - reasoning
    free = model == "small"
    cost = (
        new * PRICES["input"]
        + (output + reasoning) * PRICES["output"]
        + cached * PRICES["cache_read"]
    ) / 1e6
    return 0 if free else cost, _tokens(new, output, reasoning, cached)


class _Call:
    """One model call: its request, its streamed answer, and its tool calls."""

    def __init__(self, execution: Execution, key: str, head: Wire, request: ModelRequest) -> None:
        self.execution = execution
        self.backend, self.record = execution.backend, execution.record
        self.key, self.head, self.request = key, head, request
        self.begun = False
        self.billed: Wire = {}
        self.open: tuple[str, str] | None = None  # kind and text of the streaming part

    def publish(self, kind: str, **data: Any) -> Wire:
        return self.backend.publish(kind, self.record, assistantMessageID=self.key, **data)

    def begin(self) -> None:
        if not self.begun:
            self.begun = True
            self.publish("step.started", **self.head)

    def run(self) -> str:
        try:
            step = self._answer()
            calls = self._stream(step)
            self._use(calls)
        except ExecutionStopped:
            self.fail({"type": "aborted", "message": "Step interrupted"})
            raise
        except Declined:
            self.fail({"type": "aborted", "message": "Step interrupted"})
            raise ExecutionStopped("shutdown") from None
        except ExecutionFailed as failed:
            self.fail(failed.error)
            raise
        finish = step.finish or ("tool-calls" if calls else "stop")
        self.publish("step.ended", finish=finish, rawFinish=finish, **self.billed, **self._after())
        self._spend()
        return finish

    def fail(self, error: Wire) -> None:
        self.begin()
        if self.open is not None:
            kind, text = self.open
            state = {"state": _STATE} if kind == "reasoning" else {}
            self.publish(f"{kind}.ended", ordinal=0, text=text, **state)
            self.publish("step.streamed")
        start = {"snapshot": self.head["snapshot"]} if "snapshot" in self.head else {}
        files: Wire = {"files": []} if start else {}
        self.publish("step.failed", error=error, **self.billed, **start, **files)
        self._spend()

    def _after(self) -> Wire:
        after = self.backend.snapshot(self.record.directory)
        if after is None:
            return {}
        snapshots = self.backend.snapshots
        changes = changes_between(snapshots[self.head["snapshot"]], snapshots[after])
        return {"snapshot": after, "files": [c["file"] for c in changes]}

    def _spend(self) -> None:
        if self.billed:
            self.backend.spend(self.record, self.billed["cost"], self.billed["tokens"])

    # -- the provider ----------------------------------------------------------------------------

    def _answer(self) -> Step:
        """Return the model's answer, after retries if necessary."""
        attempt = 1
        while True:
            self.execution.check()
            step, fails = self.backend.model.answer(self.request)
            if not fails:
                return step
            match step.failure:
                case HTTPFailure() as failure if failure == OVERFLOW:
                    self.execution.compact("auto")
                    self.request = self.execution.conversation(self.request.model)
                    self.key = self.backend.journal.ids.new("msg")
                    self.head |= {"started": now()}
                    continue
                case HTTPFailure(status=status, message=message) if status < 500 and status != 429:
                    kinds = {401: "provider.auth"}
                    raise ExecutionFailed(
                        kinds.get(status, "provider.invalid-request"), message, status
                    )
                case HTTPFailure(status=status, message=message):
                    kind = "provider.rate-limit" if status == 429 else "provider.internal"
                    error = {"type": kind, "message": message, "status": status}
                case "drop":
                    error = {"type": "provider.transport", "message": "The connection broke."}
                case "garbage":
                    self._stream_half(step.text, step)
                    raise ExecutionFailed(
                        "provider.invalid-output", "The provider's answer is not JSON."
                    )
                case "page":
                    return Step(finish="unknown")
                case _:
                    self.begin()
                    self.execution.pause(3600)
                    raise ExecutionFailed("provider.transport", "The provider did not answer.")
            attempt += 1
            self.begin()
            at = now() + int(_RETRY_AFTER * 1000)
            self.publish("retry.scheduled", attempt=attempt, at=at, error=error)
            self.execution.pause(_RETRY_AFTER)

    def _stream(self, step: Step) -> list[tuple[str, str, Wire]]:
        self.begin()
        for kind, text in (("reasoning", step.reasoning), ("text", step.text)):
            if text:
                self._part(kind, text, step)
        calls = []
        for call in step.calls:
            key, (name, args) = f"call_{secrets.token_hex(12)}", v2_tool_call(call)
            calls.append((key, name, args))
            self.publish("tool.input.started", id=key, name=name)
            self.publish("tool.input.ended", id=key, text=json.dumps(args))
            self.publish("tool.called", id=key, input=args, executed=False)
        cost, tokens = _bill(usage(self.request, step), self.request.model)
        self.billed = {"cost": cost, "tokens": tokens}
        self.publish("step.streamed")
        self.execution.add_title()
        return calls

    def _part(self, kind: str, text: str, step: Step) -> None:
        state = {"state": _STATE} if kind == "reasoning" else {}
        self.publish(f"{kind}.started", ordinal=0, **state)
        self.open = (kind, "")
        for piece in pieces(text, step.deltas):
            self.execution.pause(step.delay)
            self.publish(f"{kind}.delta", ordinal=0, delta=piece)
            self.open = (kind, self.open[1] + piece)
        self.open = None
        self.publish(f"{kind}.ended", ordinal=0, text=text, **state)

    def _stream_half(self, text: str, step: Step) -> None:
        """Stream the first half of an answer."""
        self.begin()
        self.publish("text.started", ordinal=0)
        deltas = pieces(text, step.deltas)
        self.open = ("text", "".join(deltas[: len(deltas) // 2]))
        self.publish("text.delta", ordinal=0, delta=self.open[1])

    # -- tools -----------------------------------------------------------------------------------

    def _use(self, calls: Sequence[tuple[str, str, Wire]]) -> None:
        """Run all tools of the step in parallel."""
        ends: list[BaseException] = []

        def run_tool(call: tuple[str, str, Wire]) -> None:
            try:
                self._tool(*call)
            except (ExecutionStopped, Declined) as end:
                ends.append(end)

        threads = [threading.Thread(target=run_tool, args=(c,), daemon=True) for c in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for end in sorted(ends, key=lambda e: isinstance(e, ExecutionStopped)):
            raise end

    def _tool(self, key: str, name: str, args: Wire) -> None:
        tool = TOOLS.get(name)
        try:
            if tool is None:
                raise _ToolError("tool.unknown", f"Unknown tool: {name}")
            texts, meta = tool(self, key, args)
        except _ToolError as error:
            self.publish("tool.failed", id=key, error=error.wire, executed=False, **error.more)
        except ExecutionStopped:
            self._abort_tool(key, "Tool execution interrupted")
            raise
        except Declined as declined:
            self._abort_tool(key, str(declined))
            raise
        except (OSError, KeyError, TypeError, ValueError) as error:
            wire = {"type": "tool.execution", "message": f"{type(error).__name__}: {error}"}
            self.publish("tool.failed", id=key, error=wire, executed=False)
        else:
            content = [{"type": "text", "text": t} for t in texts]
            meta = {"truncated": False} | meta
            self.publish("tool.success", id=key, content=content, metadata=meta, executed=False)

    def _abort_tool(self, key: str, message: str) -> None:
        error = {"type": "aborted", "message": message}
        self.publish("tool.failed", id=key, error=error, executed=False)

    def ask(self, key: str, action: str, resources: list[str], save: list[str]) -> None:
        """Ask for a permission if the rules require it; return once it is granted."""
        effect = self.backend.effect(self.record, action, resources)
        if effect == "deny":
            raise _ToolError("permission.rejected", f"Permission denied: {action}")
        if effect == "allow":
            return
        request = PendingRequest({
            "id": self.backend.journal.ids.new("per"),
            "sessionID": self.record.id,
            "action": action,
            "resources": resources,
            "save": save,
            "source": {"type": "tool", "messageID": self.key, "id": key},
        })  # fmt: skip
        request_id = request.wire["id"]
        self.backend.permissions[request_id] = request
        self.backend.journal.publish("permission.asked", request.wire, self.record)
        self._wait(request, self.backend.permissions, request_id)
        if request.answer == "reject" and not request.message:
            raise Declined("The user declined this tool call")
        if request.answer == "reject":
            feedback = f"The user rejected permission to use this tool: {request.message}"
            raise _ToolError("permission.rejected", feedback)

    def _wait(
        self, request: PendingRequest, pending: dict[str, PendingRequest], request_id: str
    ) -> None:
        try:
            while not request.settled.wait(_TICK):
                self.execution.check()
        except ExecutionStopped:
            pending.pop(request_id, None)  # without an event, as in 2.x
            raise

    def shell(self, key: str, args: Wire) -> tuple[list[str], Wire]:
        """Run a command."""
        command = args["command"]
        self.ask(key, "shell", [command], [f"{command.split()[0]} *" if command.split() else "*"])
        shell = start_shell(self.backend, self.record, command)
        name = shell.info["id"]
        self.publish("tool.progress", id=key, metadata={"shellID": name})
        try:
            self._wait_for_exit(shell)
        except ExecutionStopped:
            kill(shell)
            self.backend.journal.publish("shell.deleted", {"id": name}, self.record)
            raise
        finally:
            self.backend.shells[name].info["status"] = "exited"
        code = shell.process.returncode if shell.process else 0
        shell.info["exit"] = code
        threading.Timer(0.005, self._exited, (name, code)).start()
        output = shell.output.read_text(encoding="utf-8", errors="replace")
        empty = {"exit": code, "truncated": False, "output": "", "status": "completed"}
        texts = [output] if output else [json.dumps(empty, separators=(",", ":"))]
        texts += [f"Exited with code {code}"] if code and output else []
        return texts, {"status": "completed", "exit": code}

    def _exited(self, name: str, code: int) -> None:
        data = {"id": name, "exit": code, "status": "exited"}
        self.backend.journal.publish("shell.exited", data, self.record)

    def _wait_for_exit(self, shell: ShellProcess) -> None:
        while shell.process is not None and shell.process.poll() is None:
            self.execution.check()
            time.sleep(_TICK)

    def read(self, key: str, args: Wire) -> tuple[list[str], Wire]:
        """Read a file."""
        path = self._path(args["path"])
        self.ask(key, "read", [args["path"]], ["*"])
        lines = path.read_text(encoding="utf-8").splitlines()
        numbered = "\n".join(f"{n}: {line}" for n, line in enumerate(lines, 1))
        return [f"Read file {args['path']}, lines 1-{len(lines)}\n{numbered}"], {}

    def edit(self, key: str, args: Wire) -> tuple[list[str], Wire]:
        """Replace a text in a file."""
        path, old, new = self._path(args["path"]), args["oldString"], args["newString"]
        before = path.read_text(encoding="utf-8")
        if old not in before:
            raise _ToolError("tool.execution", "Could not find oldString in the file.")
        self.ask(key, "edit", [args["path"]], ["*"])
        after = before.replace(old, new, 1)
        path.write_text(after, encoding="utf-8")
        meta = {"files": [_change(args["path"], before, after)]}
        return [f"Edited {args['path']} (1 replacement)"], meta

    def write(self, key: str, args: Wire) -> tuple[list[str], Wire]:
        """Write a file."""
        path = self._path(args["path"])
        self.ask(key, "edit", [args["path"]], ["*"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(args["content"], encoding="utf-8")
        return [f"Created file successfully: {args['path']}"], {}

    def _path(self, name: str) -> Path:
        return Path(self.record.directory) / name

    def question(self, key: str, args: Wire) -> tuple[list[str], Wire]:
        """Ask a person questions."""
        questions = args["questions"]
        form = PendingRequest({
            "id": self.backend.journal.ids.new("frm"),
            "sessionID": self.record.id,
            "title": "Questions",
            "metadata": {"kind": "question", "tool": {"messageID": self.key, "id": key}},
            "fields": [_field(n, q) for n, q in enumerate(questions)],
        })  # fmt: skip
        name = form.wire["id"]
        self.backend.forms[name] = form
        self.backend.journal.publish("form.created", {"form": form.wire}, self.record)
        self._wait(form, self.backend.forms, name)
        if form.cancelled and not form.message:
            raise Declined("The user dismissed this question")
        if form.cancelled:
            raise _ToolError("tool.execution", form.message)
        values = [form.answer.get(f"q{n}", []) for n in range(len(questions))]
        answers = [a if isinstance(a, list) else [a] for a in values]
        pairs = zip(questions, answers, strict=True)
        summary = ", ".join(f'"{q["question"]}"="{", ".join(a)}"' for q, a in pairs)
        text = f"User has answered your questions: {summary}. You can now continue with the user's "
        return [f"{text}answers in mind."], {"answers": answers}

    def subagent(self, key: str, args: Wire) -> tuple[list[str], Wire]:
        """Delegate a task to another agent, in a child session."""
        self.ask(key, "subagent", [args["agent"]], [args["agent"]])
        body = {"parentID": self.record.id, "title": args["description"], "agent": args["agent"]}
        child = self.backend.open(body, self.record.directory)
        meta = {"sessionID": child.id, "status": "running"}
        self.publish("tool.progress", id=key, metadata=meta)
        text = f"{SPAWNED}{args['prompt']}"
        self.backend.enqueue(
            child, "user", {"text": text}, "steer", self.backend.journal.ids.new("msg")
        )
        self.backend.wake(child)
        self._wait_until_idle(child)
        answer = next((r for r in reversed(child.rows) if r["type"] == "assistant"), None)
        result = "".join(
            p["text"] for p in (answer or {}).get("content", ()) if p["type"] == "text"
        )
        state = "completed" if child.info.get("outcome") == "succeeded" else "error"
        if state == "error":
            raise _ToolError("tool.execution", "The subagent did not finish.", child.id)
        wrapped = f'<subagent sessionID="{child.id}" state="{state}">\n{result}\n</subagent>'
        return [wrapped], {"sessionID": child.id, "status": state}

    def _wait_until_idle(self, child: SessionRecord) -> None:
        while (running := self.backend.running.get(child.id)) is not None:
            try:
                self.execution.check()
            except ExecutionStopped as stop:
                running.interrupt(stop.reason)
                running.join(5)
                raise
            time.sleep(_TICK)


_STATE = {"reasoningField": "reasoning_content"}


class _ToolError(Exception):
    """A failure of a tool, which is reported to the model."""

    def __init__(self, kind: str, message: str, child: str = "") -> None:
        super().__init__(message)
        self.wire = {"type": kind, "message": message}
        self.more: Wire = {"metadata": {"sessionID": child}} if child else {}


TOOLS: Mapping[str, Callable[[_Call, str, Wire], tuple[list[str], Wire]]] = {
    "shell": _Call.shell,
    "read": _Call.read,
    "edit": _Call.edit,
    "write": _Call.write,
    "question": _Call.question,
    "subagent": _Call.subagent,
}


def _field(index: int, question: Wire) -> Wire:
    options = [
        {"value": o["label"], "label": o["label"], "description": o.get("description", "")}
        for o in question.get("options", ())
    ]
    kind = "multiselect" if question.get("multiple") else "string"
    fields = {"key": f"q{index}", "title": question.get("header", ""), "type": kind}
    return fields | {"description": question["question"], "options": options, "custom": True}


def start_shell(
    backend: Backend, record: SessionRecord, command: str, **metadata: Any
) -> ShellProcess:
    """Start a command in a session's directory; its output goes to a file."""
    name = backend.journal.ids.new("sh")
    output = backend.root / "shell" / f"{name}.out"
    output.parent.mkdir(parents=True, exist_ok=True)
    info = {
        "id": name,
        "status": "running",
        "command": command,
        "cwd": record.directory,
        "shell": "/bin/sh",
        "file": str(output),
        "metadata": {"sessionID": record.id, **metadata},
        "time": {"started": now()},
    }
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=record.directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environment(backend.root / "home"), **record.environment},
            start_new_session=True,
        )
    shell = backend.shells[name] = ShellProcess(info, output, process)
    backend.journal.publish("shell.created", {"info": dict(info)}, record)
    return shell


def kill(shell: ShellProcess) -> None:
    """Kill a shell and its children."""
    if shell.process is not None and shell.process.poll() is None:
        os.killpg(shell.process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        shell.process.wait()
