"""A password goes over plain http only to this machine, unless a person agreed."""

from __future__ import annotations

import pytest
from support.ipython_shell import Shell

import opencode_magics
from opencode_magics import InsecureError
from opencode_magics.client.server import check_secure
from opencode_magics.errors import ServerConnectionError

REMOTE = "http://agents.example.invalid"


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:4096", "http://localhost", "http://[::1]:1", "https://agents.example.com"],
)
def test_this_machine_and_https_are_secure(address: str) -> None:
    check_secure(address)


@pytest.mark.parametrize("address", [REMOTE, "http://u:p@agents.example.invalid", f"{REMOTE}:80/x"])
def test_a_password_is_not_sent_to_another_machine_over_plain_http(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Case G3: it was sent without a word."""
    monkeypatch.setenv("OPENCODE_SERVER_PASSWORD", "hunter2")
    with pytest.raises(InsecureError, match=r"Nothing was sent to agents\.example") as caught:
        opencode_magics.connect(address)
    assert "--insecure http://agents.example.invalid" in caught.value.todo
    assert "hunter2" not in str(caught.value)


def test_an_address_without_a_password_needs_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCODE_SERVER_PASSWORD", raising=False)
    monkeypatch.delenv("OPENCODE_PASSWORD", raising=False)
    with pytest.raises(ServerConnectionError):
        opencode_magics.connect(REMOTE)


@pytest.mark.parametrize("how", ["--insecure", "config", "yes"])
def test_a_person_can_agree(alone: Shell, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Case G3: by the option, the configuration, or an answer; it is then sent."""
    monkeypatch.setenv("OPENCODE_SERVER_PASSWORD", "hunter2")
    if how == "config":
        alone.run("%config OpenCodeMagics.insecure_http = True")
    if how == "yes":
        alone.types("y")
    option = how if how.startswith("-") else ""
    shown = alone.fails(f"%oc_connect {option} {REMOTE}")
    assert isinstance(shown.error, ServerConnectionError)
    assert not isinstance(shown.error, InsecureError)
