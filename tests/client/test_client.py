"""The client's transport: addresses, proxies, secrets, retries, the stream."""

from __future__ import annotations

import inspect
import json
import signal
import threading
import time
import traceback

import httpx
import pytest
from support.fake_server import (
    ACCEPTED,
    DISCONNECT,
    SESSION,
    FakeServer,
    ReceivedRequest,
    answers_in_turn,
    frame,
    v1_routes,
    v2_routes,
)
from support.transport import CannedTransport

from opencode_magics.client.client import Client
from opencode_magics.client.stream import Connected, Disconnected, StreamProblem
from opencode_magics.client.transport import RecordingTransport, is_loopback, parse_url
from opencode_magics.core.model import Server, Session
from opencode_magics.dialects import jsonwire
from opencode_magics.dialects.base import Dialect, Prompt, Request
from opencode_magics.errors import (
    AuthenticationError,
    OpenCodeError,
    ServerConnectionError,
    StatusError,
    StreamError,
    UnsupportedOperation,
)

ROOT = Session("ses_root01", "root", "/work/p")


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:4096/"),
        ("localhost:5000", "http://localhost:5000/"),
        ("::1", "http://[::1]:4096/"),
        ("[::1]:4096", "http://[::1]:4096/"),
        ("http://[::1]:4096", "http://[::1]:4096/"),
        ("https://example.org", "https://example.org/"),
        ("http://hub/user/ana/proxy/4096/", "http://hub/user/ana/proxy/4096/"),
        ("hub:8000/user/ana", "http://hub:8000/user/ana/"),
        ("  http://a:1  ", "http://a:1/"),
    ],
)
def test_addresses_are_read_as_people_type_them(typed, url):
    """Case G1-40."""
    assert str(parse_url(typed)) == url


@pytest.mark.parametrize(
    "typed", ["http://a:1?x=1", "ftp://a", "", "http://", "http://a:b:c", "http://a:99999999"]
)
def test_an_invalid_address_is_reported_in_one_sentence(typed):
    with pytest.raises(ServerConnectionError, match="not a server address"):
        Client(typed)


@pytest.mark.parametrize(
    "address",
    [
        "http://opencode:hunter2@a:b:c",
        "http://opencode:hunter2/x@a:4096",  # a slash, # or ? ends the host: "Invalid port"
        "opencode:hunter2#x@a",
        "http://opencode:hunter2?@a",
    ],
)
def test_a_wrong_address_does_not_show_its_password(address):
    with pytest.raises(ServerConnectionError) as caught:
        Client(address)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "a.localhost"]
)
def test_loopback_is_recognized(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "localhost.example.org", "fe80::1"])
def test_other_machines_are_not_loopback(host):
    assert not is_loopback(host)


def test_a_path_in_the_address_is_kept_for_every_call():
    """Case G1-28."""
    prefix = "/user/ana/proxy/4096"
    routes = {k.replace(" ", f" {prefix}", 1): v for k, v in v1_routes().items()}
    with FakeServer(routes) as fake, Client(f"{fake.url}{prefix}/") as client:
        client.check()
        stream = client.stream()
        stream.take(60)
        stream.close()
        client.prompt(ROOT, Prompt("msg_1", "hi"))
    assert all(s.path.startswith(prefix + "/") for s in fake.seen)
    assert "//" not in "".join(s.path for s in fake.seen)


