"""The base class of all magics: access to the state of their shell."""

from __future__ import annotations

from IPython.core.magic import Magics

from .state import OpenCodeMagics


class Topic(Magics):
    """A group of magics. The docstring of each subclass is the group's heading in %oc_help."""

    def __init__(self, shell: object, state: OpenCodeMagics) -> None:
        super().__init__(shell)
        self.state = state
