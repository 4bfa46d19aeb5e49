"""Magics for a session's inbox, environment variables and instructions."""

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
    """Inbox, environment variables and instructions of a session"""

    @no_var_expand
    @documented_arguments
    @session_argument
    @argument("--cancel", metavar="ID", help="Remove an item.")
    @argument("--steer", metavar="ID", help="Deliver an item to the running turn.")
    @argument("--queue", metavar="ID", help="Deliver an item after the running turn.")
    @line_magic
    @with_parsed_options
    def oc_inbox(self, options: Namespace) -> pd.DataFrame:
        """The items in a session's inbox, as a DataFrame: prompts that no agent has seen yet.

        A prompt waits there while another turn runs (%%oc_prompt --queue), and after a turn was
        stopped. The beginning of an id is enough. OpenCode 2.x only.

        Example::

            %oc_prompt --no-wait Count slowly
            %oc_prompt --no-wait --queue Explain greet.py
            %oc_inbox --cancel msg_
        """
        from .. import tables

        client, session = self.state.client, self.state.resolve_session(" ".join(options.session))
        items = client.run(client.dialect.inbox(session))
        if options.cancel:
            item = _find_item(items, options.cancel)
            if not client.run(client.dialect.cancel(session, item.id)):
                print(f"{item.id} was already delivered and is part of a turn.")
        for delivery in ("steer", "queue"):
            if reference := getattr(options, delivery):
                item = _find_item(items, reference)
                client.run(client.dialect.set_delivery(session, item.id, delivery))
        return tables.inbox(client.run(client.dialect.inbox(session)))

    @documented_arguments
    @argument("variable", nargs="*", help="NAME=VALUE; replaces all earlier variables.")
    @session_option
    @argument("--clear", action="store_true", help="Remove all variables.")
    @line_magic
    @with_parsed_options
    def oc_env(self, options: Namespace) -> None:
        """New environment variables for a session's shell commands, replacing all earlier ones.

        The server stores them but never returns them. OpenCode 2.x only.

        Example::

            %oc_env DATABASE=test TZ=UTC
        """
        if bool(options.variable) == options.clear:
            raise UsageError("Give variables as NAME=VALUE, or --clear to remove all.")
        variables = dict(_parse_variable(text) for text in options.variable)
        session = self.state.resolve_session(options.session or "")
        client = self.state.client
        client.run(client.dialect.set_environment(session, variables))
        print(f"Variables of the session's shell commands: {', '.join(variables) or 'none'}.")

    @no_var_expand
    @documented_arguments
    @argument("key", nargs="?", help="Name of an instruction to add or replace.")
    @argument("text", nargs="*", help="The instruction; JSON text is sent as JSON.")
    @session_option
    @argument("--delete", metavar="KEY", help="Remove an instruction.")
    @line_magic
    @with_parsed_options
    def oc_instructions(self, options: Namespace) -> dict[str, Any]:
        """The extra instructions of a session's agent, as a dict by name; changes them if asked.

        The agent reads changes at its next step. OpenCode 2.x only.

        Example::

            %oc_instructions tone "Answer in one sentence."
        """
        client = self.state.client
        session = self.state.resolve_session(options.session or "")
        if options.delete:
            client.run(client.dialect.delete_instruction(session, options.delete))
        if options.key and not options.text:
            raise UsageError(
                f"Instruction {options.key!r} has no text. Write: %oc_instructions KEY TEXT"
            )
        if options.key:
            value = _parse_value(" ".join(options.text))
            client.run(client.dialect.put_instruction(session, options.key, value))
        return client.run(client.dialect.instructions(session))


def _find_item(items: tuple[InboxItem, ...], reference: str) -> InboxItem:
    from ..errors import UnknownNameError

    matches = [i for i in items if i.id == reference]
    matches = matches or [i for i in items if i.id.startswith(reference)]
    if len(matches) == 1:
        return matches[0]
    ids = ", ".join(i.id for i in matches)
    problem = f"{reference!r} could be any of {ids}." if ids else f"No inbox item {reference!r}."
    raise UnknownNameError(problem, "%oc_inbox lists the items.")


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"Write a variable as NAME=VALUE, not {text!r}.")
    return name, value


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
