"""The public names: magics, options, columns, attributes, errors, values of Literals.

`static_names` reads those of the package and of a loaded extension; `live_names` runs the magics
and reads the names of their results. Print all in the format of `tests/data/public_names.json`:

    PYTHONPATH=.:tests python -m support.public_names
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import pyarrow.parquet as pq
import pytest

import opencode_magics
from opencode_magics import cli, errors, history
from opencode_magics.core.model import Decision
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.world import Practice
from opencode_magics.sessions.status import State
from support.ipython_shell import connect_to_practice, isolated_shell

ROOT = Path(__file__).parents[2]

# Literals that no attribute of a returned object is annotated with.
WORDS = {"reply to a permission": Decision, "state in %oc_status": State}

# The documented names of a client; all others are internal.
CLIENT = {"close", "directory", "server", "sessions", "url"}
INTERNAL = {"recorder"}  # of a turn

Names = dict[str, Any]


# -- static names ----------------------------------------------------------------------------------


def static_names(shell: Any) -> Names:
    """Return the names of the package and of the extension loaded in a shell."""
    return {
        "magics": dict(_magics(shell)),
        "config": _config(shell),
        "package": sorted(opencode_magics.__all__),
        "functions": _functions(opencode_magics) | _functions(history),
        "history": sorted(history.__all__),
        "errors": dict(_errors()),
        "words": {about: sorted(typing.get_args(words)) for about, words in WORDS.items()},
        "command line": {" ".join(c): _command_line(*c) for c in ((), ("demo",), ("practice",))},
        "install": _install(),
    }


def _magics(shell: Any) -> Iterator[tuple[str, Names]]:
    registered = shell.magics_manager.magics
    for name in sorted({n for kind in registered.values() for n in kind if n.startswith("oc_")}):
        kinds = [kind for kind in ("line", "cell") if name in registered[kind]]
        actions = registered[kinds[0]][name].parser._actions
        options = {s: _takes(a) for a in actions for s in a.option_strings}
        words = " ".join(str(a.nargs or 1) for a in actions if not a.option_strings)
        yield name, {"kinds": kinds, "options": options, "words": words}


def _takes(action: Any) -> str:
    if action.nargs == 0:
        return "nothing"
    return "values" if "Append" in type(action).__name__ else "a value"


def _config(shell: Any) -> Names:
    (state,) = (c for c in shell.configurables if type(c).__name__ == "OpenCodeMagics")
    return {
        name: {"default": trait.default(), "values": getattr(trait, "values", None)}
        for name, trait in sorted(state.class_traits(config=True).items())
    }


def _functions(module: ModuleType) -> Names:
    path = module.__name__.removeprefix("opencode_magics.")
    named = ((name, getattr(module, name)) for name in module.__all__)
    return {f"{path}.{n}": _parameters(f) for n, f in named if callable(f)}


def _parameters(function: Any) -> list[str]:
    """Return the parameters of a function; positional ones with their index."""
    parameters = inspect.signature(function).parameters.values()
    return [
        f"{p.name}={p.default!r}" if p.kind is p.KEYWORD_ONLY else f"{place} {_default(p)}"
        for place, p in enumerate(p for p in parameters if p.name != "self")
    ]


def _default(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def _errors() -> Iterator[tuple[str, Names]]:
    defined = {n: v for n, v in vars(errors).items() if isinstance(v, type)}
    for name, error in sorted(defined.items()):
        if issubclass(error, BaseException):
            bases = [b.__name__ for b in error.__mro__[1:] if b is not object]
            yield name, {"bases": bases, "attributes": sorted(_error_attributes(error))}


def _error_attributes(error: type[BaseException]) -> set[str]:
    """Return the public attributes of an instance of an error."""
    arguments = {
        p.name: (None,) if p.name == "turns" else "x"
        for p in inspect.signature(error).parameters.values()
        if p.default is p.empty
    }
    instance = error(**arguments)
    return {n for n in (*dir(instance), *vars(instance)) if not n.startswith("_")} - {
        *dir(BaseException)
    }


def _command_line(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"from {cli.__name__} import main; main()", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(opencode_magics.__file__).parents[1],
    )
    options = re.findall(r"^  (--[\w-]+|-h)", done.stdout, re.MULTILINE)
    commands = [] if command else re.findall(r"^    (\w+) ", done.stdout, re.MULTILINE)
    return sorted({*options, *commands})


def _install() -> Names:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "name": project["name"],
        "commands": sorted(project["scripts"]),
        "extras": sorted(project["optional-dependencies"]),
    }


# -- names of results ------------------------------------------------------------------------------

SETUP = """
import pandas as pd
from opencode_magics import connect, history
client = connect()
rows = pd.DataFrame({"n": [1]})
%config OpenCodeMagics.noninteractive = "once"
%oc_prompt --title another #question
asked = %oc_turn
session = %oc_new Public names
%oc_prompt #edit
edited = %oc_turn
%oc_export --all exported
"""
BREAKS = "%oc_prompt --title broken #err400"

# A cell for each returned object, to be run after SETUP and BREAKS.
OBJECTS = {
    "connect()": "client",
    "connect().server": "client.server",
    "session": "session",
    "turn": "edited",
    "turn.log[]": "edited.log[0]",
    "turn.tools[]": "edited.tools[0]",
    "turn.diffs[]": "edited.diffs[0]",
    "turn.diff": "edited.diff",
    "turn.diff.files[]": "edited.diff.files[0]",
    "turn.usage": "edited.usage",
    "turn.status": "edited.status",
    "turn.model": "edited.model",
    "turn.failure": "broken.failure",
    "turn.settled_requests[]": "edited.settled_requests[0]",
    "permission": "edited.settled_requests[0].request",
    "question": "asked.settled_requests[0].request",
    "question.items[]": "asked.settled_requests[0].request.items[0]",
    "question.items[].options[]": "asked.settled_requests[0].request.items[0].options[0]",
    "%oc_show": "%oc_show",
    "%oc_diff": "%oc_diff",
    "%oc_command": "%oc_command --isolated explain #text 2",
    "%oc_command .resend": "_.resend",
    "%oc_permissions check": "%oc_permissions check read README.md",
    "%oc_permissions check .rule": "_.rule",
    "%oc_rename": "%oc_rename Public names",
    "%oc_abort": "%oc_abort",
    "%oc_end": "%oc_end --force nobody",
    "%oc_help": "%oc_help",
    "%oc_help NAME": "%oc_help oc_prompt",
    "%oc_export": "%oc_export exported",
}

BY = (
    *("total", "day", "week", "month", "session", "root", "project", "directory"),
    *("agent", "provider", "model", "variant", "tool"),
)
FRAMES = {
    "%oc_end": "%oc_end --force 'nobody' 'no one'",
    "%oc_permissions rules": "%oc_permissions rules",
    "%oc_watch": "%oc_watch --seconds 0.1",
    "%%oc_map": "%%oc_map rows\n#text {n}",
    "history.sessions": "history.sessions(client)",
    "history.spans": "history.spans(client, edited)",
    "turn.diff.to_frame()": "edited.diff.to_frame()",
    "turn.diff.to_frame(lines=True)": "edited.diff.to_frame(lines=True)",
    **{f"%oc_usage --by {key}": f"%oc_usage --by {key}" for key in BY},
    **{
        magic: magic
        for magic in (
            *("%oc_models", "%oc_agents", "%oc_commands", "%oc_skills", "%oc_mcp"),
            *("%oc_integrations", "%oc_sessions", "%oc_status", "%oc_children", "%oc_inbox"),
            *("%oc_permissions", "%oc_command --given", "%oc_history", "%oc_history --steps"),
            *("%oc_history --parts", "%oc_history --tools"),
        )
    },
}
# Frames that only a 1.x server has.
FRAMES_OF_1X = {"%oc_todo": "%oc_todo"}


def live_names(shell: Any) -> Names:
    """Return the names of results of magics, in a shell connected to a simulated 2.x."""
    shell.run(SETUP)
    shell.fails(BREAKS)
    shell.user_ns["broken"] = shell.run("%oc_turn").value
    shell.run("%oc_session Public names")
    objects = {name: shell.run(cell).value for name, cell in OBJECTS.items()}
    return {
        "attributes": {name: _attributes(value) for name, value in objects.items()},
        "shown as": {name: _mime_types(shell, value) for name, value in objects.items()},
        "words of attributes": {
            name: words for name, value in objects.items() if (words := _words(type(value)))
        },
        "frames": {name: _frame(shell.run(cell).value) for name, cell in FRAMES.items()},
        "exported columns": {
            folder.name: _exported(folder) for folder in sorted(Path("exported").iterdir())
        },
    }


def live_names_of_1x(shell: Any) -> Names:
    """Return the names that only a 1.x server provides, in a shell connected to one."""
    shell.run("%oc_new Public names")
    frames = {name: _frame(shell.run(cell).value) for name, cell in FRAMES_OF_1X.items()}
    return {"frames of 1.x": frames}


def _attributes(value: Any) -> Names:
    """Return the public values of an object, and its methods with their parameters."""
    inherited = {*dir(tuple)} if isinstance(value, tuple) else set()
    public = {n for n in dir(value) if not n.startswith("_")} - inherited - INTERNAL
    if isinstance(value, opencode_magics.Client):
        public &= CLIENT
    members = {name: getattr(value, name) for name in sorted(public)}
    return {
        "values": [n for n, v in members.items() if not inspect.isroutine(v)],
        "methods": {
            n: _parameters(v)
            for n, v in members.items()
            if inspect.isroutine(v) and getattr(v, "__self__", None) is value
        },
    }


def _mime_types(shell: Any, value: Any) -> list[str]:
    """Return the MIME types of a value's display."""
    return sorted(shell.display_formatter.format(value)[0])


