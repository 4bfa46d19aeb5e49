"""A scripted model that speaks the OpenAI chat-completions protocol on loopback.

It takes its script from the last user message (`script.py` for `#keywords`, `repertoire.py`
for plain words) and its place in the script from the messages after it, so it keeps no
state but a count of how often it has failed. The same conversation gets the same answer.
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
from .script import OVERFLOW, Call, HTTPFailure, Mishap, Step, keyword_script

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
    """One request as the model received it, reduced to what a script depends on."""

    model: str
    session: str
    messages: tuple[Message, ...]
    has_tools: bool

    @property
    def last_user(self) -> int:
        """The place of the last user message; -1 if there is none."""
        users = [place for place, message in enumerate(self.messages) if is_user(message)]
        return users[-1] if users else -1

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the last user message: the request, then any attachments."""
        return texts_of(self.messages[self.last_user]) if self.last_user >= 0 else ("",)

    @property
    def step(self) -> int:
        """How many steps of the script are done."""
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
    """Whether a person (or OpenCode in a person's name) wrote the message."""
    return bool(message["role"] == "user")


def texts_of(message: Message) -> tuple[str, ...]:
    """The texts of a message, whose content is a string or a list of parts."""
    match message.get("content"):
        case str(text):
            return (text,)
        case [*parts]:
            return tuple(part["text"] for part in parts if part.get("type") == "text") or ("",)
        case _:
            return ("",)


def choose(request: ModelRequest) -> Step:
    """The step that answers a request."""
    system = "\n".join(texts_of(request.messages[0])) if request.messages else ""
    if not request.has_tools:
        # Only two of OpenCode's requests come without tools: a title, and a summary.
        return Step(TITLE if "title" in system[:400].lower() else SUMMARY)
    script = keyword_script("\n".join(request.texts))
    if script is None:
        script = plain_script(request.exchange)
        if refused := refusal(request.exchange):
            return refused
    return script[min(request.step, len(script) - 1)]


def usage(request: ModelRequest, step: Step) -> dict[str, Any]:
    """Plausible token counts that depend on nothing but the conversation's shape."""
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
    """The deltas of a step: reasoning, text, tool calls."""
    yield {"role": "assistant", "content": ""}
    for piece in pieces(step.reasoning, step.deltas):
        yield {"reasoning_content": piece}
    for piece in pieces(step.text, step.deltas):
        yield {"content": piece}
    for index, call in enumerate(step.calls):
        yield from call_deltas(index, call)


def call_deltas(index: int, call: Call) -> Iterator[dict[str, Any]]:
    """The deltas of one tool call: its name, then its arguments in pieces."""
    function: dict[str, Any] = {"name": call.tool, "arguments": ""}
    name = {"index": index, "id": call_id(index), "type": "function", "function": function}
    yield {"tool_calls": [name]}
    arguments = call.args if isinstance(call.args, str) else json.dumps(dict(call.args))
    for piece in pieces(arguments, 3):
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def call_id(index: int) -> str:
    """An id for a tool call, unique in the conversation."""
    return f"call_{time.time_ns():x}_{index}"


def pieces(text: str, count: int) -> list[str]:
    """The text in at most `count` pieces of the same length."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[start : start + size] for start in range(0, len(text), size)]


class PracticeModel:
    """The scripted model as a running server: `with PracticeModel() as model: model.url`.

    `requests` holds every request received, the oldest first.
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
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering; a request that is being answered is cut."""
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
        """The step for a request, and whether it fails this time."""
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
    """A server of the practice world, on loopback: it prints nothing and outlives nobody."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle of an answer is no news here."""


class QuietHandler(BaseHTTPRequestHandler):
    """Answers for such a server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body in a packet of its own would wait 40 ms

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: whoever owns the server keeps the requests that came."""


class _Server(QuietServer):
    model: PracticeModel


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        """Answer the list of models."""
        self._send(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        """Answer a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        request = self._request(body)
        step, fails = cast(_Server, self.server).model.answer(request)
        match step.failure if fails else None:
            case None:
                self._answer(request, step)
            case HTTPFailure() as failure:
                self._fail(failure)
            case mishap:
                MISHAPS[mishap](self, request, step)

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
        """Reset the connection half-way, as an overloaded proxy does."""
        self._half(request, step)
        time.sleep(0.2)  # so that the half is read before the reset
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def _garbage(self, request: ModelRequest, step: Step) -> None:
        self._half(request, step)
        self._chunk(b"data: <p>It works!\n\n")
        self._chunk(b"")

    def _hang(self, request: ModelRequest, step: Step) -> None:
        self.connection.recv(1)  # returns when the client hangs up
        self.close_connection = True

    def _page(self, request: ModelRequest, step: Step) -> None:
        page = b"<!doctype html><title>Welcome</title><p>It works!"
        self._begin(200, "text/html", {"content-length": str(len(page))})
        self.wfile.write(page)

    def _half(self, request: ModelRequest, step: Step) -> None:
        whole = list(deltas(step))
        self._stream(request, step, whole[: len(whole) // 2 + 1])

    def _stream(self, request: ModelRequest, step: Step, some: Sequence[Mapping[str, Any]]) -> None:
        self._begin(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for delta in some:
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


MISHAPS: Mapping[Mishap, Callable[[_Handler, ModelRequest, Step], None]] = {
    "drop": _Handler._drop,
    "garbage": _Handler._garbage,
    "hang": _Handler._hang,
    "page": _Handler._page,
}
