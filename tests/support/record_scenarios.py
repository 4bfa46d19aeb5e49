"""Record real traffic: `python tests/support/record_scenarios.py [SCENARIO ...]`.

Runs each scenario on a real server with the practice model and writes
`tests/data/recordings/v1/<scenario>.jsonl`, a recording for `%oc_replay`: the frames of the event
stream, from before the prompt until after its end, and the messages that the server stored.

It uses plain HTTP, and none of the code that the recordings test.
"""

import json
import secrets
import socket
import string
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from opencode_magics.practice.workspace import reset_workspace
from opencode_magics.practice.world import Practice

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings" / "v1"
PATIENCE = 40.0
counter = count(1)


def ascending(prefix: str) -> str:
    """Return an id as OpenCode generates it: time and counter, then random base62."""
    stamp = (int(time.time() * 1000) * 4096 + next(counter)) % 2**48
    alphabet = string.digits + string.ascii_letters
    return f"{prefix}_{stamp:012x}{''.join(secrets.choice(alphabet) for _ in range(14))}"


@dataclass
class ScenarioRun:
    """A running scenario: its session, its stream, and actions on it."""

    client: httpx.Client
    session: dict[str, Any]
    times: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    seen: int = 0

    @property
    def id(self) -> str:
        return str(self.session["id"])

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.client.post(path, json=body).raise_for_status()

    def prompt(self, text: str, **options: Any) -> str:
        message = ascending("msg")
        part = {"id": ascending("prt"), "type": "text", "text": text}
        body = {"messageID": message, "parts": [part], **options}
        self.prompts.append(message)
        self.post(f"/session/{self.id}/prompt_async", body)
        return message

    def command(self, name: str, arguments: str) -> None:
        message = ascending("msg")
        self.prompts.append(message)
        body = {"messageID": message, "command": name, "arguments": arguments}
        threading.Thread(
            target=self.post, args=(f"/session/{self.id}/command", body), daemon=True
        ).start()

    def shell(self, command: str) -> None:
        """Run a shell command as a person does with `!command`, without a model call."""
        self.post(f"/session/{self.id}/shell", {"agent": "build", "command": command})

    def abort(self) -> None:
        self.post(f"/session/{self.id}/abort")

    def wait_for(self, what: str, test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for the next event that passes the test; each event is checked once."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            while self.seen < len(self.events):
                event = self.events[self.seen]
                self.seen += 1
                if test(event):
                    return event
            time.sleep(0.02)
        raise SystemExit(f"{self.session['title']}: no {what} within {PATIENCE:g} s")

    def wait_event(self, kind: str) -> dict[str, Any]:
        event = self.wait_for(kind, lambda event: event["type"] == kind)
        return dict(event["properties"])

    def wait_end(self) -> None:
        """Wait for idle, or for the error that an unknown agent causes instead."""
        self.wait_for(
            "end",
            lambda event: (
                event["type"] in ("session.idle", "session.error")
                and event["properties"].get("sessionID") == self.id
            ),
        )

    def wait_delta(self, number: int = 1) -> None:
        for _ in range(number):
            self.wait_event("message.part.delta")

    def wait_tool(self, status: str) -> None:
        self.wait_for(
            f"{status} tool",
            lambda event: (
                event["type"] == "message.part.updated"
                and event["properties"]["part"].get("state", {}).get("status") == status
            ),
        )

    def wait_retry(self, attempt: int) -> None:
        self.wait_for(
            f"retry {attempt}",
            lambda event: (
                event["type"] == "session.status"
                and event["properties"]["status"].get("attempt") == attempt
            ),
        )

    def permit(self, reply: str, message: str | None = None) -> None:
        """Reply to the next permission."""
        asked = self.wait_event("permission.asked")
        body = {"reply": reply} | ({"message": message} if message else {})
        self.post(f"/permission/{asked['id']}/reply", body)

    def finish(self) -> None:
        """Wait until the session is idle, and one more second for late frames."""
        self.wait_end()
        end = time.monotonic() + PATIENCE
        while self.id in self.get("/session/status"):
            if time.monotonic() > end:
                raise SystemExit(f"{self.session['title']}: still busy after {PATIENCE:g} s")
            time.sleep(0.1)
        time.sleep(1.0)

    def lines(self, server: str, directory: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of the recording: a head, the frames, the store at the end."""
        messages = self.get(f"/session/{self.id}/message")
        prompt = next((m for m in messages if m["info"]["id"] == self.prompts[-1]), {"parts": []})
        texts = [p["text"] for p in prompt["parts"] if p["type"] == "text"]
        yield {
            "recording": 1,
            "generation": "1.x",
            "server": server,
            "session": {"id": self.id, "title": self.session["title"], "directory": directory},
            "prompt": {"id": self.prompts[-1], "text": "".join(texts)},
        }
        for at, frame in zip(self.times, self.events, strict=True):
            yield {"t": round(at - self.times[0], 3), "frame": frame}
        end = round(self.times[-1] - self.times[0], 3)
        below = [self.id, *self.below(self.id)]
        asked = [f"/session/{s}/{what}" for s in below for what in ("message", "children")]
        for path in ("/session/status", *asked, "/permission", "/question"):
            yield {"t": end, "reply": f"GET {path}?directory={directory}", "body": self.get(path)}
        yield {"t": end, "read": True}

    def below(self, session: str) -> Iterator[str]:
        """Yield the ids of subagent sessions at any depth."""
        for child in self.get(f"/session/{session}/children"):
            yield child["id"]
            yield from self.below(child["id"])

    def clean_up(self) -> None:
        """Reject requests that are still listed after an abort."""
        for kind in ("permission", "question"):
            for asked in self.get(f"/{kind}"):
                body = {"reply": "reject"} if kind == "permission" else None
                end = "reply" if kind == "permission" else "reject"
                self.post(f"/{kind}/{asked['id']}/{end}", body)


@contextmanager
def listening(recording: ScenarioRun) -> Iterator[None]:
    """Read the event stream into the recording for as long as the block runs."""
    connected = threading.Event()
    with recording.client.stream("GET", "/event") as response:
        wire: socket.socket = response.extensions["network_stream"].get_extra_info("socket")

        def read() -> None:
            buffer = b""
            try:
                for chunk in response.iter_raw():
                    *frames, buffer = (buffer + chunk).split(b"\n\n")
                    recording.times += [time.monotonic()] * len(frames)
                    recording.events += [json.loads(f.removeprefix(b"data: ")) for f in frames]
                    connected.set()
            except httpx.TransportError:
                pass  # the socket was shut down below, since the recording is over

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        connected.wait(5)
        yield
        wire.shutdown(socket.SHUT_RDWR)
        reader.join(5)


Scenario = Callable[[ScenarioRun], object]


def just(text: str) -> Scenario:
    """Return a scenario with one prompt that needs no replies."""
    return lambda r: r.prompt(text)


def permitted(text: str, *replies: tuple[str, ...]) -> Scenario:
    """Return a scenario with one prompt and replies to its permissions."""

    def run(r: ScenarioRun) -> None:
        r.prompt(text)
        for reply in replies:
            r.permit(*reply)

    return run


def two_turns(r: ScenarioRun) -> None:
    r.prompt("#text 3")
    r.finish()
    r.prompt("#text 4")


def person_shell(r: ScenarioRun) -> None:
    """After the turn, a person runs two shell commands, and stops the second."""
    r.prompt("#text 3")
    r.finish()
    r.shell("echo hi")
    r.wait_tool("completed")
    stopped = threading.Thread(target=r.shell, args=("sleep 20",))
    stopped.start()
    r.wait_tool("running")
    time.sleep(0.5)
    r.abort()
    stopped.join()


def bash_always(r: ScenarioRun) -> None:
    r.prompt("#bash uname")
    r.permit("always")
    r.finish()
    r.prompt("#bash uname")


def two_one_rejected(r: ScenarioRun) -> None:
    """Two calls wait; the first is allowed, then the second is rejected."""
    r.prompt("#two")
    first, second = (r.wait_event("permission.asked") for _ in range(2))
    r.post(f"/permission/{first['id']}/reply", {"reply": "once"})
    time.sleep(0.5)
    r.post(f"/permission/{second['id']}/reply", {"reply": "reject"})


def two_both_rejected(r: ScenarioRun) -> None:
    """Rejecting one request also rejects the other one of the session."""
    r.prompt("#two")
    for _ in range(2):
        asked = r.wait_event("permission.asked")
    r.post(f"/permission/{asked['id']}/reply", {"reply": "reject"})


def question_answered(r: ScenarioRun) -> None:
    r.prompt("#question")
    asked = r.wait_event("question.asked")
    r.post(f"/question/{asked['id']}/reply", {"answers": [["Red"], ["S", "extra large"]]})


def question_dismissed(r: ScenarioRun) -> None:
    r.prompt("#question")
    r.post(f"/question/{r.wait_event('question.asked')['id']}/reject")


def err500_abort(r: ScenarioRun) -> None:
    r.prompt("#err500")
    r.wait_retry(2)
    r.abort()


def abort_streaming(r: ScenarioRun) -> None:
    r.prompt("#slow 40 0.1")
    r.wait_delta(6)
    r.abort()


def abort_tool(r: ScenarioRun) -> None:
    r.prompt("#bash echo begun; sleep 20")
    r.permit("once")
    time.sleep(1.0)
    r.abort()


def abort_permission(r: ScenarioRun) -> None:
    r.prompt("#bash echo hi")
    r.wait_event("permission.asked")
    r.abort()


def abort_question(r: ScenarioRun) -> None:
    r.prompt("#question")
    r.wait_event("question.asked")
    r.abort()


def abort_hang(r: ScenarioRun) -> None:
    r.prompt("#hang")
    time.sleep(1.5)
    r.abort()


def abort_subagent(r: ScenarioRun) -> None:
    r.prompt("#task #slow 40 0.1")
    r.wait_delta(4)
    r.abort()


def queued(r: ScenarioRun) -> None:
    """The second prompt is sent while the first is streaming."""
    r.prompt("#slow 12 0.1")
    r.wait_delta(3)
    r.prompt("#text 3 second")


def queued_during_tool(r: ScenarioRun) -> None:
    """The second prompt is sent while a tool of the first is running, and takes over."""
    r.prompt("#bash sleep 2")
    r.permit("once")
    time.sleep(0.5)
    r.prompt("#text 3 second")


def queued_aborted(r: ScenarioRun) -> None:
    """An abort ends the running prompt; the queued one gets no answer."""
    r.prompt("#slow 40 0.1")
    r.wait_delta(3)
    r.prompt("#text 3 second")
    time.sleep(0.3)
    r.abort()


def page_abort(r: ScenarioRun) -> None:
    """OpenCode 1.18.33 treats a web page as an empty step, and continues until it is stopped."""
    r.prompt("#page")
    for _ in range(3):
        r.wait_for("step", lambda event: "step-finish" in json.dumps(event))
    r.abort()


def unknown_model(r: ScenarioRun) -> None:
    r.prompt("#text 3", model={"providerID": "practice", "modelID": "nope"})


def unknown_agent(r: ScenarioRun) -> None:
    r.prompt("#text 3", agent="nope")


def plan(*steps: dict[str, Any]) -> str:
    return f"#plan {json.dumps(steps)}"


BAD_ARGS = plan({"calls": [["read", {"wrong": 1}]]}, {"text": "That did not work."})
BAD_TOOL = plan({"calls": [["nosuchtool", {"a": 1}]]}, {"text": "No such tool, then."})
FAILING = "#bash echo oops >&2; exit 3"

SCENARIOS: dict[str, Scenario] = {
    "text": just("#text 6"),
    "reasoning": just("#reason"),
    "two_turns": two_turns,
    "person_shell": person_shell,
    "bash_once": permitted("#bash echo hi", ("once",)),
    "bash_failing": permitted(FAILING, ("once",)),
    "bash_always": bash_always,
    "bash_reject": permitted("#bash echo hi", ("reject",)),
    "bash_reject_message": permitted("#bash echo hi", ("reject", "Use printf instead.")),
    "two_once": permitted("#two", ("once",), ("once",)),
    "two_one_rejected": two_one_rejected,
    "two_both_rejected": two_both_rejected,
    "edit": permitted("#edit notes.txt", ("once",)),
    "edit_reject": permitted("#edit notes.txt", ("reject",)),
    "write": permitted("#write new.txt", ("once",)),
    "read": just("#read notes.txt"),
    "todo": just("#todo"),
    "bad_args": just(BAD_ARGS),
    "unknown_tool": just(BAD_TOOL),
    "subagent": just("#task #text 3"),
    "subagent_permission": permitted("#task #bash echo sub", ("once",)),
    "subagent_rejected": permitted("#task #bash echo sub", ("reject",)),
    "question_answered": question_answered,
    "question_dismissed": question_dismissed,
    "err400": just("#err400"),
    "err401": just("#err401"),
    "err429_recover": just("#err429 2"),
    "err500_recover": just("#err500 1"),
    "err500_abort": err500_abort,
    "drop_recover": just("#drop 1"),
    "overflow": just("#overflow"),
    "empty": just("#empty"),
    "length": just("#length"),
    "garbage": just("#garbage"),
    "page_abort": page_abort,
    "unknown_model": unknown_model,
    "unknown_agent": unknown_agent,
    "abort_streaming": abort_streaming,
    "abort_tool": abort_tool,
    "abort_permission": abort_permission,
    "abort_question": abort_question,
    "abort_hang": abort_hang,
    "abort_subagent": abort_subagent,
    "queued": queued,
    "queued_during_tool": queued_during_tool,
    "queued_aborted": queued_aborted,
    "command": lambda r: r.command("explain", "#text 3"),
    "subtask_command": lambda r: r.command("review", "#text 3"),
}


def record(practice: Practice, client: httpx.Client, name: str) -> None:
    """Run a scenario in a new session and write its file."""
    reset_workspace(practice.directory)
    session = client.post("/session", json={"title": name}).raise_for_status().json()
    recording = ScenarioRun(client, session)
    with listening(recording):
        SCENARIOS[name](recording)
        recording.finish()
    lines = recording.lines(practice.version, str(practice.directory))
    dumped = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines)
    write(practice, RECORDINGS / f"{name}.jsonl", "\n".join(dumped))
    recording.clean_up()


def write(practice: Practice, path: Path, text: str) -> None:
    """Write a recording without this machine's paths."""
    for real, masked in (
        (practice.directory, "/work/p"),
        (practice.root / "home", "/home/me"),
        (practice.root, "/work"),
    ):
        text = text.replace(str(real), masked)
        text = text.replace(str(real).lstrip("/"), masked.lstrip("/"))
    text = text.replace(practice.model.url, "http://127.0.0.1:4298")
    path.write_text(text + "\n")


def main(names: list[str]) -> None:
    """Record these scenarios, or all."""
    with Practice(progress=print) as practice:
        scope = {"directory": str(practice.directory)}
        access = ("opencode", practice.password)
        with httpx.Client(
            base_url=practice.url, auth=access, params=scope, timeout=None, trust_env=False
        ) as client:
            client.get("/config/providers").raise_for_status()  # loads the directory's plugins
            for name in names or SCENARIOS:
                record(practice, client, name)
                print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
