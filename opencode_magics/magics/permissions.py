"""Magics to follow a running turn and to list and answer its pending requests."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

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

    from ..core.model import Permission, Question, Rule, Session
    from ..core.rules import Verdict
    from ..core.turn import SettledRequest


@magics_class
class PermissionMagics(TurnMagics):
    """Follow a turn; list and answer requests"""

    @no_var_expand
    @documented_arguments
    @session_argument
    @turn_options
    @line_magic
    @with_parsed_options
    def oc_attach(self, options: Namespace) -> None:
        """A session's running turn, followed as if this cell had sent its prompt.

        Use it for turns that were started elsewhere, sent with --no-wait, or left by --timeout.
        After a page reload, attach from another notebook: interrupting the cell that waits, or
        restarting its kernel, stops the agent. You answer permissions and questions in this cell.
        If the session is idle, its last turn is shown. The session becomes the current one. Without
        a session, and if there is no current one, it is the one at work in the directory.

        Example::

            %oc_prompt --no-wait Explain greet.py
            %oc_attach -o turn
        """
        from ..prompts.runner import raise_for_outcome
        from ..sessions.run import attach

        check_turn_options(options)
        session = self._session_to_attach(" ".join(options.session))
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
    @argument("-a", "--all", action="store_true", help="All pending requests in the directory.")
    @line_magic
    @with_parsed_options
    def oc_permissions(self, options: Namespace) -> pd.DataFrame | Verdict:
        """The pending permissions and questions of a session and its subagents, as a DataFrame.

        Instead of a session, these subcommands work with the rules of the current session. `check
        ACTION RESOURCE ...` shows what would happen and which rule decides; ACTION can also be a
        tool, as in `check write new.txt`. `rules` lists all rules in the order in which they apply.
        `set "EFFECT ACTION RESOURCE" ...` replaces the session's own rules (2.x), `set none`
        removes them, and `forget ID` revokes an "always" answer (2.x).

        Example::

            %oc_permissions
            %oc_permissions check write README.md
            rules = %oc_permissions rules
        """
        from .. import tables
        from ..sessions import store

        if options.session and options.session[0] in _VERBS and not options.all:
            return self._rules(*options.session)
        reference = " ".join(options.session)
        all_sessions = options.all or not (reference or self.state.session)
        scope = None if all_sessions else self.state.resolve_session(reference)
        return tables.requests(store.pending_requests(self.state.client, scope))

    @no_var_expand
    @documented_arguments
    @argument("request", help="Id of the request, or its beginning; %%oc_permissions lists them.")
    @argument("reply", nargs="?", help="once, always or reject; for a question: dismiss.")
    @argument(
        "message",
        nargs="*",
        help="With reject (2.x: or dismiss): a message to the agent, which then continues.",
    )
    @argument("--answer", action="append", default=[], help="Answer; one for each question.")
    @line_magic
    @with_parsed_options
    def oc_reply(self, options: Namespace) -> SettledRequest:
        """The answer to a pending permission or question, as the server accepted it.

        For a request with several questions, give one --answer for each: the label of an option or
        your own words, or several labels separated by commas where that is allowed. A message with
        a rejection (on 2.x also with `dismiss`) tells the agent what to do instead. A request that
        was already answered or has expired is an error.

        Example::

            %oc_prompt --no-wait Run the tests
            %oc_status --wait any --timeout 60
            %oc_reply per_ reject Use the staging server instead
        """
        from ..sessions.answer import reply_to

        request, session = self._find_request(options.request)
        message = " ".join(options.message)
        return reply_to(self.state.client, request, session, options.reply, message, options.answer)

    def _session_to_attach(self, named: str) -> Session:
        """The session of this name, else the current one, else the one at work in the directory.

        Raises:
            UsageError: There is none, or several are at work.
        """
        from ..sessions.status import busy_sessions

        if named or self.state.session is not None:
            return self.state.resolve_session(named)
        client = self.state.client
        match busy_sessions(client, client.directory):
            case (session,):
                return session
            case ():
                return self.state.require_session()
            case several:
                listed = ", ".join(f"{s.id} ({s.title})" for s in several)
                raise UsageError(f"Several sessions are at work here: {listed}. Name one.")

    def _rules(self, verb: str, *words: str) -> pd.DataFrame | Verdict:
        """Run a subcommand of %oc_permissions; all except `check` return the rules."""
        from .. import tables
        from ..sessions.permissions import check, check_rule, session_rules

        client, session = self.state.client, self.state.require_session()
        match verb, words:
            case "check", (action, *resources) if resources:
                return check(client, session, action, resources)
            case "set", ("none",):
                client.run(client.dialect.set_rules(session, []))
            case "set", (_, *_):
                rules = [_parse_rule(text) for text in words]
                for rule in rules:
                    check_rule(client, session.directory, rule)
                client.run(client.dialect.set_rules(session, rules))
            case "forget", (_, *_):
                for rule_id in words:
                    client.run(client.dialect.delete_saved_rule(rule_id))
            case "rules", ():
                pass
            case _:
                raise UsageError(_VERBS[verb])
        return tables.rules(session_rules(client, session))

    def _find_request(self, reference: str) -> tuple[Permission | Question, Session]:
        """Find a pending request by id in the current session, its subagents and the directory."""
        from ..errors import UnknownNameError
        from ..sessions.store import pending_requests

        if not reference.strip():  # every id starts with "", so a single request would match
            raise UsageError("The id of the request is empty. %oc_permissions lists them.")
        scopes = [self.state.session, None] if self.state.session else [None]
        pending = {
            r.id: (r, s) for scope in scopes for r, s in pending_requests(self.state.client, scope)
        }
        matches = [k for k in pending if k == reference]
        matches = matches or [k for k in pending if k.startswith(reference)]
        if len(matches) == 1:
            return pending[matches[0]]
        problem = f"No pending request {reference!r}: answered, expired, or never sent."
        if matches:
            problem = f"{reference!r} could be any of {', '.join(matches)}."
        raise UnknownNameError(problem, "%oc_permissions lists the pending requests.")


_VERBS = {
    "check": "%oc_permissions check ACTION RESOURCE, as in: check edit README.md",
    "rules": "%oc_permissions rules lists the rules of the current session",
    "set": "%oc_permissions set 'EFFECT ACTION RESOURCE' ..., as in: set 'deny edit docs/*'",
    "forget": "%oc_permissions forget ID; %oc_permissions rules lists the ids",
}


def _parse_rule(text: str) -> Rule:
    """Parse a rule: effect, action, resource.

    Raises:
        UsageError: The text is not a rule.
    """
    from ..core.model import Rule
    from ..core.rules import EFFECTS

    effect, _, rest = text.partition(" ")
    action, _, resource = rest.strip().partition(" ")
    if effect not in EFFECTS or not action or not resource.strip():
        raise UsageError(
            f"Write a rule as 'allow|deny|ask ACTION RESOURCE' in quotes, not {text!r}."
        )
    return Rule(action, resource.strip(), effect)
