"""The magics: one small class per topic, sharing the state of their shell.

Magics import lower layers when they are called: dozens of dataclasses and httpx would make
`%load_ext` three times slower.
"""

from __future__ import annotations

from typing import Any

from traitlets import TraitError

from ..notebook import formatters
from .catalog import CatalogMagics
from .commands import CommandMagics
from .completion import register_completer, unregister_completer
from .connection import ConnectionMagics
from .control import ControlMagics
from .diff import DiffMagics
from .edit import EditMagics
from .help import HelpMagics
from .history import HistoryMagics
from .inbox import InboxMagics
from .input_transforms import register_transforms, unregister_transforms
from .map import MapMagics
from .permissions import PermissionMagics
from .pictures import PictureMagics
from .prompt import PromptMagics
from .record import RecordMagics
from .sessions import SessionMagics
from .state import OpenCodeMagics

TOPICS = (
    ConnectionMagics,
    SessionMagics,
    PromptMagics,
    CommandMagics,
    MapMagics,
    PermissionMagics,
    ControlMagics,
    EditMagics,
    DiffMagics,
    HistoryMagics,
    InboxMagics,
    CatalogMagics,
    PictureMagics,
    RecordMagics,
    HelpMagics,
)


def load(shell: Any) -> None:
    """Register the magics, replacing those of an earlier load."""
    unload(shell)
    state = _create_state(shell)
    shell.configurables.append(state)
    for topic in TOPICS:
        shell.register_magics(topic(shell, state))
    formatters.register(shell)
    register_transforms(shell)
    register_completer(shell, state)


def _create_state(shell: Any) -> OpenCodeMagics:
    try:
        return OpenCodeMagics(shell)
    except TraitError as error:  # an invalid %config value stays in the shell's configuration
        print(f"{error} Using the default.")
        _drop_bad_options(shell.config[OpenCodeMagics.__name__])
        return OpenCodeMagics(shell)


def _drop_bad_options(options: Any) -> None:
    traits = OpenCodeMagics.class_traits(config=True)
    for name in list(options):
        try:
            traits[name].validate(None, options[name])
        except (KeyError, TraitError):
            del options[name]


def unload(shell: Any) -> None:
    """Undo `load` and disconnect. A server started with `%oc_start --keep` keeps running."""
    unregister_completer(shell)
    unregister_transforms(shell)
    formatters.unregister(shell)
    for topic in TOPICS:
        shell.magics_manager.registry.pop(topic.__name__, None)
        for kind, names in topic.magics.items():
            for name in names:
                shell.magics_manager.magics[kind].pop(name, None)
    ours = (OpenCodeMagics, *TOPICS)
    for state in [c for c in shell.configurables if isinstance(c, OpenCodeMagics)]:
        state.shut_down()
    shell.configurables[:] = [c for c in shell.configurables if not isinstance(c, ours)]
