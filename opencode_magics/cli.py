"""The commands `opencode-magics demo` and `practice`: a real OpenCode without an API key.

`demo` starts the practice world and opens JupyterLab on a copy of the tour inside the practice
workspace, which is the kernel's working directory. With --headless it executes that copy instead
and prints a one-line summary from the server's data. `practice` runs any command in such a world.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from .client.client import Client
from .core.events import PermissionAsked
from .core.formatting import format_usd
from .core.model import Session, total_usage
from .errors import OpenCodeError
from .practice.simulator.server import Simulator
from .practice.world import Practice

TOUR = "tour.ipynb"
CELL_TIMEOUT = 300

AnyWorld = Practice | Simulator
WORLDS: dict[str, type[Practice] | type[Simulator]] = {"1": Practice, "2": Simulator}
# Prefer this environment's kernel to one of the same name in the user's home directory.
OUR_KERNEL = {"JUPYTER_PREFER_ENV_PATH": "1"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(argv)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), _exit_on_signal)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"{options.command}: failed, {_one_line(error)}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="opencode-magics", description="OpenCode in notebooks.", allow_abbrev=False
    )
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        allow_abbrev=False,
        help="take the tour: a real OpenCode with a practice model, in JupyterLab",
        description="Open the tour in JupyterLab. A real OpenCode runs in a small practice "
        "project with a scripted model: no API key, no cost, and your own sessions stay untouched.",
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--port", type=int, help="port for JupyterLab (default: a free one)")
    demo.add_argument("--no-browser", action="store_true", help="print the address only")
    demo.add_argument("--headless", action="store_true", help="execute the tour and write it")
    demo.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where --headless writes the notebook and its HTML copy (default: %(default)s)",
    )
    practice = commands.add_parser(
        "practice",
        allow_abbrev=False,
        help="run a command in the practice project, with OpenCode and the practice model",
        description="Run a command in the practice project, which contains copies of the "
        "notebooks. %oc_connect finds the practice server there. Server and project are removed "
        "when the command ends.",
        usage="opencode-magics practice [-h] [--api {1,2}] -- PROGRAM [ARGUMENT ...]",
    )
    practice.set_defaults(run=_practice)
    practice.add_argument("argv", nargs="+", metavar="PROGRAM", help="for example: -- jupyter lab")
    for command in (demo, practice):
        command.add_argument(
            "--api",
            choices=sorted(WORLDS),
            default="1",
            help="1: a real OpenCode 1.x; 2: a simulator of OpenCode 2.x (default: %(default)s)",
        )
    return parser


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    """Raise SystemExit, so that every process we started is stopped."""
    raise SystemExit(128 + number)


def _one_line(error: Exception) -> str:
    name = "" if isinstance(error, OpenCodeError) else f"{type(error).__name__} "
    return " ".join(f"{name}{error}".split())


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _require(*modules: str) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise OpenCodeError(
            f"The demo needs {' and '.join(missing)}.",
            "Install it with: pip install 'opencode_magics[demo]'",
        )


def notebooks() -> Path:
    """Return the folder of the notebooks: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / "notebooks"
    return inside if inside.is_dir() else package.parent / "notebooks"


def _copy_notebooks(world: AnyWorld) -> Path:
    """Copy the notebooks into the workspace, where git ignores them; return the path of the tour.

    In the copies, the description of the server is that of the world.
    """
    for notebook in sorted(notebooks().glob("*.ipynb")):
        text = notebook.read_text(encoding="utf-8").replace(Practice.description, world.description)
        (world.directory / notebook.name).write_text(text, encoding="utf-8")
    return world.directory / TOUR


# -- practice --------------------------------------------------------------------------------------


def _practice(options: argparse.Namespace) -> int:
    """Run a command in a practice world and return its exit code."""
    with WORLDS[options.api](progress=_report) as practice:
        _copy_notebooks(practice)
        env = {**os.environ, **OUR_KERNEL, **practice.access}
        process = subprocess.run(options.argv, cwd=practice.directory, env=env, check=False)
    return process.returncode


