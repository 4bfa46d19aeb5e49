"""A server can't fill the memory: bodies, lines and lists have limits that errors name."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from support.fake_server import FakeServer, v1_routes

from opencode_magics.client.client import Client
from opencode_magics.client.transport import HTTPTransport
from opencode_magics.dialects.base import Request
from opencode_magics.errors import OpenCodeError, StreamError, printable
from opencode_magics.magics.state import OpenCodeMagics


def test_a_gzip_bomb_is_refused_before_it_is_decompressed_as_a_whole() -> None:
    """Case G2: 1.2 MB became 2.4 GB and a MemoryError."""
    bomb = gzip.compress(b"[" + b" " * 30_000_000 + b"]")
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    routes = v1_routes() | {"GET /bomb": (200, headers, bomb)}
    assert len(bomb) < 100_000
    with FakeServer(routes) as fake, Client(fake.url) as client:
        client.limit(10, 10, 10)
        with pytest.raises(StreamError, match=r"GET /bomb has more than 10 MB") as caught:
            client.transport.send(Request("GET", "/bomb"))
        assert "OpenCodeMagics.max_response_mb = 20" in caught.value.todo
        client.limit(40, 10, 10)
        assert len(client.transport.send(Request("GET", "/bomb")).body) == 30_000_002


def test_a_real_page_of_61_mb_loads_by_default() -> None:
    """Case G2: the defaults."""
    default = OpenCodeMagics.class_traits()["max_response_mb"].default_value
    assert default > 61
    assert default * 1e6 == HTTPTransport.max_body


def test_a_line_of_the_event_stream_has_a_limit() -> None:
    """Case G2: a line of 900 MB."""
    frame = b"data: " + b"x" * 3_000_000 + b"\n\n"
    headers = {"content-type": "text/event-stream"}
    routes = v1_routes() | {"GET /stream": (200, headers, frame)}
    with FakeServer(routes) as fake, Client(fake.url) as client:
        client.limit(10, 1, 10)
        frames = client.transport.stream(Request("GET", "/stream"), 30.0)
        with pytest.raises(
            StreamError, match=r"A line of GET /stream has more than 1 MB"
        ) as caught:
            list(frames)
        assert "max_event_mb" in caught.value.todo


@pytest.mark.parametrize("charset", ["rot13", "hex", "idna", "utf-16", "nonsense"])
def test_an_event_stream_is_utf_8_whatever_its_headers_say(charset: str) -> None:
    """Case G5: the reader's thread ended with a traceback."""
    frame = 'data: {"é": 1}\n\n'.encode()
    headers = {"content-type": f"text/event-stream; charset={charset}"}
    routes = v1_routes() | {"GET /stream": (200, headers, frame)}
    with FakeServer(routes) as fake, Client(fake.url) as client:
        (text,) = client.transport.stream(Request("GET", "/stream"), 30.0)
    assert json.loads(text) == {"é": 1}


def test_a_list_whose_pages_never_end_is_refused() -> None:
    """Case G2: 27,615 pages."""

    def pages() -> Any:
        while True:
            yield Request("GET", "/session")

    with FakeServer(v1_routes()) as fake, Client(fake.url) as client:
        client.limit(10, 10, 20)
        with pytest.raises(StreamError, match=r"GET /session has more than 20 pages") as caught:
            client.run(pages())
        assert "max_pages = 40" in caught.value.todo


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "\x1b[2J", "a\x9bb", "\x00"])
def test_nothing_that_a_terminal_interprets_is_in_an_error(text: str) -> None:
    """Case G1: titles, messages of servers and failures of providers."""
    error = OpenCodeError(f"It failed: {text}.", text)
    for shown in (str(error), repr(error), *error._render_traceback_()):
        assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
    assert printable("Fix\nthe\tbug é") == "Fix\nthe\tbug é"
