"""Evaluate permission rules as OpenCode does.

The rules of the agent are followed by those of the session; the last match wins, and without a
match a person is asked. A rule saved by "always" can allow what would be asked, but not what a rule
denies. For several resources the strictest effect counts: deny, then ask.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .model import Effect, Rule, SavedRule

Origin = Literal["agent", "session", "saved", "default"]

EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")  # strictest first
_ASK = Rule("*", "*", "ask")


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The rules that apply in a session. `agent` is None for an unknown agent."""

    agent: tuple[Rule, ...] | None
    session: tuple[Rule, ...] = ()
    saved: tuple[SavedRule, ...] = ()

    def decide(self, action: str, resources: Sequence[str]) -> Verdict:
        """Decide on an action of the session's agent; an unknown agent is denied everything."""
        agent = (Rule("*", "*", "deny"),) if self.agent is None else self.agent
        return decide(action, resources, agent, self.session, self.saved)

    def __iter__(self) -> Iterator[tuple[str, Rule, str]]:
        """Yield (origin, rule, id) in order of evaluation; the id is "" unless it is saved."""
        yield from (("agent", rule, "") for rule in self.agent or ())
        yield from (("session", rule, "") for rule in self.session)
        yield from (("saved", Rule(s.action, s.resource, "allow"), s.id) for s in self.saved)


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The decision on an agent's action.

    Attributes:
        effect: allow, deny or ask.
        rule: The rule that decides; `ask * *` if none matches.
        origin: The origin of the rule.
        resource: The resource that decides, if there are several.
    """

    effect: Effect
    rule: Rule
    origin: Origin
    resource: str

    def __repr__(self) -> str:
        if self.origin == "default":
            reason = "since no rule matches"
        elif self.origin == "saved":
            reason = 'by an earlier "always"'
        else:
            reason = f"by rule {str(self.rule)!r} of the {self.origin}"
        return f"<{self.effect}: {self.resource!r}, {reason}>"


def decide(
    action: str,
    resources: Sequence[str],
    agent: Iterable[Rule],
    session: Iterable[Rule] = (),
    saved: Iterable[SavedRule] = (),
) -> Verdict:
    """Decide on an action that needs all of the resources."""
    configured = [("agent", rule) for rule in agent] + [("session", rule) for rule in session]
    always = [("saved", Rule(s.action, s.resource, "allow")) for s in saved]
    return strictest(_decide(action, resource, configured, always) for resource in resources)


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the strictest verdict: deny, then ask; the first of equals."""
    return min(verdicts, key=lambda v: EFFECTS.index(v.effect))


def _decide(
    action: str, resource: str, configured: list[tuple[str, Rule]], saved: list[tuple[str, Rule]]
) -> Verdict:
    verdict = _last_match(action, resource, configured)
    if verdict.effect == "deny" or not saved:
        return verdict
    return _last_match(action, resource, [*configured, *saved])


def _last_match(action: str, resource: str, rules: list[tuple[str, Rule]]) -> Verdict:
    for origin, rule in reversed(rules):
        if matches(rule.action, action) and matches(rule.resource, resource):
            return Verdict(rule.effect, rule, origin, resource)  # type: ignore[arg-type]
    return Verdict("ask", _ASK, "default", resource)


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a complete text.

    `*` matches any characters, slashes included, and `?` matches one. The end " *" of a pattern is
    optional: `git push *` also matches `git push`.
    """
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> re.Pattern[str]:
    optional_end = pattern.endswith(" *")
    body = pattern[:-2] if optional_end else pattern
    wildcards = {"*": ".*", "?": "."}
    text = "".join(wildcards.get(c) or re.escape(c) for c in body)
    return re.compile(text + ("(?: .*)?" if optional_end else ""), re.DOTALL)


# -- what the server asks for ----------------------------------------------------------------------

# A command in single quotes, or in double quotes without a substitution, is text.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\`$]|\$(?!\())*"|\d*[<>]&\d*|&>""")
_SEPARATOR = re.compile(r"&&|\|\|?|[;&\n`()]|\$\(")
_PATH = re.compile(r"""(?<![^\s'"=<>(;&|])(?:~|/|\.\./|\.\.(?=\s|$))[^\s'"<>();&|]*""")
_KEYWORD = re.compile(r"^\s*(?:(?:if|then|elif|else|while|until|do|time|!|\{)(?=\s)\s*)+")


def needed_permissions(
    action: str, resource: str, directory: str, path: str = ""
) -> list[tuple[str, str]]:
    """Return the permissions that an agent needs for an action: (action, resource) pairs.

    As observed with 1.18.33: a path is matched relative to the project's root, a path outside the
    project also needs `external_directory`, and each command of a compound command is matched.

    Args:
        action: The action.
        resource: What it acts on; a relative path starts at the directory.
        directory: The session's directory.
        path: The directory as seen from the project's root; "" if it is the root.
    """
    root = posixpath.normpath(posixpath.join(directory, posixpath.relpath(".", path or ".")))
    paths: list[str] = []
    needed = [(action, resource)]
    if not directory.startswith("/"):  # Windows
        pass
    elif action in ("bash", "shell"):
        paths = [path for match in _PATH.findall(resource) for path in (match, f"{match}/*")]
        needed = [(action, command) for command in simple_commands(resource)]
    elif action in ("read", "edit") and "*" not in resource:
        paths = [resource]
        needed = [(action, posixpath.relpath(posixpath.join(directory, resource), root))]
    return [*_outside(paths, directory, root), *needed]


def _outside(paths: Iterable[str], directory: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield the permissions for paths outside the project. Without git, its root is "/"."""
    project = [folder.rstrip("/") + "/" for folder in (directory, root) if folder != "/"]
    for path in paths:
        target = posixpath.normpath(posixpath.join(directory, posixpath.expanduser(path)))
        if not f"{target}/".startswith(tuple(project)):
            yield "external_directory", posixpath.join(posixpath.dirname(target), "*")


def simple_commands(text: str) -> list[str]:
    """Split a shell command into the commands that it runs.

    The server uses a parser. This splits more often where it is unsure, which can only make a
    decision stricter.
    """
    masked = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    ends = [*_SEPARATOR.finditer(masked)]
    starts = [0, *(end.end() for end in ends)]
    stops = [*(end.start() for end in ends), len(text)]
    commands = [_KEYWORD.sub("", text[a:b]) for a, b in zip(starts, stops, strict=True)]
    return [command.strip() for command in commands if command.strip(' \t"}')] or [text]
