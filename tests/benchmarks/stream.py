"""What a long streamed answer costs: 200 kB in 20,000 deltas, drawn live or simply printed.

A local server sends the frames of a 1.x turn at an even pace. A real kernel reads them twice: once
as the package does it (client, dialect, fold, live cell), once with the least code that can show
the same text (httpx, JSON, print ten times a second). Reported are the kernel's CPU time, what it
sent to the browser, how often and in how many outputs, and how long the first words took from the
server to the front-end; medians of some interleaved rounds. At last a turn with 500 tool calls: the
longest time that one drawing of it keeps the cell busy.

    python tests/benchmarks/stream.py [--seconds 12] [--rounds 3] [--size 200000] [--deltas 20000]
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SESSION, PROMPT, ANSWER, PART = "ses_1", "msg_0", "msg_1", "prt_2"
LIMITS = {"bytes": 1_700_000, "outputs": 44, "updates/s": 12, "first ms": 150, "ratio": 2.5}
HEAD = 4  # frames before the first delta

# -- the answer and its frames -----------------------------------------------------------------

_TOPIC = """## {n}. A look at `module_{n}.py`

The function **load_{n}** reads the file once and keeps it, so that the *second* call costs nothing;
see [the manual](https://example.com/{n}) for what it does with a missing one. It costs $5 or $6.

- It opens the file with `encoding="utf-8"`, always.
- It returns {n} rows, or an empty list.
- It never writes.

```python
def load_{n}(path: Path) -> list[str]:
    if path not in _cache and path.stat().st_size < {n}:
        _cache[path] = path.read_text().split("\\n")
    return _cache[path]
```

| case | rows | time |
|------|-----:|-----:|
| small | {n} | 1 ms |
| large | {n}000 | 20 ms |

"""


def answer(size: int) -> str:
    """A long answer, as models write them."""
    text, n = "", 0
    while len(text) < size:
        n += 1
        text += _TOPIC.format(n=n)
    return text[:size]


def frames(text: str, deltas: int) -> Iterator[dict[str, Any]]:
    """A turn as 1.18.33 tells it."""
    ids = {"sessionID": SESSION, "messageID": ANSWER}
    time_ = {"created": 1_000}
    user = {"id": PROMPT, "sessionID": SESSION, "role": "user", "time": time_, "agent": "build"}
    told = {"parentID": PROMPT, "agent": "build", "providerID": "p", "modelID": "m"}
    start = {"id": ANSWER, "sessionID": SESSION, "role": "assistant", "time": time_, **told}
    part = {"id": PART, **ids, "type": "text"}
    end = {"created": 1_000, "completed": 9_000}
    tokens = {"input": 1, "output": 9, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    yield frame("message.updated", info=user)
    yield frame("message.updated", info=start)
    yield frame("message.part.updated", part={"id": "prt_1", **ids, "type": "step-start"})
    yield frame("message.part.updated", part={**part, "text": "", "time": {"start": 1}})
    for n in range(deltas):
        delta = text[len(text) * n // deltas : len(text) * (n + 1) // deltas]
        yield frame("message.part.delta", **ids, partID=PART, field="text", delta=delta)
    yield frame("message.part.updated", part={**part, "text": text, "time": {"start": 1, "end": 2}})
    step = {"id": "prt_3", **ids, "type": "step-finish", "cost": 0.01, "tokens": tokens}
    yield frame("message.part.updated", part=step)
    yield frame("message.updated", info={**start, "time": end, "finish": "stop"})
    yield frame("session.idle", sessionID=SESSION)


def frame(kind: str, **properties: Any) -> dict[str, Any]:
    return {"id": "evt_1", "type": kind, "properties": properties}


# -- the server --------------------------------------------------------------------------------


def serve(text: str, deltas: int, pace: float) -> ThreadingHTTPServer:
    """Serve /global/health, and /event at a pace of so many seconds."""
    began_to_speak: list[float] = []
    lines = [f"data: {json.dumps(f)}\n\n".encode() for f in frames(text, deltas)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path.startswith("/event"):
                self._stream()
            elif self.path.startswith("/global/health"):
                self._send(b'{"healthy":true,"version":"1.18.33"}', "application/json")
            else:
                self.send_error(404)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            began, sent = time.monotonic(), 0
            while sent < len(lines):
                share = min(1.0, (time.monotonic() - began) / pace)
                due = max(sent + 1, int(len(lines) * share))
                chunk = b"".join(lines[sent:due])
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
                if sent <= HEAD < due:
                    began_to_speak.append(time.monotonic())
                sent = due
                time.sleep(0.01)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.began_to_speak = began_to_speak  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# -- the two arms, which run in the kernel -----------------------------------------------------


def draw(url: str) -> float:
    """Our way; gives the CPU time in seconds."""
    from opencode_magics.client.client import Client
    from opencode_magics.client.stream import Connected, Disconnected, StreamProblem
    from opencode_magics.core.events import StatusChanged, StoreSnapshot
    from opencode_magics.core.fold import advance, advance_all
    from opencode_magics.core.model import Status
    from opencode_magics.core.turn import Turn
    from opencode_magics.notebook.live import LiveCell

    began = time.process_time()
    turn, view, idle = Turn(SESSION, PROMPT), LiveCell(), False
    with Client(url, directory="/") as client:
        stream = client.stream("/")
        while not idle:
            heard = [
                h
                for h in stream.take(0.1)
                if not isinstance(h, Connected | Disconnected | StreamProblem)
            ]
            turn = advance_all(turn, heard)
            idle = any(isinstance(h, StatusChanged) and h.status.name == "idle" for h in heard)
            view.show(turn)
        stream.close()
    turn = advance(turn, StoreSnapshot(SESSION, Status("idle"), turn.log))
    view.close(turn)
    assert turn.outcome == "succeeded", turn
    return time.process_time() - began


def simply_print(url: str) -> float:
    """The least that shows the same text; gives the CPU time in seconds."""
    import queue

    import httpx
    import httpx_sse

    began = time.process_time()
    deltas: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        with httpx.Client() as client, client.stream("GET", f"{url}/event") as response:
            for event in httpx_sse.EventSource(response).iter_sse():
                found = json.loads(event.data)
                if found["type"] == "message.part.delta":
                    deltas.put(found["properties"]["delta"])
        deltas.put(None)

    threading.Thread(target=read, daemon=True).start()
    done = False
    while not done:
        time.sleep(0.1)
        text = ""
        while not done and not deltas.empty():
            delta = deltas.get()
            done = delta is None
            text += delta or ""
        print(text, end="", flush=True)
    return time.process_time() - began


def tool_calls(url: str) -> float:
    """The longest drawing of a turn that calls 500 tools, one after the other; seconds."""
    from opencode_magics.core.events import MessageChanged, PartChanged
    from opencode_magics.core.fold import advance
    from opencode_magics.core.model import Message, ToolCall
    from opencode_magics.core.turn import Turn
    from opencode_magics.notebook.live import LiveCell

    view = LiveCell()
    turn = advance(Turn(SESSION, PROMPT), MessageChanged(Message(PROMPT, SESSION, "user", 1)))
    turn = advance(turn, MessageChanged(Message(ANSWER, SESSION, "assistant", 2, parent=PROMPT)))
    longest = 0.0
    for n in range(500):
        call = ToolCall(
            f"prt_{n:04}", f"c{n}", "bash", "completed", {"command": f"ls {n}"}, output="x"
        )
        turn = advance(turn, PartChanged(SESSION, ANSWER, call))
        began = time.perf_counter()
        view.show(turn)
        longest = max(longest, time.perf_counter() - began)
    view.close(turn)
    return longest


# -- measuring ---------------------------------------------------------------------------------


@dataclass
class Measured:
    """What one arm did in one round."""

    cpu: float = 0.0
    sent: int = 0
    messages: int = 0
    outputs: set[str] = field(default_factory=set)
    times: list[float] = field(default_factory=list)
    first: float | None = None  # when the first words were there

    @property
    def busiest(self) -> int:
        """The most messages in any second."""
        return max(sum(t <= u < t + 1 for u in self.times) for t in self.times)

    def take(self, message: dict[str, Any]) -> None:
        """Count a message that goes to the browser."""
        content = message["content"]
        if message["msg_type"] not in ("stream", "display_data", "update_display_data"):
            return
        self.messages += 1
        self.times.append(time.monotonic())
        if self.first is None and "A look at" in json.dumps(content):
            self.first = time.monotonic()
        self.sent += len(json.dumps(content, ensure_ascii=False).encode())
        self.outputs.add(content.get("transient", {}).get("display_id", "stream"))


def run(kernel: Any, arm: str, url: str) -> Measured:
    """One arm, once."""
    measured = Measured()
    reply = kernel.execute_interactive(
        f"cpu = bench.{arm}({url!r})",
        user_expressions={"cpu": "cpu"},
        output_hook=measured.take,
        timeout=600,
    )
    if reply["content"]["status"] != "ok":
        sys.exit("\n".join(reply["content"]["traceback"]))
    measured.cpu = float(reply["content"]["user_expressions"]["cpu"]["data"]["text/plain"])
    return measured


def main() -> int:
    """Run the rounds, print the figures; 1 if a limit is passed."""
    from jupyter_client.manager import start_new_kernel

    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--seconds", type=float, default=12.0, help="of one stream")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--size", type=int, default=200_000, help="characters of the answer")
    options.add_argument("--deltas", type=int, default=20_000)
    given = options.parse_args()
    server = serve(answer(given.size), given.deltas, given.seconds)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    manager, kernel = start_new_kernel(kernel_name="python3")
    try:
        setup = f"import sys; sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE)!r}]\n"
        warm = "import stream as bench, httpx_sse, markdown_it, nh3, opencode_magics.client.client"
        kernel.execute_interactive(setup + warm + "\nimport opencode_magics.notebook as notebook")
        arms: dict[str, list[Measured]] = {"draw": [], "simply_print": []}
        firsts = []
        for _ in range(given.rounds):
            for arm, found in arms.items():
                found.append(run(kernel, arm, url))
                if arm == "draw" and found[-1].first is not None:
                    said = server.began_to_speak[-1]  # type: ignore[attr-defined]
                    firsts.append((found[-1].first - said) * 1000)
        pause = run(kernel, "tool_calls", url).cpu
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    print(f"500 tool calls: at most {pause * 1000:.0f} ms in one drawing")
    return report(arms, median(firsts))


def report(arms: dict[str, list[Measured]], first: float) -> int:
    """Print the figures and how they stand to the limits."""
    cpu = {arm: median(m.cpu for m in found) for arm, found in arms.items()}
    for arm, found in arms.items():
        sent, messages = (median(getattr(m, n) for m in found) for n in ("sent", "messages"))
        cpus = ", ".join(f"{m.cpu:.2f}" for m in found)
        print(f"{arm:12} {cpu[arm]:.2f} s CPU ({cpus}), {sent:,.0f} bytes, {messages:.0f} messages")
    figures = {
        "bytes": max(m.sent for m in arms["draw"]),
        "outputs": max(len(m.outputs) for m in arms["draw"]),
        "updates/s": max(m.busiest for m in arms["draw"]),
        "first ms": first,
        "ratio": cpu["draw"] / cpu["simply_print"],
    }
    for name, figure in figures.items():
        good = figure <= LIMITS[name]
        verdict = "ok" if good else "TOO MUCH"
        print(f"{name:12} {figure:,.2f} (at most {LIMITS[name]:,}): {verdict}")
    return int(any(figure > LIMITS[name] for name, figure in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
