"""Magics that connect to a server, start and stop one, and list its models and agents."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from .options import documented_arguments, with_parsed_options
from .topic import Topic

if TYPE_CHECKING:
    import pandas as pd

    from ..client.client import Client


@contextmanager
def _waiting() -> Iterator[Callable[[float], None]]:
    """Show a line that counts the seconds while a server starts."""
    from tqdm import tqdm

    # Notebooks show stderr on red, as if something had failed.
    layout, screen = "{desc}{postfix}", sys.stdout
    with tqdm(desc="Starting OpenCode", bar_format=layout, leave=False, file=screen) as bar:
        yield lambda seconds: bar.set_postfix_str(f"{seconds:.0f} s")


@magics_class
class ConnectionMagics(Topic):
    """Connect to a server, or start one"""

    @documented_arguments
    @argument(
        "url",
        nargs="?",
        help="Address; default: $OPENCODE_SERVER_URL, else the background service of 2.x, else "
        "port 4096 on this machine.",
    )
    @argument("-d", "--directory", help="Working directory; default: the kernel's.")
    @argument(
        "--insecure",
        action="store_true",
        help="Send the password to another machine over plain http.",
    )
    @line_magic
    @with_parsed_options
    def oc_connect(self, options: Namespace) -> Client:
        """A connection to a running OpenCode server; shows its address, version and directory.

        An address looks like http://127.0.0.1:4096. The password is read from
        $OPENCODE_SERVER_PASSWORD, or you are asked for it. Without %oc_connect, the first magic
        that needs a server connects in the same way. If connecting fails, the previous connection
        is kept. A password is only sent over plain http to this machine, unless you agree,
        --insecure is given, or OpenCodeMagics.insecure_http is set.

        Example::

            %oc_connect
            %oc_connect --directory .
        """
        return self.state.connect(options.url, options.directory, insecure=options.insecure)

    @documented_arguments
    @argument("-d", "--directory", help="Directory to run in; default: the kernel's.")
    @argument("--keep", action="store_true", help="Leave it running when the kernel stops.")
    @line_magic
    @with_parsed_options
    def oc_start(self, options: Namespace) -> Client:
        """A new server for this notebook, already connected.

        It runs `opencode serve` from PATH on a free port of this machine, with a random password,
        and stops with the kernel or with %oc_stop. The magic fails if `opencode` is not on PATH,
        or if this notebook already runs a server.

        Example::

            %oc_start
        """
        from ..client.server import start

        if self.state.own_server is not None and self.state.own_server.running:
            raise UsageError(
                f"This notebook already runs a server at {self.state.own_server.url}. %oc_stop "
                "stops it."
            )
        self.state.stop()  # cleans up after a server that exited by itself
        directory = options.directory or self.state.directory or None
        with _waiting() as tick:
            server = start(directory=directory, keep=options.keep, progress=tick)
        self.state.own_server = server
        if options.keep:
            print(f"It keeps running without the kernel. To reconnect: %oc_connect {server.url}")
        return self.state.connect(server.url, directory, server.password)

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_stop(self, options: Namespace) -> None:
        """The shutdown of the server that %oc_start started; fails if there is none.

        Example::

            %oc_start
            %oc_stop
        """
        if not self.state.stop():
            raise UsageError(
                "This notebook runs no server. %oc_stop stops one that %oc_start started."
            )
        print("The server stopped.")

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_models(self, options: Namespace) -> pd.DataFrame:
        """The models that prompts can use, with prices in USD per million tokens, as a DataFrame.

        Example::

            models = %oc_models
            models[["model", "price_input", "price_output"]]
        """
        from .. import tables

        return tables.models(self.state.client.models())

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_agents(self, options: Namespace) -> pd.DataFrame:
        """The agents that prompts can use, as a DataFrame.

        Example::

            %oc_agents
        """
        from .. import tables

        return tables.agents(self.state.client.agents())