def test_loopback_never_goes_through_a_proxy(monkeypatch):
    """Case G1-10."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with FakeServer(v1_routes()) as fake, Client(fake.url) as client:
        assert client.server.version == "1.18.33"


def test_a_remote_server_keeps_the_proxy(monkeypatch):
    """Case G1-10."""
    with FakeServer({"GET http://example.invalid/global/health": {"version": "1.0.0"}}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with Client("http://example.invalid") as client, pytest.raises(OpenCodeError):
            client.check()
        assert proxy.seen


@pytest.mark.parametrize("value", ["localhost,[::1]", "fd12::/64"])
def test_an_invalid_no_proxy_affects_only_remote_servers(monkeypatch, value):
    """Case G1-23."""
    monkeypatch.setenv("NO_PROXY", value)
    with FakeServer(v1_routes()) as fake, Client(fake.url) as client:
        client.check()
    assert "NO_PROXY" in remote_trouble()


def remote_trouble() -> str:
    """The messages logged for a remote server; newer versions of httpx log none."""
    try:
        Client("http://example.org").close()
    except ServerConnectionError as error:
        return str(error)
    return "NO_PROXY could be read"


def test_localhost_reaches_a_server_that_listens_on_ipv4_only():
    with FakeServer(v1_routes()) as fake, Client(f"http://localhost:{fake.port}") as client:
        client.check()


@pytest.mark.parametrize("directory", ["/data/100% done/分析 é", "/a+b/#c?d e", "C:\\Work\\p"])
def test_directories_are_sent_exactly_as_spelled(directory):
    """Case G1-11."""
    with FakeServer(v1_routes()) as fake, Client(fake.url, directory=directory) as client:
        client.sessions()
        client.statuses()
        client.create("title")
        stream = client.stream()
        stream.take(60)
        stream.close()
    directories = [s.query["directory"] for s in fake.seen if "directory" in s.query]
    assert len(directories) == 4
    assert set(directories) == {directory}


def test_the_password_is_sent_with_every_request_and_never_shown():
    with FakeServer(v1_routes()) as fake, Client(fake.url, password="hunter2") as client:
        client.check()
        assert all(s.headers["authorization"].startswith("Basic ") for s in fake.seen)
        assert "hunter2" not in f"{client!r}{vars(client)!r}"


def test_a_password_in_the_address_is_used_and_removed_from_it():
    with FakeServer(v1_routes()) as fake:
        with Client(fake.url.replace("://", "://ana:hunter2@")) as client:
            client.check()
        basic = httpx.BasicAuth("ana", "hunter2")._auth_header
        assert fake.seen[0].headers["authorization"] == basic
        assert "hunter2" not in f"{client!r}{client.url}"


def test_a_user_in_the_address_is_sent_with_the_password():
    with FakeServer(v1_routes()) as fake:
        with Client(fake.url.replace("://", "://ana@"), password="hunter2") as client:
            client.check()
        basic = httpx.BasicAuth("ana", "hunter2")._auth_header
        assert {s.headers["authorization"] for s in fake.seen} == {basic}


def test_a_redirect_is_not_followed_with_the_password():
    with FakeServer(v1_routes()) as elsewhere:
        routes = {"GET /session/ses_root01": (302, {"location": f"{elsewhere.url}/session"}, b"")}
        with (
            FakeServer(v1_routes() | routes) as fake,
            Client(fake.url, password="hunter2") as client,
            pytest.raises(StatusError),
        ):
            client.session("ses_root01")
        assert elsewhere.seen == []


@pytest.mark.parametrize("password", ["hunter2", 'se"cr\\et9', "geh\teim-\u00fc"])
def test_a_password_that_the_server_repeats_is_masked(password):
    stored = {**SESSION, "title": f"it is {password}!"}
    for escaped in (True, False):
        body = (200, {}, json.dumps(stored, ensure_ascii=escaped).encode())
        routes = v1_routes(session=body)
        with FakeServer(routes) as fake, Client(fake.url, password=password) as client:
            assert client.session("ses_root01").title == "it is ********!"


@pytest.mark.parametrize("password", ["opencode", "assistant", "Session", "abc"])
def test_a_password_that_is_a_word_is_masked_only_after_a_label(password):
    """A masked directory would be another one, for which the server reports nothing busy."""
    title = (
        f'OPENCODE_SERVER_PASSWORD={password}\n{{"password": "{password}"}} http://me:{password}@a'
    )
    session = {**SESSION, "directory": f"/work/{password}-demo", "title": title}
    with (
        FakeServer(v1_routes(session=session)) as fake,
        Client(fake.url, password=password) as client,
    ):
        received = client.session("ses_root01")
    assert received.directory == f"/work/{password}-demo"
    assert received.title == title.replace(password, "********")


def test_a_url_encoded_password_is_masked():
    session = {**SESSION, "title": "http://me:p%40ss%2Fw0rd@a"}
    with (
        FakeServer(v1_routes(session=session)) as fake,
        Client(fake.url, password="p@ss/w0rd") as c,
    ):
        assert c.session("ses_root01").title == "http://me:********@a"


def test_a_wrong_password_is_reported_in_one_sentence():
    routes = dict.fromkeys(v1_routes(), (401, {"www-authenticate": "Basic"}, b""))
    routes["GET /api/info"] = (401, {}, b"")
    with FakeServer(routes) as fake, Client(fake.url, password="hunter2") as client:
        with pytest.raises(AuthenticationError) as caught:
            client.check()
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_an_interrupt_while_a_stream_opens_shows_no_password():
    """Frames of httpcore have it among their variables, which a verbose traceback lists."""

    def interrupt(seen: ReceivedRequest) -> object:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(1)
        return DISCONNECT

    routes = v1_routes() | {"GET /log": interrupt}
    with (
        FakeServer(routes) as fake,
        Client(fake.url, password="hunter2") as client,
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        client.transport.stream(Request("GET", "/log"), 30.0)
    assert "httpcore" not in "".join(traceback.format_exception(caught.value))


def test_a_refused_connection_says_how_to_start_a_server():
    with Client("http://127.0.0.1:9") as client, pytest.raises(ServerConnectionError) as caught:
        client.check()
    assert "127.0.0.1:9" in caught.value.what
    assert "opencode serve" in caught.value.todo
    assert not caught.value.sent


def test_a_get_is_retried():
    answers = answers_in_turn(DISCONNECT, (503, {}, b""), {"ses_1": {"type": "busy"}})
    with FakeServer(v1_routes(status=answers)) as fake, Client(fake.url) as client:
        assert client.statuses()["ses_1"].name == "busy"
        assert len(fake.asked("GET /session/status")) == 3


@pytest.mark.parametrize(
    ("route", "act"),
    [
        ("POST /session", lambda c: c.create("title")),
        ("POST /session/ses_root01/prompt_async", lambda c: c.prompt(ROOT, Prompt("msg_1", "hi"))),
        ("POST /session/ses_root01/abort", lambda c: c.abort(ROOT)),
    ],
)
@pytest.mark.parametrize(
    "answer", [DISCONNECT, (503, {}, b""), (307, {"location": "/elsewhere"}, b"")]
)
def test_a_post_is_sent_once_whatever_happens(route, act, answer):
    """Case G1-05."""
    with FakeServer(v1_routes() | {route: answer}) as fake, Client(fake.url) as client:
        with pytest.raises(OpenCodeError) as caught:
            act(client)
        assert len(fake.asked(route)) == 1
        if isinstance(caught.value, ServerConnectionError):
            assert caught.value.sent


def test_a_slow_reply_to_a_prompt_does_not_time_out():
    """Case G1-04."""

    def slowly(seen):
        time.sleep(6)  # httpx itself would give up after 5
        return ACCEPTED

    with FakeServer(v1_routes(prompt=slowly)) as fake, Client(fake.url) as client:
        client.prompt(ROOT, Prompt("msg_1", "hi"))


def test_html_where_json_was_expected():
    page = (200, {"content-type": "text/html"}, b"<p>")
    canned = CannedTransport(v1_routes(status=page))
    with pytest.raises(StatusError, match="text/html"):
        Client(canned.url, transport=canned).statuses()


def test_many_threads_can_send_requests_at_once():
    with FakeServer(v1_routes()) as fake, Client(fake.url) as client:
        threads = [threading.Thread(target=client.sessions) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(fake.asked("GET /session")) == 8


def test_an_error_is_raised_inside_the_flow():
    def flow():
        try:
            yield Request("GET", "/missing")
        except StatusError as error:
            return error.status

    gone = CannedTransport({"GET /missing": (404, {}, b"")})
    assert Client(gone.url, transport=gone).run(flow()) == 404


# -- the stream ------------------------------------------------------------------------------------


def take_until(stream, kind, seconds=120.0):
    items, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        items += stream.take(0.1)
        if any(isinstance(h, kind) for h in items):
            return items
    raise AssertionError(f"no {kind.__name__} in {items}")


def test_a_broken_stream_is_reported_and_reopened():
    idle = frame("session.idle", sessionID="ses_root01")
    with FakeServer(v1_routes(), [[idle, DISCONNECT], [idle]]) as fake, Client(fake.url) as client:
        stream = client.stream()
        first = take_until(stream, Disconnected)
        assert isinstance(first[0], Connected)
        take_until(stream, Connected)
        stream.close()
        assert len(fake.asked("GET /event")) == 2


def test_silence_longer_than_heartbeats_counts_as_a_broken_stream():
    """Case G1-06."""
    with FakeServer(v1_routes(), [[], []]) as fake, Client(fake.url) as client:
        client.dialect.silence = 0.3
        stream = client.stream()
        take_until(stream, Disconnected)
        take_until(stream, Connected)
        stream.close()


def test_closing_the_client_ends_its_stream_with_a_message():
    """Its thread ends, too: pytest fails if a thread raises."""
    with FakeServer(v1_routes(), [[DISCONNECT]] * 20) as fake:
        client = Client(fake.url)
        stream = client.stream()
        take_until(stream, Disconnected)
        client.close()
        stream._thread.join(120)
        assert stream.take(60)[-1] == Disconnected("the client was closed")
        assert not stream._thread.is_alive()


def test_a_reply_that_is_not_a_stream_is_fatal_and_says_why():
    with FakeServer(v1_routes()) as fake, Client(fake.url) as client:
        client.dialect.stream = lambda directory: Request("GET", "/a-page")
        items = take_until(client.stream(), StreamProblem)
        assert items[-1].fatal
        assert "instead of an event stream" in items[-1].error.what


def test_an_unreadable_frame_does_not_break_the_stream():
    bad = [b"data: {nonsense\n\n", frame("message.updated"), frame("session.idle", sessionID="s")]
    canned = CannedTransport(v1_routes(), [bad])
    with Client(canned.url, transport=canned) as client:
        stream = client.stream()
        items = []
        while len(items) < 4:
            items += stream.take(60)
        stream.close()
        assert [type(h).__name__ for h in items] == [
            "Connected",
            "StreamProblem",
            "StreamProblem",
            "StatusChanged",
        ]


@pytest.mark.parametrize("data", ["{nonsense", "[" * 100_000, ""], ids=lambda d: d[:9])
def test_a_frame_that_is_not_json_is_reported(data):
    with pytest.raises(StreamError, match="not JSON"):
        jsonwire.decode_frame(data)


def test_closing_ends_the_reader_at_once():
    with FakeServer(v1_routes(), [[]]) as fake, Client(fake.url) as client:
        stream = client.stream()
        take_until(stream, Connected)
        began = time.monotonic()
        stream.close()
        assert not stream._thread.is_alive()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("routes", "version", "doubt"),
    [
        ("1.x", "1.18.33", ""),
        ("1.x", "1.18.4", ""),
        ("1.x", "1.17.9", "outside the tested 1.18"),
        ("1.x", "1.180.0", "outside the tested 1.18"),
        ("2.x", "2.0.16", ""),
        ("2.x", "v2.2.7", ""),
        ("2.x", "2.3.0", "outside the tested 2.0 to 2.2"),
        ("2.x", "3.0.0", "outside the tested 2.0 to 2.2"),
        ("2.x", "local", "outside the tested 2.0 to 2.2"),
        ("2.x", "", "outside the tested 2.0 to 2.2"),
    ],
)
def test_a_connection_reports_its_version_and_the_tested_ones(
    routes: str, version: str, doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = {"healthy": True, "version": version, "pid": 1}
    answers = v1_routes(health=reply) if routes == "1.x" else v2_routes(info=reply)
    canned = CannedTransport(answers)
    client = Client(canned.url, directory="/work/p", transport=canned)
    client.check()
    assert f"OpenCode {version} at " in repr(client)
    assert "tested with the real 1.18.33" in repr(client) or "transcripts of 2.0.16" in repr(client)
    assert doubt in repr(client)
    assert ("outside" in repr(client)) == bool(doubt)
    assert [doubt in r.getMessage() for r in caplog.records] == [True] * bool(doubt)


# -- transports ------------------------------------------------------------------------------------


def test_a_client_that_knows_its_server_asks_nothing_first():
    canned = CannedTransport(v1_routes())
    known = Server("1.x", "1.18.33")
    client = Client(canned.url, directory="/work/p", transport=canned, server=known)
    assert client.server == known
    assert client.dialect.generation == "1.x"
    assert not canned.seen


def test_a_client_over_another_transport_has_the_same_server_and_directory():
    first, second = CannedTransport(v1_routes()), CannedTransport(v1_routes())
    client = Client(first.url, transport=first)
    twin = client.with_transport(second)
    assert twin.directory == "/work/p"
    assert twin.dialect is client.dialect
    assert [s.path for s in second.seen] == ["/path"]  # who answers was asked over the first


def test_a_recording_transport_hands_over_what_is_read_and_nothing_else():
    replies = []
    inner = CannedTransport(v1_routes())
    recording = RecordingTransport(inner, lambda *reply: replies.append(reply))
    client = Client(inner.url, directory="/work/p", transport=recording)
    client.statuses()
    client.prompt(ROOT, Prompt("msg_1", "hi"))
    assert ("GET /session/status?directory=/work/p", 200, b"{}") in replies
    assert all(address.startswith("GET ") for address, _, _ in replies)


def test_an_operation_that_a_generation_lacks_names_the_one_that_has_it():
    client = Client("http://a", server=Server("2.x", "2.0.16"))
    with pytest.raises(UnsupportedOperation, match=r"2\.x doesn't support .*1\.x does"):
        client.dialect.share(ROOT)


OPERATIONS = [n for n, v in vars(Dialect).items() if inspect.isfunction(v) and n[0] != "_"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_of_a_new_dialect_refuses_or_has_a_default(name):
    class V3(Dialect):
        generation = "3.x"

    operation = getattr(V3(), name)
    needed = [p for p in inspect.signature(operation).parameters.values() if p.default is p.empty]
    values = {"now": 1, "prompt": Prompt("msg_1", "hi", delivery="steer"), "log": "", "frame": {}}
    arguments = {p.name: values.get(p.name, "x") for p in needed}
    if name in (
        "new_prompt_id",
        "turn_diffs",
        "event_id",
        "session_event",
    ):
        operation(**arguments)
    else:
        with pytest.raises(UnsupportedOperation, match=r"OpenCode 3\.x doesn't support"):
            operation(**arguments)
