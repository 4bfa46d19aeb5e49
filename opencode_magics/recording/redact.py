"""Takes secrets and the traces of a person out of text that is to be given away.

What is hidden: values that are called a password, token or key, things shaped like one, the values
of such environment variables, the password in an address; the home directory becomes `~`. What was
found to be a secret in one place is hidden in all places, also where a text that grows ends in the
middle of it. The same text is always masked alike, so paths still fit each other.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

HIDDEN = "********"

_WORD = (
    r"(?P<name>passw(?:or)?d|passphrase|(?<![a-z])pass(?![a-z])|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?)"
)
_NAMED = re.compile(
    rf"{_WORD}[\w.-]{{0,40}}\\{{0,7}}[\"']?\s{{0,3}}:?[=:]>?\s{{0,3}}"
    r"(?:(?P<quote>\\{0,7}[\"'])(?P<quoted>(?:(?!(?P=quote))[^\r\n]){3,400})(?=(?P=quote)|\Z)"
    r"|\\{0,7}(?P<opened>[\"']?)(?P<value>[^\s\"'\\,;&<>(){}\[\]`]{3,400}))",
    re.I,
)
_KEY = re.compile(rf"{_WORD}|authorization|cookie", re.I)
_COUNTED = re.compile(r"token|pass(?![wp])", re.I)  # tokens of a model, tests that pass
_VALUES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)--(?:[a-z]{1,20}-)?(?:passw(?:or)?d|token|secret|api-?key)\s+(?P<value>[^\s\"'-]\S{2,})",
        r"(?:(?<=\s)-u|--user)\s+[\w.@-]{1,80}:(?P<value>[^\s\"']+)",
        r"://[^\s/:@\"']{0,100}:(?P<value>[^\s/@\"']{1,200})@",
        r"://(?P<value>(?=[^\s/:@\"']{0,200}\d)[\w-]{12,200})@",
        r"(?i)\bpassword\s+(?:is\s+)?[\"']?(?P<value>(?=[^\s\"']{0,100}\d)[^\s\"']{6,100})",
        r"(?i)<[\w:-]{0,40}(?:password|secret|token|api-?key)\s?>(?P<value>[^<>\s]{3,400})</",
        r"(?i)\bauthorization\s{0,2}[:=]\s{0,2}(?:[a-z]{1,20}\s+)?"
        r"(?P<value>(?=[^\s\"']{0,300}[\d=+/])[A-Za-z0-9._~+/=-]{8,})",
        r"(?:\b[A-Z][A-Z0-9_]{0,60}_KEY|AccountKey)[\"']?\s{0,3}[=:]\s{0,3}[\"']?"
        r"(?P<value>(?=[^\s\"']{0,300}\d)[\w./+=-]{12,})",
        r"(?i)\b(?:bearer|basic)\s+(?P<value>(?=[^\s\"']{0,300}[\d=+/])[A-Za-z0-9._~+/=-]{8,})",
        r"(?i)\bcookie\s{0,2}:\s{0,2}(?P<value>[^\r\n\"']{3,})",
        r"(?P<value>-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*KEY-----|\Z))",
        r"\b(?P<value>eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
        r"\b(?P<value>sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{16,}|gh[pousr]_\w{20,}"
        r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}\b"
        r"|AIza[\w-]{30,}|hf_\w{20,}|npm_\w{30,}|pypi-[\w-]{30,}|ya29\.[\w-]{20,})",
    )
)
_HOMES = re.compile(
    r"(?<![\w.~-])(?:/home/|/Users/)[^/\s\"'`:;,)\\]+|\b[A-Za-z]:[\\/]+Users[\\/]+[^\\/\s\"'`:;,)]+"
)
# Names that say nothing of a person, and that other things are called as well.
_ANYBODY = {"root", "user", "admin", "jovyan", "ubuntu", "debian", "runner", "home", "guest"}
# What a reader of the wire goes by: words of its own, never a person's. Tools have fields that are
# called so as well, with anything in them.
_STRUCTURE = {"type", "role", "status", "id", "tool", "action", "generation", "finish", "reason"}
_WIRE_WORD = re.compile(r"[\w.:-]{1,100}")


class Replacement(NamedTuple):
    """A stretch of a text, and what is put there instead."""

    start: int
    end: int
    new: str


class Redactor:
    """Hides secrets, the home directory and the name of a user.

    Args:
        home: The home directory; None for no other than those that look like one.
        user: The user's name.
        environment: Variables of which those that are called a secret have one.
    """

    def __init__(
        self, home: str | None = None, user: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        homes = {h.rstrip("/\\") for h in (home, home and os.path.realpath(home)) if h}
        homes |= {written for h in homes for written in (quote(h, safe=""), h.replace("/", r"\/"))}
        self._home = _any_of(homes - {""}, r"(?<![\w.~-])", r"(?![\w-])")
        personal = len(user) > 2 and user.lower() not in _ANYBODY
        self._user = _any_of({user}, r"(?<![\w])", r"(?![\w])") if personal else None
        self._known: set[str] = {
            value
            for name, value in (environment or {}).items()
            if _KEY.search(name) and _telling(value)
        }
        self._secret = _any_of(self._known)

    @classmethod
    def for_this_machine(cls) -> Redactor:
        """What hides the person who runs this."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):  # nobody knows, as in some containers
            user = ""
        try:
            home: str | None = str(Path.home())
        except RuntimeError:
            home = None
        return cls(home, user, os.environ)

    def learn(self, values: Iterable[Any]) -> None:
        """Note which secrets are in some values, to hide them wherever they come again."""
        for value in values:
            for key, text in _texts(value):
                found = {text[e.start : e.end] for e in _secrets(text)}
                found |= {text} if _KEY.search(key) else set()
                self._known |= {secret for secret in found if _telling(secret)}
        self._secret = _any_of(self._known)

    def redact_value(self, value: Any, key: str = "") -> Any:
        """A value as JSON has it, with every text in it masked; `key` is what it is called."""
        match value:
            case str():
                return self.redact_text(value, key)
            case list():
                return [self.redact_value(v, key) for v in value]
            case dict():
                return {
                    self.redact_text(k): self.redact_value(v, name)
                    for k, name, v in _called(value, key)
                }
            case int() | float() if _KEY.search(key) and not _COUNTED.search(key):
                return HIDDEN
            case _:
                return value

    def redact_text(self, text: str, key: str = "") -> str:
        """A text, masked."""
        if text and _KEY.search(key):
            return HIDDEN
        of_the_wire = (key in _STRUCTURE or key.endswith("ID")) and _WIRE_WORD.fullmatch(text)
        if of_the_wire and not any(_secrets(text)):
            return text
        return "".join(self.redact_pieces([text]))

    def redact_pieces(self, pieces: list[str]) -> list[str]:
        """Pieces of one text, masked as the whole: what is hidden is told in the first of them."""
        whole = "".join(pieces)
        edits = self._edits(whole)
        if not edits:
            return pieces
        masked, at = [], 0
        for piece in pieces:
            masked.append(_edited(whole, at, at + len(piece), edits))
            at += len(piece)
        return masked

    def _edits(self, text: str) -> list[Replacement]:
        """What to change in a text, in order; nothing overlaps."""
        found = [*_secrets(text), *self._cut_off(text)]
        for pattern, new in ((self._secret, HIDDEN), (self._home, "~"), (_HOMES, "~")):
            found += (
                [Replacement(*m.span(), new) for m in pattern.finditer(text)] if pattern else []
            )
        if self._user:
            found += [Replacement(*m.span(), "user") for m in self._user.finditer(text)]
        edits: list[Replacement] = []
        for edit in sorted(found, key=lambda e: (e.start, -e.end)):
            if not edits or edit.start >= edits[-1].end:
                edits.append(edit)
            elif edit.end > edits[-1].end:
                edits[-1] = edits[-1]._replace(end=edit.end)
        return edits

    def _cut_off(self, text: str) -> Iterator[Replacement]:
        """The beginning of a secret at the end of a text, of which there will be more."""
        for secret in self._known:
            start = max(len(text) - len(secret), 0)
            at = text.find(secret[:4], start)
            if at >= 0 and secret.startswith(text[at:]):
                yield Replacement(at, len(text), HIDDEN)


