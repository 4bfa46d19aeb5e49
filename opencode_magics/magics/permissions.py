"""Magics about what waits for a person: follow a running turn, see what is asked, answer it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Literal

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from .options import (
    check_turn_options,
    documented_arguments,
    session_argument,
    turn_options,
    with_parsed_options,
)
from .turns import TurnMagics

if TYPE_CHECKING:
    import pandas as pd

    from ..client.client import Client
    from ..core.model import Decision, Permission, Question, Rule, Session
    from ..core.rules import Verdict
    from ..core.turn import SettledRequest


@magics_class
class PermissionMagics(TurnMagics):
    """What waits for you"""

    @no_var_expand
    @documented_arguments
    @session_argument
    @turn_options
    @line_magic
    @with_parsed_options
    def oc_attach(self, options: Namespace) -> None:
        """The turn that a session works on, followed as if its prompt had been sent here.

        For turns that were started elsewhere, sent with --no-wait, or left by --timeout. After a
        page reload, attach from another notebook: interrupting the cell that waits, or restarting
        its kernel, stops the agent. What the agent asks is answered here. Of a session
        that is idle, its last turn is shown. The session becomes the current one.

        Example::

            %oc_prompt --no-wait Explain greet.py
            %oc_attach -o turn
        """
        from ..prompts.runner import raise_for_outcome
        from ..sessions.run import attach

        check_turn_options(options)
        session = self.state.resolve_session(" ".join(options.session))
        run = attach(self.state.client, session, self.state.limits)
        self.state.session = self.state.track(session, "chosen")
        try:
            self._runner(options.permission, options.timeout)(run)
        finally:
            self.state.remember_turn(run.turn, options.out)
        raise_for_outcome(run.turn)

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("-a", "--all", action="store_true", help="All that waits in the directory.")
    @line_magic
    @with_parsed_options
    def oc_permissions(self, options: Namespace) -> pd.DataFrame | Verdict:
        """What a session and its subagents wait for, permissions and questions, as a DataFrame.

        Three words in place of a session are about the current session's rules. `check ACTION
        RESOURCE ...` says what would happen, and which rule decides. `rules` lists all rules in the
        order in which they count. `set "EFFECT ACTION RESOURCE" ...` replaces the session's own
        (2.x); `set none` leaves none, and `forget ID` takes an "always" back (2.x).

        Example::

            %oc_permissions
            %oc_permissions check bash "git push origin"
            rules = %oc_permissions rules
        """
        from .. import tables
        from ..sessions import store

        if options.session and options.session[0] in _VERBS and not options.all:
            return self._rules(*options.session)
        named = " ".join(options.session)
        everything = options.all or not (named or self.state.session)
        scope = None if everything else self.state.resolve_session(named)
        return tables.requests(store.pending_requests(self.state.client, scope))

    @no_var_expand
    @documented_arguments
    @argument("request", help="Id of the request, or its beginning; %%oc_permissions lists them.")
    @argument("reply", nargs="?", help="once, always or reject; for a question: dismiss.")
    @argument("message", nargs="*", help="With reject: what the agent should know; it goes on.")
    @argument("--answer", action="append", default=[], help="Answer; once per question asked.")
    @line_magic
    @with_parsed_options
    def oc_reply(self, options: Namespace) -> SettledRequest:
        """An answer to a permission or a question that waits, and what came of it.

        For a question give one --answer for each of its items, an option's label or your own
        words; several labels of one item are separated by commas. What was answered already, or
        has expired, is told.

        Example::

            %oc_prompt --no-wait Run the tests
            %oc_status --wait any --timeout 60
            %oc_reply per_ reject Use the staging server instead
        """
        client = self.state.client
        request, session = self._request(options.request)
        message = " ".join(options.message)
        return _reply(client, request, session, options.reply, message, options.answer)

    def _rules(self, verb: str, *words: str) -> pd.DataFrame | Verdict:
        from .. import tables
        from ..sessions.store import session_rules

        client, session = self.state.client, self.state.require_session()
        match verb, words:
            case "check", (action, *resources) if resources:
                return session_rules(client, session).decide(action, resources)
            case "set", ("none",):
                client.run(client.dialect.set_rules(session, []))
            case "set", (_, *_):
                client.run(client.dialect.set_rules(session, [_rule(text) for text in words]))
            case "forget", (_, *_):
                for rule in words:
                    client.run(client.dialect.delete_saved_rule(rule))
            case "rules", ():
                pass
            case _:
                raise UsageError(_VERBS[verb])
        return tables.rules(session_rules(client, session))

    def _request(self, named: str) -> tuple[Permission | Question, Session]:
        """The waiting request of an id, of the current session's tree or of the directory."""
        from ..errors import UnknownNameError
        from ..sessions.store import pending_requests

        if not named.strip():  # every id begins so: the only one would be answered
            raise UsageError("The id of the request is empty. %oc_permissions lists them.")
        scopes = [self.state.session, None] if self.state.session else [None]
        waiting = {
            r.id: (r, s) for scope in scopes for r, s in pending_requests(self.state.client, scope)
        }
        keys = [named] if named in waiting else [k for k in waiting if k.startswith(named)]
        found = [waiting[key] for key in keys]
        if len(found) == 1:
            return found[0]
        what = f"{named!r} could be any of {', '.join(r.id for r, _ in found)}." if found else ""
        raise UnknownNameError(
            what or f"No request {named!r} waits: it was answered, has expired, or never was.",
            "%oc_permissions lists what waits.",
        )


_VERBS = {
    "check": "%oc_permissions check ACTION RESOURCE, as in: check shell 'git push'",
    "rules": "%oc_permissions rules lists the rules of the current session",
    "set": "%oc_permissions set 'EFFECT ACTION RESOURCE' ..., as in: set 'deny shell git push *'",
    "forget": "%oc_permissions forget ID; %oc_permissions rules lists the ids",
}


def _rule(text: str) -> Rule:
    """A rule as it is written: effect, action, resource.

    Raises:
        UsageError: It is none.
    """
    from ..core.model import Rule
    from ..core.rules import EFFECTS

    effect, _, rest = text.partition(" ")
    action, _, resource = rest.strip().partition(" ")
    if effect not in EFFECTS or not action or not resource.strip():
        raise UsageError(f"A rule is 'allow|deny|ask ACTION RESOURCE' in quotes, not {text!r}")
    return Rule(action, resource.strip(), effect)


def _reply(
    client: Client,
    request: Permission | Question,
    session: Session,
    reply: Decision | Literal["dismiss"] | None,
    message: str,
    answers: list[str],
) -> SettledRequest:
    from ..core.model import Permission
    from ..core.turn import SettledRequest

    where = session.directory
    if isinstance(request, Permission):
        if reply not in ("once", "always", "reject") or answers:
            raise UsageError(f"{request.id} is a permission: say once, always or reject")
        if message and reply != "reject":
            raise UsageError("a message goes with reject only")
        client.run(client.dialect.reply(request, where, reply, message))
        return SettledRequest(request, reply, message)
    if reply == "dismiss":
        client.run(client.dialect.dismiss(request, where))
        return SettledRequest(request, "dismissed")
    if reply or len(answers) != len(request.items):
        count = len(request.items)
        raise UsageError(f"{request.id} asks {count} question(s): give --answer {count} time(s)")
    chosen = [
        _labels(text, item.multiple) for text, item in zip(answers, request.items, strict=True)
    ]
    client.run(client.dialect.answer(request, where, chosen))
    return SettledRequest(request, "answered", "; ".join(", ".join(c) for c in chosen))


def _labels(text: str, multiple: bool) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if multiple else [text]
