"""A scripted model that serves the OpenAI chat-completions protocol on loopback.

The last user message selects its script (`script.py` for `#keywords`, `repertoire.py` for plain
words), and the messages after it determine the step. Its only state is a count of failures, so the
same conversation gets the same answer.
"""

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self, cast

from .repertoire import Exchange, plain_script, refusal
from .script import OVERFLOW, Call, FaultName, HTTPFailure, Step, keyword_script

Message = Mapping[str, Any]

TITLE = "Practice session"
SUMMARY = """\
## Goal
Practise with OpenCode.

## Progress
The earlier requests are answered. Nothing is left open.
"""


@dataclass(frozen=True)
class ModelRequest:
    """A request to the model, reduced to the fields that a script depends on."""

    model: str
    session: str
    messages: tuple[Message, ...]
    has_tools: bool

    @property
    def last_user(self) -> int:
        """The index of the last user message; -1 if there is none."""
        users = [n for n, message in enumerate(self.messages) if is_user(message)]
        return users[-1] if users else -1

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the last user message: the request, then any attachments."""
        return texts_of(self.messages[self.last_user]) if self.last_user >= 0 else ("",)

    @property
    def step(self) -> int:
        """The number of completed steps of the script."""
        return sum(message["role"] == "assistant" for message in self.since)

    @property
    def since(self) -> tuple[Message, ...]:
        """The messages after the last user message."""
        return self.messages[self.last_user + 1 :]

    @property
    def exchange(self) -> Exchange:
        """The conversation as a script sees it."""
        results = ("\n".join(texts_of(m)) for m in self.since if m["role"] == "tool")
        return Exchange(self.texts[0], tuple(results))

    @property
    def users(self) -> int:
        """The number of user messages so far."""
        return sum(map(is_user, self.messages))


def is_user(message: Message) -> bool:
    """Return whether a message has the role "user"."""
    return bool(message["role"] == "user")


def texts_of(message: Message) -> tuple[str, ...]:
    """Return the texts of a message, whose content is a string or a list of parts."""
    match message.get("content"):
        case str(text):
            return (text,)
        case [*parts]:
            return tuple(part["text"] for part in parts if part.get("type") == "text") or ("",)
        case _:
            return ("",)


def choose(request: ModelRequest) -> Step:
    """Return the step that answers a request."""
    system = "\n".join(texts_of(request.messages[0])) if request.messages else ""
    if not request.has_tools:
        # OpenCode sends requests without tools only for titles and summaries.
        return Step(TITLE if "title" in system[:400].lower() else SUMMARY)
    script = keyword_script("\n".join(request.texts))
    if script is None:
        script = plain_script(request.exchange)
        if step := refusal(request.exchange):
            return step
    return script[min(request.step, len(script) - 1)]


def usage(request: ModelRequest, step: Step) -> dict[str, Any]:
    """Return plausible token counts, derived from the conversation's size only."""
    base, length = 9_000 if request.has_tools else 400, len(request.messages)
    written = step.text + step.reasoning + "".join(json.dumps(dict(c.args)) for c in step.calls)
    counts = {
        "prompt_tokens": base + 250 * length,
        "cached_tokens": base + 250 * (length - 2) if length > 2 else 0,
        "completion_tokens": 10 + len(written) // 4,
        "reasoning_tokens": len(step.reasoning) // 4,
    } | dict(step.usage or {})
    return {
        "prompt_tokens": counts["prompt_tokens"],
        "completion_tokens": counts["completion_tokens"],
        "total_tokens": counts["prompt_tokens"] + counts["completion_tokens"],
        "prompt_tokens_details": {"cached_tokens": counts["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": counts["reasoning_tokens"]},
    }


def deltas(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a step: reasoning, text, tool calls."""
    yield {"role": "assistant", "content": ""}
    for piece in pieces(step.reasoning, step.deltas):
        yield {"reasoning_content": piece}
    for piece in pieces(step.text, step.deltas):
        yield {"content": piece}
    for index, call in enumerate(step.calls):
        yield from call_deltas(index, call)


def call_deltas(index: int, call: Call) -> Iterator[dict[str, Any]]:
    """Yield the deltas of one tool call: its name, then its arguments in pieces."""
    function: dict[str, Any] = {"name": call.tool, "arguments": ""}
    name = {"index": index, "id": call_id(index), "type": "function", "function": function}
    yield {"tool_calls": [name]}
    arguments = call.args if isinstance(call.args, str) else json.dumps(dict(call.args))
    for piece in pieces(arguments, 3):
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def call_id(index: int) -> str:
    """Return an id for a tool call, unique in the conversation."""
    return f"call_{time.time_ns():x}_{index}"


def pieces(text: str, count: int) -> list[str]:
    """Split a text into at most `count` pieces of equal length."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[start : start + size] for start in range(0, len(text), size)]


class PracticeModel:
    """A server of the scripted model: `with PracticeModel() as model: model.url`.

    `requests` has all requests received, oldest first.
    """

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self._failures: Counter[tuple[str, str, int, int]] = Counter()
        self._lock = Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self._thread = Thread(target=self._server.serve_forever, name="practice-model", daemon=True)

    @property
    def url(self) -> str:
        """The base URL; the protocol's routes are below `/v1`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> Self:
        """Start the server."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the server; a request in progress is cut off."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def answer(self, request: ModelRequest) -> tuple[Step, bool]:
        """Return the step for a request, and whether it fails this time."""
        step = choose(request)
        with self._lock:
            self.requests.append(request)
            return step, step.failure is not None and self._fails(request, step)

    def _fails(self, request: ModelRequest, step: Step) -> bool:
        if step.failure == OVERFLOW and step.times is None:
            return not any(SUMMARY in text for m in request.messages for text in texts_of(m))
        key = (request.session, request.texts[0], request.users, request.step)
        self._failures[key] += 1
        return step.times is None or self._failures[key] <= step.times


class QuietServer(ThreadingHTTPServer):
    """An HTTP server for practice worlds that logs nothing and ends with the process."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, such as a client that disconnects before the end of a reply."""


class QuietHandler(BaseHTTPRequestHandler):
    """A request handler that logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body in a separate packet is delayed by 40 ms

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; the owner of the server records the requests."""


class _Server(QuietServer):
    model: PracticeModel


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        """Send the list of models."""
        self._send(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        """Send a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        request = self._request(body)
        step, fails = cast(_Server, self.server).model.answer(request)
        match step.failure if fails else None:
            case None:
                self._answer(request, step)
            case HTTPFailure() as failure:
                self._fail(failure)
            case fault:
                FAULTS[fault](self, request, step)

    def _request(self, body: dict[str, Any]) -> ModelRequest:
        session = self.headers.get("x-session-affinity", "")
        return ModelRequest(
            body.get("model", ""), session, tuple(body["messages"]), bool(body.get("tools"))
        )

    def _send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        length = {"content-length": str(len(data))}
        self._begin(status, "application/json", length | dict(headers or {}))
        self.wfile.write(data)

    def _begin(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _fail(self, failure: HTTPFailure) -> None:
        kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
        error = {
            "message": failure.message,
            "type": kinds.get(failure.status, "invalid_request_error"),
            "code": failure.code,
        }
        self._send(failure.status, {"error": error}, failure.headers)

    def _answer(self, request: ModelRequest, step: Step) -> None:
        self._stream(request, step, list(deltas(step)))
        finish = step.finish or ("tool_calls" if step.calls else "stop")
        self._event(request, [{"index": 0, "delta": {}, "finish_reason": finish}])
        self._event(request, [], usage=usage(request, step))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _drop(self, request: ModelRequest, step: Step) -> None:
        """Reset the connection halfway, as an overloaded proxy does."""
        self._send_half(request, step)
        time.sleep(0.2)  # so that the first half is read before the reset
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def _garbage(self, request: ModelRequest, step: Step) -> None:
        self._send_half(request, step)
        self._chunk(b"data: <p>It works!\n\n")
        self._chunk(b"")

    def _hang(self, request: ModelRequest, step: Step) -> None:
        self.connection.recv(1)  # returns when the client disconnects
        self.close_connection = True

    def _page(self, request: ModelRequest, step: Step) -> None:
        page = b"<!doctype html><title>Welcome</title><p>It works!"
        self._begin(200, "text/html", {"content-length": str(len(page))})
        self.wfile.write(page)

    def _send_half(self, request: ModelRequest, step: Step) -> None:
        values = list(deltas(step))
        self._stream(request, step, values[: len(values) // 2 + 1])

    def _stream(
        self, request: ModelRequest, step: Step, values: Sequence[Mapping[str, Any]]
    ) -> None:
        self._begin(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for delta in values:
            self._event(request, [{"index": 0, "delta": delta, "finish_reason": None}])
            time.sleep(step.delay)

    def _event(self, request: ModelRequest, choices: Sequence[Any], **more: Any) -> None:
        event = {
            "id": "chatcmpl-practice",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": request.model,
            "choices": choices,
        }
        self._chunk(b"data: " + json.dumps(event | more).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


FAULTS: Mapping[FaultName, Callable[[_Handler, ModelRequest, Step], None]] = {
    "drop": _Handler._drop,
    "garbage": _Handler._garbage,
    "hang": _Handler._hang,
    "page": _Handler._page,
}