# -- demo ------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    _headless(options) if options.headless else _interactive(options)
    return 0


def _interactive(options: argparse.Namespace) -> None:
    _require("jupyterlab")
    with WORLDS[options.api](progress=_report) as practice:
        tour = _copy_notebooks(practice)
        os.environ.update(practice.access, **OUR_KERNEL, **_lab_home(practice.root / "lab"))
        os.chdir(practice.directory)
        _report("Opening JupyterLab. Stop it with Ctrl-C; all files in it are then deleted.")
        from jupyterlab.labapp import LabApp

        LabApp.launch_instance(_lab_arguments(tour, options))


def _lab_home(folder: Path) -> dict[str, str]:
    """Return variables that give this JupyterLab its own settings, without the news dialog."""
    settings = folder / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    return {
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
    }


def _lab_arguments(tour: Path, options: argparse.Namespace) -> list[str]:
    arguments = [
        f"--ServerApp.root_dir={tour.parent}",
        f"--LabApp.default_url=/lab/tree/{tour.name}",
    ]
    if options.port is not None:
        arguments.append(f"--ServerApp.port={options.port}")
    if options.no_browser:
        arguments.append("--no-browser")
    if getattr(os, "geteuid", lambda: 1)() == 0:  # in a container; Jupyter refuses root otherwise
        arguments.append("--allow-root")
    return arguments


# -- headless --------------------------------------------------------------------------------------


def _headless(options: argparse.Namespace) -> None:
    _require("nbclient", "nbconvert")
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    with WORLDS[options.api](progress=_report) as practice, _client(practice) as client:
        tour = _copy_notebooks(practice)
        stream = client.stream()
        _report("Executing the tour")
        try:
            _execute(tour, practice)
        finally:
            _write(tour, output)
            events = stream.take(timeout=1.0)
            stream.close()
        permissions = {e.permission.id for e in events if isinstance(e, PermissionAsked)}
        summary = _summary(client, len(permissions), practice.name)
    print(summary)


def _client(practice: AnyWorld) -> Client:
    return Client(practice.url, directory=str(practice.directory), password=practice.password)


def _execute(tour: Path, practice: AnyWorld) -> None:
    """Execute the notebook in place; its policy allows every permission once."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(tour, as_version=4)
    runner = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(tour.parent)}},
        extra_arguments=["--OpenCodeMagics.noninteractive=once", "--log-level=ERROR"],
    )
    os.environ.update(OUR_KERNEL)
    try:
        runner.execute(env={**os.environ, **practice.access})
    except CellExecutionError as error:
        number = sum(cell.get("execution_count") is not None for cell in notebook.cells)
        raise OpenCodeError(f"cell {number}: {error.ename}: {error.evalue}") from error
    finally:
        nbformat.write(notebook, tour)


def _write(tour: Path, output: Path) -> None:
    """Write the executed notebook and an HTML copy, even if a cell failed."""
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter().from_filename(str(tour))
    shutil.copyfile(tour, output / tour.name)
    (output / tour.with_suffix(".html").name).write_text(html, encoding="utf-8")
    _report(f"Wrote {output / tour.name} and its HTML copy")


def _summary(client: Client, permissions: int, name: str) -> str:
    """Return the closing line, from the data on the server."""
    sessions = client.sessions()
    turns = sum(_prompts(client, session) for session in sessions if session.parent is None)
    usage = total_usage(session.usage for session in sessions)
    cost, version = format_usd(usage.cost if usage else None), client.server.version
    return f"demo: ok, {name} {version}, {turns} turns, {permissions} permissions, {cost}"


def _prompts(client: Client, session: Session) -> int:
    """Return the number of prompts that a person sent."""
    messages = client.messages(session)
    return sum(message.role == "user" and not message.synthetic for message in messages)
