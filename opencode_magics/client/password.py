"""Passwords of servers, and a mask for them in the data that a server sends."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from urllib.parse import quote

DEFAULT_USER = "opencode"

_MASK = b"********"
_SHORT = 6  # a shorter password may occur by chance
_WORDY = 12  # a shorter password of letters only may be a common word
_LABEL = rb"(?i:passw[\w.-]{0,40}[\"'\\\s]{0,8}[=:][\"'\\\s]{0,8}|://[^\s/:@\"']{0,100}:)"


class Secret(str):
    """A password whose `repr` hides it, for example in a traceback with variables."""

    def __repr__(self) -> str:
        return "'********'"


class PasswordMask:
    """Mask a password in data from a server: an agent's shell can print it (`env`).

    Masks the plain password, its JSON and URL encodings, and its authorization header. A short
    password or a plain word can occur by chance, so it is masked only after a label ("password=").
    Masking it everywhere could change the name of a directory, and for an unknown directory a
    server reports no busy sessions.

    Args:
        user: The user name for the password.
        password: The password; None masks nothing.
    """

    def __init__(self, user: str, password: str | None) -> None:
        self._forms = tuple(Secret(form) for form in _forms(password)) if password else ()
        self._by_chance = password is not None and _may_occur_by_chance(password)
        header = password is not None and len(password) >= _SHORT
        encoded = b64encode(f"{user}:{password}".encode()).decode()
        self._header = Secret(encoded) if header else None

    def __call__(self, body: bytes) -> bytes:
        """Mask the password in a body."""
        for form in self._forms:
            if form.encode() not in body:
                continue
            if self._by_chance:
                pattern = rb"(" + _LABEL + rb")" + re.escape(form.encode())
                body = re.sub(pattern, rb"\1" + _MASK, body)
            else:
                body = body.replace(form.encode(), _MASK)
        return body.replace(self._header.encode(), _MASK) if self._header else body

    def text(self, text: str) -> str:
        """Mask the password in a text."""
        if not self._forms:  # avoid copying thousands of frames
            return text
        return self(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _may_occur_by_chance(password: str) -> bool:
    return len(password) < _SHORT or (len(password) < _WORDY and password.isalpha())


def _forms(password: str) -> dict[str, None]:
    """Return the encodings of a password: JSON, plain, URL."""
    in_json = (json.dumps(password, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return dict.fromkeys((*in_json, password, quote(password, safe="")))