def _secrets(text: str) -> Iterator[Replacement]:
    for found in _NAMED.finditer(text):
        if found["quoted"]:
            yield Replacement(*found.span("quoted"), HIDDEN)
        elif _is_value(found["name"], found["opened"], found["value"]):
            yield Replacement(*found.span("value"), HIDDEN)
    for pattern in _VALUES:
        for found in pattern.finditer(text):
            yield Replacement(*found.span("value"), HIDDEN)


def _is_value(name: str, quote: str, value: str) -> bool:
    """Whether what follows a name is a secret: `TOKEN=abc`, and not `token: str` in a program."""
    if quote or name.isupper():
        return True
    return len(value) > 5 and not value.isdigit() and any(c.isdigit() for c in value)


def _telling(secret: str) -> bool:
    """Whether a text can only be that secret, wherever it stands, and not just any word."""
    return len(secret) >= 8 and (len(secret) >= 12 or not (secret.isalpha() and secret.islower()))


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts in a value, each with what it is called."""
    match value:
        case str():
            yield key, value
        case list():
            for each in value:
                yield from _texts(each, key)
        case dict():
            for _, name, each in _called(value, key):
                yield from _texts(each, name)


def _called(value: dict[str, Any], key: str) -> Iterator[tuple[str, str, Any]]:
    """What is in an object, each with its key and what it is called: the object may be a secret,
    or tell the name of its value beside it.
    """
    for name, each in value.items():
        beside = value.get("name", value.get("key")) if name == "value" else None
        named = next((n for n in (key, beside) if isinstance(n, str) and _KEY.search(n)), name)
        yield name, named, each


def _any_of(texts: set[str], before: str = "", after: str = "") -> re.Pattern[str] | None:
    """A pattern for any of some texts, the longest first; None for none."""
    longest = sorted((t for t in texts if t), key=lambda t: (-len(t), t))
    return (
        re.compile(f"{before}(?:{'|'.join(map(re.escape, longest))}){after}") if longest else None
    )


def _edited(whole: str, start: int, end: int, edits: list[Replacement]) -> str:
    """The part of a text between two places, as it is after some changes."""
    parts, at = [], start
    for edit in edits:
        if edit.end <= start or edit.start >= end:
            continue
        parts.append(whole[at : max(edit.start, at)])
        parts.append(edit.new if start <= edit.start else "")
        at = max(min(edit.end, end), at)
    return "".join((*parts, whole[at:end]))
