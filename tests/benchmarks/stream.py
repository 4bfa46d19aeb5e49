"""Benchmark of a long streamed answer: 200 kB in 20,000 deltas, drawn live or simply printed.

A local server sends the frames of a 1.x turn at an even pace. A real kernel reads them twice: once
with this package (client, dialect, fold, live cell), once with the least code that shows the same
text (httpx, JSON, ten prints per second). The results are medians of interleaved rounds: the
kernel's CPU time, the bytes, messages and outputs it sent to the browser, and the delay of the
first words from the server to the front-end. Then a turn with 500 tool calls is drawn; the result
is the longest time that one redraw keeps the cell busy.

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
    """Return a long answer in typical Markdown."""
    text, n = "", 0
    while len(text) < size:
        n += 1
        text += _TOPIC.format(n=n)
    return text[:size]


def frames(text: str, deltas: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a turn as 1.18.33 sends them."""
    ids = {"sessionID": SESSION, "messageID": ANSWER}
    time_ = {"created": 1_000}
    user = {"id": PROMPT, "sessionID": SESSION, "role": "user", "time": time_, "agent": "build"}
    fields = {"parentID": PROMPT, "agent": "build", "providerID": "p", "modelID": "m"}
    start = {"id": ANSWER, "sessionID": SESSION, "role": "assistant", "time": time_, **fields}
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
    """Serve /global/health, and /event as a stream that takes `pace` seconds."""
    first_delta_times: list[float] = []
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
            start, sent = time.monotonic(), 0
            while sent < len(lines):
                share = min(1.0, (time.monotonic() - start) / pace)
                due = max(sent + 1, int(len(lines) * share))
                chunk = b"".join(lines[sent:due])
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
                if sent <= HEAD < due:
                    first_delta_times.append(time.monotonic())
                sent = due
                time.sleep(0.01)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.first_delta_times = first_delta_times  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# -- the two ways to show the answer, which run in the kernel ----------------------------------


def draw(url: str) -> float:
    """Draw the answer with this package; return the CPU seconds."""
    from opencode_magics.client.client import Client
    from opencode_magics.client.stream import Connected, Disconnected, StreamProblem
    from opencode_magics.core.events import StatusChanged, StoreSnapshot
    from opencode_magics.core.fold import advance, advance_all
    from opencode_magics.core.model import Status
    from opencode_magics.core.turn import Turn
    from opencode_magics.notebook.live import LiveCell

    start = time.process_time()
    turn, view, idle = Turn(SESSION, PROMPT), LiveCell(), False
    with Client(url, directory="/") as client:
        stream = client.stream("/")
        while not idle:
            events = [
                e
                for e in stream.take(0.1)
                if not isinstance(e, Connected | Disconnected | StreamProblem)
            ]
            turn = advance_all(turn, events)
            idle = any(isinstance(e, StatusChanged) and e.status.name == "idle" for e in events)
            view.show(turn)
        stream.close()
    turn = advance(turn, StoreSnapshot(SESSION, Status("idle"), turn.log))
    view.close(turn)
    assert turn.outcome == "succeeded", turn
    return time.process_time() - start


def simply_print(url: str) -> float:
    """Print the answer with the least code; return the CPU seconds."""
    import queue

    import httpx
    import httpx_sse

    start = time.process_time()
    deltas: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        with httpx.Client() as client, client.stream("GET", f"{url}/event") as response:
            for event in httpx_sse.EventSource(response).iter_sse():
                frame = json.loads(event.data)
                if frame["type"] == "message.part.delta":
                    deltas.put(frame["properties"]["delta"])
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
    return time.process_time() - start


def tool_calls(url: str) -> float:
    """Draw a turn with 500 tool calls, one after the other; return the longest redraw's seconds."""
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
        start = time.perf_counter()
        view.show(turn)
        longest = max(longest, time.perf_counter() - start)
    view.close(turn)
    return longest


# -- measuring ---------------------------------------------------------------------------------