def _words(kind: type) -> Names:
    """Return the possible values of attributes that are annotated with a Literal."""
    hints = typing.get_type_hints(kind)
    for name, member in inspect.getmembers(kind, lambda value: isinstance(value, property)):
        hints[name] = typing.get_type_hints(member.fget).get("return")
    words = {name: sorted(_literals(hint)) for name, hint in sorted(hints.items())}
    return {name: values for name, values in words.items() if values and not name.startswith("_")}


def _literals(hint: Any) -> Iterator[str]:
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    elif typing.get_origin(hint) in (typing.Union, UnionType):
        for part in typing.get_args(hint):
            yield from _literals(part)


def _frame(frame: Any) -> Names:
    columns = {str(name): str(dtype) for name, dtype in frame.dtypes.items()}
    return {"columns": columns, "attrs": sorted(frame.attrs)}


def _exported(folder: Path) -> Names:
    schema = pq.read_schema(next(folder.rglob("*.parquet")))
    return {name: str(schema.field(name).type) for name in schema.names}


# -- comparing and printing ------------------------------------------------------------------------


def missing(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield names that are missing or changed; new names are allowed."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, value in before.items():
            if name in now:
                yield from missing(value, now[name], f"{path} > {name}")
            else:
                yield f"{path} > {name}: missing"
    elif isinstance(before, list) and isinstance(now, list):
        yield from (f"{path} > {value}: missing" for value in before if value not in now)
    elif before != now:
        yield f"{path}: was {before!r}, is {now!r}"


def as_json(names: Names) -> str:
    """Format names as JSON, with one line per name of the second level."""
    sections = (
        f"{json.dumps(section)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in group.items())
        + "\n}"
        if isinstance(group, dict)
        else f"{json.dumps(section)}: {json.dumps(group)}"
        for section, group in names.items()
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


def names_now() -> Names:
    """Read all names, each kind in a new shell on a new server."""
    names: Names = {}
    for world, read in ((Simulator, live_names), (Practice, live_names_of_1x)):
        with (
            tempfile.TemporaryDirectory() as home,
            pytest.MonkeyPatch.context() as patch,
            world() as server,
            isolated_shell(Path(home), patch) as shell,
        ):
            connect_to_practice(shell, server, patch)
            names |= static_names(shell) | read(shell)
    return names


if __name__ == "__main__":
    print(as_json(names_now()), end="")
