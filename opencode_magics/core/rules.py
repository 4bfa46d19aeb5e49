"""What permission rules decide, as OpenCode decides it.

The rules of the agent come first, then those of the session; the last one that matches wins, and
where none does, a person is asked. What an "always" saved may allow what would be asked, but never
what a rule denies. Of several resources, one that is denied denies all, and one that is asked asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .model import Effect, Rule, SavedRule

Origin = Literal["agent", "session", "saved", "default"]

EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")  # the strictest first
_ASK = Rule("*", "*", "ask")


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The rules that count in a session. `agent` is None for an agent that nobody knows."""

    agent: tuple[Rule, ...] | None
    session: tuple[Rule, ...] = ()
    saved: tuple[SavedRule, ...] = ()

    def decide(self, action: str, resources: Sequence[str]) -> Verdict:
        """What happens when the session's agent wants to do something; an unknown one may not."""
        agent = (Rule("*", "*", "deny"),) if self.agent is None else self.agent
        return decide(action, resources, agent, self.session, self.saved)

    def __iter__(self) -> Iterator[tuple[str, Rule, str]]:
        """All rules in the order in which they count, with whose they are and a saved one's id."""
        yield from (("agent", rule, "") for rule in self.agent or ())
        yield from (("session", rule, "") for rule in self.session)
        yield from (("saved", Rule(s.action, s.resource, "allow"), s.id) for s in self.saved)


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """What happens when an agent wants to do something.

    Attributes:
        effect: allow, deny or ask.
        rule: The rule that decides; `ask * *` where none matches.
        origin: Whose rule it is.
        resource: The resource that decides, where there are several.
    """

    effect: Effect
    rule: Rule
    origin: Origin
    resource: str

    def __repr__(self) -> str:
        whose = {"default": "no rule matches", "saved": 'an "always" of before'}
        why = whose.get(self.origin) or f"rule {str(self.rule)!r} of the {self.origin}"
        return f"<{self.effect}: {self.resource!r}, by {why}>"


def decide(
    action: str,
    resources: Sequence[str],
    agent: Iterable[Rule],
    session: Iterable[Rule] = (),
    saved: Iterable[SavedRule] = (),
) -> Verdict:
    """What happens when an agent wants to do `action` to all `resources`."""
    ranked = [("agent", rule) for rule in agent] + [("session", rule) for rule in session]
    kept = [("saved", Rule(s.action, s.resource, "allow")) for s in saved]
    verdicts = [_one(action, resource, ranked, kept) for resource in resources]
    return min(verdicts, key=lambda v: EFFECTS.index(v.effect))


def _one(
    action: str, resource: str, ranked: list[tuple[str, Rule]], saved: list[tuple[str, Rule]]
) -> Verdict:
    configured = _last(action, resource, ranked)
    if configured.effect == "deny" or not saved:
        return configured
    return _last(action, resource, [*ranked, *saved])


def _last(action: str, resource: str, rules: list[tuple[str, Rule]]) -> Verdict:
    for origin, rule in reversed(rules):
        if matches(rule.action, action) and matches(rule.resource, resource):
            return Verdict(rule.effect, rule, origin, resource)  # type: ignore[arg-type]
    return Verdict("ask", _ASK, "default", resource)


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern fits all of a text.

    `*` stands for any run of characters, slashes included, `?` for one. A pattern that ends in
    " *" also fits what stands before it: `git push *` fits `git push`.
    """
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> re.Pattern[str]:
    ends_open = pattern.endswith(" *")
    body = pattern[:-2] if ends_open else pattern
    signs = {"*": ".*", "?": "."}
    text = "".join(signs.get(c) or re.escape(c) for c in body)
    return re.compile(text + ("(?: .*)?" if ends_open else ""), re.DOTALL)