@dataclass
class Measurement:
    """The measurements of one function in one round."""

    cpu: float = 0.0
    sent: int = 0
    messages: int = 0
    outputs: set[str] = field(default_factory=set)
    times: list[float] = field(default_factory=list)
    first: float | None = None  # time at which the first words arrived

    @property
    def busiest(self) -> int:
        """The largest number of messages in any second."""
        return max(sum(t <= u < t + 1 for u in self.times) for t in self.times)

    def take(self, message: dict[str, Any]) -> None:
        """Count a message to the browser."""
        content = message["content"]
        if message["msg_type"] not in ("stream", "display_data", "update_display_data"):
            return
        self.messages += 1
        self.times.append(time.monotonic())
        if self.first is None and "A look at" in json.dumps(content):
            self.first = time.monotonic()
        self.sent += len(json.dumps(content, ensure_ascii=False).encode())
        self.outputs.add(content.get("transient", {}).get("display_id", "stream"))


def run(kernel: Any, function: str, url: str) -> Measurement:
    """Run a function in the kernel and measure it."""
    measurement = Measurement()
    reply = kernel.execute_interactive(
        f"cpu = bench.{function}({url!r})",
        user_expressions={"cpu": "cpu"},
        output_hook=measurement.take,
        timeout=600,
    )
    if reply["content"]["status"] != "ok":
        sys.exit("\n".join(reply["content"]["traceback"]))
    measurement.cpu = float(reply["content"]["user_expressions"]["cpu"]["data"]["text/plain"])
    return measurement


def main() -> int:
    """Run the rounds and print the results; return 1 if a limit is exceeded."""
    from jupyter_client.manager import start_new_kernel

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="duration of one stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=200_000, help="characters of the answer")
    parser.add_argument("--deltas", type=int, default=20_000)
    options = parser.parse_args()
    server = serve(answer(options.size), options.deltas, options.seconds)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    manager, kernel = start_new_kernel(kernel_name="python3")
    try:
        setup = f"import sys; sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE)!r}]\n"
        warm = "import stream as bench, httpx_sse, markdown_it, nh3, opencode_magics.client.client"
        kernel.execute_interactive(setup + warm + "\nimport opencode_magics.notebook as notebook")
        results: dict[str, list[Measurement]] = {"draw": [], "simply_print": []}
        delays = []
        for _ in range(options.rounds):
            for function, measurements in results.items():
                measurements.append(latest := run(kernel, function, url))
                if function == "draw" and latest.first is not None:
                    sent = server.first_delta_times[-1]  # type: ignore[attr-defined]
                    delays.append((latest.first - sent) * 1000)
        longest_redraw = run(kernel, "tool_calls", url).cpu
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    print(f"500 tool calls: at most {longest_redraw * 1000:.0f} ms in one redraw")
    return report(results, median(delays))


def report(results: dict[str, list[Measurement]], first_delay: float) -> int:
    """Print the results and whether they are within the limits."""
    cpu = {name: median(m.cpu for m in measurements) for name, measurements in results.items()}
    for name, measurements in results.items():
        sent, messages = (median(getattr(m, n) for m in measurements) for n in ("sent", "messages"))
        cpus = ", ".join(f"{m.cpu:.2f}" for m in measurements)
        print(
            f"{name:12} {cpu[name]:.2f} s CPU ({cpus}), {sent:,.0f} bytes, {messages:.0f} messages"
        )
    values = {
        "bytes": max(m.sent for m in results["draw"]),
        "outputs": max(len(m.outputs) for m in results["draw"]),
        "updates/s": max(m.busiest for m in results["draw"]),
        "first ms": first_delay,
        "ratio": cpu["draw"] / cpu["simply_print"],
    }
    for name, value in values.items():
        verdict = "ok" if value <= LIMITS[name] else "TOO MUCH"
        print(f"{name:12} {value:,.2f} (at most {LIMITS[name]:,}): {verdict}")
    return int(any(value > LIMITS[name] for name, value in values.items()))


if __name__ == "__main__":
    sys.exit(main())
