"""What a session has besides its messages: what waits in its inbox, what its agent is told."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from .options import documented_arguments, session_argument, session_option, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..core.model import InboxItem


@magics_class
class InboxMagics(Topic):
    """What a session has besides its messages"""

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--cancel", metavar="ID", help="Take an item out.")
    @argument("--steer", metavar="ID", help="Let an item join the turn that runs.")
    @argument("--queue", metavar="ID", help="Let an item wait until the turn is over.")
    @line_magic
    @with_parsed_options
    def oc_inbox(self, options: Namespace) -> pd.DataFrame:
        """What waits in a session's inbox, as a DataFrame; prompts that no agent has seen yet.

        A prompt waits there while another turn runs (%%oc_prompt --queue), and after a turn was
        stopped. An id may be given by its beginning. OpenCode 2.x only.

        Example::

            %oc_prompt --no-wait Count slowly
            %oc_prompt --no-wait --queue Explain greet.py
            %oc_inbox --cancel msg_
        """
        from .. import tables

        client, session = self.state.client, self.state.resolve_session(" ".join(options.session))
        waiting = client.run(client.dialect.inbox(session))
        if options.cancel:
            item = _the_one(waiting, options.cancel)
            if not client.run(client.dialect.cancel(session, item.id)):
                print(f"{item.id} was delivered already: it is part of a turn.")
        for delivery in ("steer", "queue"):
            if named := getattr(options, delivery):
                client.run(
                    client.dialect.set_delivery(session, _the_one(waiting, named).id, delivery)
                )
        return tables.inbox(client.run(client.dialect.inbox(session)))

    @documented_arguments
    @argument("variable", nargs="*", help="NAME=VALUE; these replace all that were set before.")
    @session_option
    @argument("--clear", action="store_true", help="Leave none.")
    @line_magic
    @with_parsed_options
    def oc_env(self, options: Namespace) -> None:
        """Environment variables for a session's shell commands, instead of those before.

        The server keeps them and doesn't tell them. OpenCode 2.x only.

        Example::

            %oc_env DATABASE=test TZ=UTC
        """
        if bool(options.variable) == options.clear:
            raise UsageError("Give variables as NAME=VALUE, or --clear to leave none.")
        variables = dict(_variable(text) for text in options.variable)
        session = self.state.resolve_session(options.session or "")
        client = self.state.client
        client.run(client.dialect.set_environment(session, variables))
        print(f"The session's shells have {', '.join(variables) or 'no variables of their own'}.")

    @no_var_expand
    @documented_arguments
    @argument("key", nargs="?", help="Name of an instruction.")
    @argument("text", nargs="*", help="What to tell the agent; JSON stays JSON.")
    @session_option
    @argument("--delete", metavar="KEY", help="Take one back.")
    @line_magic
    @with_parsed_options
    def oc_instructions(self, options: Namespace) -> dict[str, Any]:
        """What a session's agent is told besides its prompts, by key; and how to change it.

        The agent reads a change at its next step. OpenCode 2.x only.

        Example::

            %oc_instructions tone "Answer in one sentence."
        """
        client = self.state.client
        session = self.state.resolve_session(options.session or "")
        if options.delete:
            client.run(client.dialect.delete_instruction(session, options.delete))
        if options.key and not options.text:
            raise UsageError(f"What should {options.key!r} say? %oc_instructions KEY TEXT")
        if options.key:
            client.run(
                client.dialect.put_instruction(session, options.key, _value(" ".join(options.text)))
            )
        return client.run(client.dialect.instructions(session))


def _the_one(waiting: tuple[InboxItem, ...], named: str) -> InboxItem:
    from ..errors import UnknownNameError

    found = [i for i in waiting if i.id == named] or [i for i in waiting if i.id.startswith(named)]
    if len(found) == 1:
        return found[0]
    could = f"could be any of {', '.join(i.id for i in found)}" if found else "waits in no inbox"
    raise UnknownNameError(f"{named!r} {could}.", "%oc_inbox lists what waits.")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"A variable is NAME=VALUE, not {text!r}")
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
