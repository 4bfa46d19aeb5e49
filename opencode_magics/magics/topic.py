"""What the magics of each topic have in common: the state of their shell."""

from __future__ import annotations

from IPython.core.magic import Magics

from .state import OpenCodeMagics


class Topic(Magics):
    """Magics that belong together; their heading in %oc_help is the docstring."""

    def __init__(self, shell: object, state: OpenCodeMagics) -> None:
        super().__init__(shell)
        self.state = state
