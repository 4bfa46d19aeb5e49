"""A lost output or a closed connection is an error that says what still runs."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import pytest

from opencode_magics.client.client import Client
from opencode_magics.dialects.base import Request
from opencode_magics.errors import OpenCodeError, ServerConnectionError
from opencode_magics.notebook import text


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


def broken_pipe() -> Any:
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


@pytest.mark.parametrize("make", [closed, broken_pipe])
def test_an_output_that_can_not_be_written_is_an_error_of_our_own(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case E4: `ValueError`, `BrokenPipeError`."""
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(OpenCodeError, match="The output can't be written") as caught:
        text._stdout("hello")
    monkeypatch.undo()
    assert "%oc_attach" in caught.value.todo
    if not stream.closed:
        with pytest.raises(BrokenPipeError):
            stream.close()


def test_without_a_standard_output_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case E4: `AttributeError`."""
    monkeypatch.setattr(sys, "stdout", None)
    text._stdout("hello")


def test_a_connection_that_was_closed_here_says_so() -> None:
    """Case E4: `%unload_ext` or `%oc_connect` during a turn gave a `RuntimeError` of httpx."""
    client = Client("http://127.0.0.1:9")
    client.close()
    with pytest.raises(ServerConnectionError, match=r"was closed here, so GET /x was not sent"):
        client.transport.send(Request("GET", "/x"))
