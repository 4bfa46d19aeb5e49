"""What a prompt takes along of the notebook, and gives back to it: --var and --schema."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from .state import OpenCodeMagics

if TYPE_CHECKING:
    from ..core.model import Attachment
    from ..prompts.variables import VariableContext


def attach_variables(
    state: OpenCodeMagics, options: Namespace, text: str
) -> tuple[str, tuple[Attachment, ...]]:
    """A prompt with what it tells of the variables of a line, and their images.

    What goes along, and how much of it, is said in the cell.

    Raises:
        UnknownNameError: There is no such variable.
        UsageError: It is a figure, and the model that is asked takes no images.
    """
    from ..prompts import variables

    if not options.var:
        return text, ()
    told = [
        variables.variable_context(name, state.shell.user_ns) for name in dict.fromkeys(options.var)
    ]
    _check_images(state, options, told)
    print("\n".join(map(str, told)))
    return variables.with_variables(text, told), tuple(d.image for d in told if d.image)


def _check_images(state: OpenCodeMagics, options: Namespace, told: list[VariableContext]) -> None:
    from ..sessions.lookup import answering_model, find_session

    figure = next((d.name for d in told if d.image), None)
    if figure is None:
        return
    old = find_session(state.client, options.session) if options.session else state.session
    session = None if options.new or options.title else old
    model = answering_model(state.client, session, options.model or state.model or None)
    if model is not None and model.images is False:
        raise UsageError(
            f"--var {figure}: model {model.ref} takes no images. Choose one that does (%oc_models "
            "says which), or give the numbers of the figure instead."
        )


def check_schema_options(options: Namespace) -> None:
    """See that --retries, which goes with every --schema, is what it can be.

    Raises:
        UsageError: It isn't.
    """
    if options.retries < 0:
        raise UsageError("--retries takes a number from 0 on")


def follow_up_options(options: Namespace, session: str) -> Namespace:
    """The options of a prompt that follows another one in its session; files went with that."""
    first = {"session": session, "new": False, "title": None, "file": []}
    return Namespace(**(vars(options) | first))
