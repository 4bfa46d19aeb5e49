"""Remove secrets and personal data from text before it is saved.

It hides values whose name says password, token or key, texts in the form of a token, the values of
such environment variables, and passwords in URLs; the home directory becomes `~`. A secret found in
one place is hidden everywhere, even if a growing text ends in the middle of it. Equal texts are
redacted equally, so that paths still match.
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
_COUNTED = re.compile(r"token|pass(?![wp])", re.I)  # counts: a model's tokens, passed tests
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
        # Forms of tokens as the services document them, and as gitleaks lists them.
        r"\b(?P<value>gsk_\w{20,}|xai-\w{20,}|fc-[\da-f]{16,}|pplx-\w{20,}|r8_\w{20,}|tvly-[\w-]{16,}"
        r"|SG\.[\w-]{16,}\.[\w-]{16,}|dckr_pat_[\w-]{20,}|dop_v1_[\da-f]{32,}|dapi[\da-f]{32}"
        r"|sntrys_[\w=+/-]{20,}|\d{8,10}:AA[\w-]{30,}|[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,})",
        r"https://hooks\.slack\.com/(?:services|workflows)/(?P<value>[\w/-]{20,})",
        r"[?&](?:api_?)?key=(?P<value>[\w-]{16,})",
        # A line of a file .pgpass: host:port:database:user:password.
        r"(?m)^[\w.*-]{1,100}:(?:\d{1,5}|\*):[\w*-]{1,100}:[\w*-]{1,100}:(?P<value>\S{5,200})$",
    )
)
_HOMES = re.compile(
    r"(?<![\w.~-])(?:/home/|/Users/)[^/\s\"'`:;,)\\]+|\b[A-Za-z]:[\\/]+Users[\\/]+[^\\/\s\"'`:;,)]+"
)
# User names that identify no person and are common words.
_IMPERSONAL = {"root", "user", "admin", "jovyan", "ubuntu", "debian", "runner", "home", "guest"}
# Keys whose values the dialects depend on: identifiers, never personal. Fields of a tool may have
# the same names with any text, so the form of the value counts too.
_STRUCTURE = {"type", "role", "status", "id", "tool", "action", "generation", "finish", "reason"}
_IDENTIFIER = re.compile(r"[\w.:-]{1,100}")


class Replacement(NamedTuple):
    """A range of a text, and its replacement."""

    start: int
    end: int
    new: str


class Redactor:
    """Hides secrets, the home directory and the name of a user.

    Args:
        home: The home directory; None only hides paths in the form of one.
        user: The user's name.
        environment: Environment variables; those with a name like PASSWORD are secrets.
    """

    def __init__(
        self, home: str | None = None, user: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        homes = {h.rstrip("/\\") for h in (home, home and os.path.realpath(home)) if h}
        homes |= {escaped for h in homes for escaped in (quote(h, safe=""), h.replace("/", r"\/"))}
        self._home = _any_of(homes - {""}, r"(?<![\w.~-])", r"(?![\w-])")
        personal = len(user) > 2 and user.lower() not in _IMPERSONAL
        self._user = _any_of({user}, r"(?<![\w])", r"(?![\w])") if personal else None
        self._known: set[str] = {
            value
            for name, value in (environment or {}).items()
            if _KEY.search(name) and _is_distinctive(value)
        }
        self._secret = _any_of(self._known)

    @classmethod
    def for_this_machine(cls) -> Redactor:
        """Make a redactor for the current user and environment."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):  # unknown, as in some containers
            user = ""
        try:
            home: str | None = str(Path.home())
        except RuntimeError:
            home = None
        return cls(home, user, os.environ)

    def learn(self, values: Iterable[Any]) -> None:
        """Remember the secrets in some values, to hide them wherever they occur again."""
        for value in values:
            for key, text in _texts(value):
                secrets = {text[r.start : r.end] for r in _secrets(text)}
                secrets |= {text} if _KEY.search(key) else set()
                self._known |= {secret for secret in secrets if _is_distinctive(secret)}
        self._secret = _any_of(self._known)

    def redact_value(self, value: Any, key: str = "") -> Any:
        """Redact every text in a JSON value; `key` is its name."""
        match value:
            case str():
                return self.redact_text(value, key)
            case list():
                return [self.redact_value(v, key) for v in value]
            case dict():
                return {
                    self.redact_text(k): self.redact_value(v, name)
                    for k, name, v in _named_items(value, key)
                }
            case int() | float() if _KEY.search(key) and not _COUNTED.search(key):
                return HIDDEN
            case _:
                return value

    def redact_text(self, text: str, key: str = "") -> str:
        """Redact a text; `key` is its name."""
        if text and _KEY.search(key):
            return HIDDEN
        structural = (key in _STRUCTURE or key.endswith("ID")) and _IDENTIFIER.fullmatch(text)
        if structural and not any(_secrets(text)):
            return text
        return "".join(self.redact_pieces([text]))

    def redact_pieces(self, pieces: list[str]) -> list[str]:
        """Redact the pieces of one text as a whole; a replacement goes into its first piece."""
        text = "".join(pieces)
        replacements = self._replacements(text)
        if not replacements:
            return pieces
        redacted, at = [], 0
        for piece in pieces:
            redacted.append(_replaced(text, at, at + len(piece), replacements))
            at += len(piece)
        return redacted

    def _replacements(self, text: str) -> list[Replacement]:
        """The replacements in a text, in order and without overlaps."""
        candidates = [*_secrets(text), *self._cut_off(text)]
        for pattern, new in ((self._secret, HIDDEN), (self._home, "~"), (_HOMES, "~")):
            candidates += (
                [Replacement(*m.span(), new) for m in pattern.finditer(text)] if pattern else []
            )
        if self._user:
            candidates += [Replacement(*m.span(), "user") for m in self._user.finditer(text)]
        merged: list[Replacement] = []
        for item in sorted(candidates, key=lambda r: (r.start, -r.end)):
            if not merged or item.start >= merged[-1].end:
                merged.append(item)
            elif item.end > merged[-1].end:
                merged[-1] = merged[-1]._replace(end=item.end)
        return merged

    def _cut_off(self, text: str) -> Iterator[Replacement]:
        """Find the beginning of a known secret at the end of a text that is still growing."""
        for secret in self._known:
            start = max(len(text) - len(secret), 0)
            at = text.find(secret[:4], start)
            if at >= 0 and secret.startswith(text[at:]):
                yield Replacement(at, len(text), HIDDEN)


