"""Magics that list the commands, skills, MCP servers and integrations of a directory."""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from .options import documented_arguments, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd


@magics_class
class CatalogMagics(Topic):
    """Commands, skills, MCP servers and integrations"""

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_commands(self, options: Namespace) -> pd.DataFrame:
        """The commands that %oc_command can run, as a DataFrame.

        Example::

            %oc_commands
        """
        from .. import tables

        return tables.commands(self.state.client.commands())

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_skills(self, options: Namespace) -> pd.DataFrame:
        """The skills that agents can load, as a DataFrame.

        Example::

            %oc_skills
        """
        from .. import tables

        client = self.state.client
        return tables.skills(client.run(client.dialect.skills(client.directory)))

    @documented_arguments
    @argument("--add", metavar="NAME", help="Add a server until OpenCode restarts.")
    @argument("--url", help="With --add: the address of a remote server.")
    @argument("--command", help='With --add: the command of a local server, such as "npx tools".')
    @argument("--remove", metavar="NAME", help="Remove a server that was added (2.x).")
    @line_magic
    @with_parsed_options
    def oc_mcp(self, options: Namespace) -> pd.DataFrame:
        """The MCP servers and their status, as a DataFrame; adds or removes one if asked.

        A server that doesn't start or answer is listed as failed, with the reason.

        Example::

            %oc_mcp
            %oc_mcp --add tickets --url http://127.0.0.1:9000/mcp
        """
        from .. import tables

        client = self.state.client
        if options.add:
            client.run(client.dialect.add_mcp(client.directory, options.add, _config(options)))
        elif options.url or options.command:
            raise UsageError("--url and --command require --add NAME.")
        if options.remove:
            client.run(client.dialect.remove_mcp(client.directory, options.remove))
        return tables.mcp(client.run(client.dialect.mcp(client.directory)))

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_integrations(self, options: Namespace) -> pd.DataFrame:
        """The integrations that the server supports and their connections, as a DataFrame.

        OpenCode 2.x only.

        Example::

            %oc_integrations
        """
        from .. import tables

        client = self.state.client
        return tables.integrations(client.run(client.dialect.integrations(client.directory)))


def _config(options: Namespace) -> dict[str, Any]:
    if bool(options.url) == bool(options.command):
        raise UsageError("--add requires either --url or --command.")
    if options.url:
        return {"type": "remote", "url": options.url}
    return {"type": "local", "command": shlex.split(options.command)}
