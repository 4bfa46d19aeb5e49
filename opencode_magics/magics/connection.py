"""Magics about the server: which one, what it offers, one of our own."""

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
    """A line that counts the seconds while a server starts."""
    from tqdm import tqdm

    # On a notebook's stderr it would stand on red, as if something had failed.
    shape, screen = "{desc}{postfix}", sys.stdout
    with tqdm(desc="Starting OpenCode", bar_format=shape, leave=False, file=screen) as bar:
        yield lambda seconds: bar.set_postfix_str(f"{seconds:.0f} s")


@magics_class
class ConnectionMagics(Topic):
    """The server: which one, what it offers, one of our own"""

    @documented_arguments
    @argument(
        "url",
        nargs="?",
        help="Address; default: $OPENCODE_SERVER_URL, else the background service of 2.x, else "
        "port 4096 here.",
    )
    @argument("-d", "--directory", help="Directory to work in; default: the kernel's own.")
    @line_magic
    @with_parsed_options
    def oc_connect(self, options: Namespace) -> Client:
        """A running OpenCode server to work with, and in a line which one answered.

        An address looks like http://127.0.0.1:4096. A password is taken from
        $OPENCODE_SERVER_PASSWORD, or asked for. Without %oc_connect, the first magic that needs a
        server connects by itself. Where nothing answers, the connection of before stays.

        Example::

            %oc_connect
            %oc_connect --directory .
        """
        return self.state.connect(options.url, options.directory)

    @documented_arguments
    @argument("-d", "--directory", help="Directory to run in; default: the kernel's own.")
    @argument("--keep", action="store_true", help="Leave it running when the kernel ends.")
    @line_magic
    @with_parsed_options
    def oc_start(self, options: Namespace) -> Client:
        """A server of this notebook's own, started and connected to.

        It runs `opencode serve` from PATH on a free port of this machine, with a random password,
        and stops with the kernel or with %oc_stop. It fails where `opencode` is not on PATH, and
        where a server of this notebook runs already.

        Example::

            %oc_start
        """
        from ..client.server import start

        if self.state.own_server is not None and self.state.own_server.running:
            raise UsageError(
                f"A server runs already at {self.state.own_server.url}. %oc_stop ends it."
            )
        self.state.stop()  # what a server leaves that ended by itself
        directory = options.directory or self.state.directory or None
        with _waiting() as tick:
            server = start(directory=directory, keep=options.keep, progress=tick)
        self.state.own_server = server
        if options.keep:
            print(f"It stays when the kernel ends; come back with: %oc_connect {server.url}")
        return self.state.connect(server.url, directory, server.password)

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_stop(self, options: Namespace) -> None:
        """The end of the server that %oc_start began; fails if there is none.

        Example::

            %oc_start
            %oc_stop
        """
        if not self.state.stop():
            raise UsageError(
                "No server of this notebook runs; %oc_stop stops what %oc_start began."
            )
        print("The server is stopped.")

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_models(self, options: Namespace) -> pd.DataFrame:
        """The models that a prompt can name, with prices in USD per million tokens, as a DataFrame.

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
        """The agents that a prompt can name, as a DataFrame.

        Example::

            %oc_agents
        """
        from .. import tables

        return tables.agents(self.state.client.agents())