def _secrets(text: str) -> Iterator[Replacement]:
    for match in _NAMED.finditer(text):
        if match["quoted"]:
            yield Replacement(*match.span("quoted"), HIDDEN)
        elif _is_secret(match["name"], match["opened"], match["value"]):
            yield Replacement(*match.span("value"), HIDDEN)
    for pattern in _VALUES:
        for match in pattern.finditer(text):
            yield Replacement(*match.span("value"), HIDDEN)


def _is_secret(name: str, quote: str, value: str) -> bool:
    """Return whether the value after a name is a secret: `TOKEN=abc`, but not `token: str`."""
    if quote or name.isupper():
        return True
    return len(value) > 5 and not value.isdigit() and any(c.isdigit() for c in value)


def _is_distinctive(secret: str) -> bool:
    """Return whether a text is so unusual that every occurrence must be this secret."""
    return len(secret) >= 8 and (len(secret) >= 12 or not (secret.isalpha() and secret.islower()))


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in a value, each after its name."""
    match value:
        case str():
            yield key, value
        case list():
            for each in value:
                yield from _texts(each, key)
        case dict():
            for _, name, each in _named_items(value, key):
                yield from _texts(each, name)


def _named_items(value: dict[str, Any], key: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the key, name and value of an object's items.

    The name is the object's own `key` if that says secret, or for `{"name": ..., "value": ...}` the
    name in it; else it is the item's key.
    """
    for item, each in value.items():
        label = value.get("name", value.get("key")) if item == "value" else None
        name = next((n for n in (key, label) if isinstance(n, str) and _KEY.search(n)), item)
        yield item, name, each


def _any_of(texts: set[str], before: str = "", after: str = "") -> re.Pattern[str] | None:
    """A pattern for any of some texts, the longest first; None if there are none."""
    longest = sorted((t for t in texts if t), key=lambda t: (-len(t), t))
    return (
        re.compile(f"{before}(?:{'|'.join(map(re.escape, longest))}){after}") if longest else None
    )


def _replaced(text: str, start: int, end: int, replacements: list[Replacement]) -> str:
    """The part of a text between two positions, with its replacements applied."""
    parts, at = [], start
    for item in replacements:
        if item.end <= start or item.start >= end:
            continue
        parts.append(text[at : max(item.start, at)])
        parts.append(item.new if start <= item.start else "")
        at = max(min(item.end, end), at)
    return "".join((*parts, text[at:end]))
