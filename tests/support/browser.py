"""JupyterLab and Notebook 7 in a real browser, with kernels of given ipykernel versions.

One Jupyter server offers both; `Notebook` is a page with one notebook, whose cells a test sets.
Actions of a person use keys and clicks; everything else uses commands of the front end. All waits
are for conditions, never for a fixed time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import nbformat

from opencode_magics.client.server import free_port
from support import kernels

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

App = Literal["lab", "notebook"]
PATIENCE = 120_000  # ms; only a very slow machine needs so long
CHROMIUM = shutil.which("chromium")
SWITCHES = (
    "--no-sandbox",  # as root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # it is small in containers
)


def missing() -> str:
    """Return the reason why browser tests can't run here; "" if they can."""
    if CHROMIUM is None:
        return "chromium is not installed (apt-get install chromium)"
    wanted = ("playwright", "jupyterlab", "notebook")
    absent = [name for name in wanted if find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


# -- the server ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jupyter:
    """A running Jupyter server, and the folder of its notebooks."""

    url: str
    root: Path

    def address(self, app: App, name: str) -> str:
        """Return the URL of a notebook."""
        return f"{self.url}/{'lab/tree' if app == 'lab' else 'notebooks'}/{name}"


@contextmanager
def jupyter(home: Path, versions: Sequence[str], env: Mapping[str, str]) -> Iterator[Jupyter]:
    """Start a Jupyter server with one kernel per ipykernel version, named like the version.

    Args:
        home: An empty folder for all its files.
        versions: Versions of ipykernel.
        env: Additional environment variables of the kernels.
    """
    root = home / "notebooks"
    root.mkdir(parents=True)
    for version in versions:
        _write_kernel(home / "data" / "kernels" / version, version, env)
    _write_settings(home / "settings", news={"fetchNews": "false", "checkForUpdates": False})
    url = f"http://127.0.0.1:{free_port()}"
    options = {
        "ServerApp.root_dir": root,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": urlsplit(url).port,
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": "",
        "LabApp.expose_app_in_browser": True,
        "JupyterNotebookApp.expose_app_in_browser": True,
        # Tests output more per second than Jupyter's default limit, which drops the rest.
        "ZMQChannelsWebsocketConnection.iopub_data_rate_limit": 1_000_000_000,
    }
    command = [sys.executable, "-m", "jupyterlab", *(f"--{k}={v}" for k, v in options.items())]
    log = home / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=_clean_environment(home),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(f"{url}/api/status", process, log)
        yield Jupyter(url, root)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)


def _write_kernel(folder: Path, version: str, env: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    paths = [kernels.installed(version), kernels.REPOSITORY, kernels.REPOSITORY / "tests"]
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"ipykernel {version}",
        "language": "python",
        "env": {**env, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p)},
    }
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")


def _write_settings(folder: Path, news: Mapping[str, object]) -> None:
    settings = folder / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(news), encoding="utf-8")


def _clean_environment(home: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "OPENCODE_"))}
    own = {
        "HOME": home,
        "IPYTHONDIR": home / "ipython",
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    return inherited | {k: str(v) for k, v in own.items()}


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"Jupyter did not start:\n{log.read_text(errors='replace')[-4000:]}")


# -- the browser -----------------------------------------------------------------------------------


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium as installed by the system."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class PageLog:
    """Forbidden actions of a page: scripts that ran, dialogs, requests to other hosts."""

    fired: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def seen(self) -> list[str]:
        """All forbidden actions."""
        return [*self.fired, *self.dialogs, *self.requests]


def watch(page: Page, *homes: str) -> PageLog:
    """Log forbidden actions of a page from now on, and block requests to other hosts."""
    log = PageLog()

    def refuse(route: Any) -> None:
        log.requests.append(route.request.url)
        route.abort()

    def close(dialog: Any) -> None:
        if dialog.type != "beforeunload":  # from the front end itself, for an unsaved notebook
            log.dialogs.append(dialog.message)
        dialog.accept()

    allowed = "|".join(map(re.escape, (*homes, "data:", "blob:", "file:")))
    page.route(re.compile(f"^(?!{allowed})"), refuse)
    page.on("dialog", close)
    page.expose_function("fired_in_page", lambda name: log.fired.append(name))
    page.add_init_script("window.fired = (name) => window.fired_in_page(String(name));")
    return log


# -- a notebook ------------------------------------------------------------------------------------

_READY = """(status) => {
  const widget = window.jupyterapp?.shell?.currentWidget;
  const kernel = widget?.sessionContext?.session?.kernel;
  return widget?.sessionContext?.isReady && kernel?.connectionStatus === "connected"
    && kernel?.status === status;
}"""
_SET_CELLS = """(sources) => {
  const model = window.jupyterapp.shell.currentWidget.content.model.sharedModel;
  model.transact(() => {
    model.deleteCellRange(0, model.cells.length);
    model.insertCells(0, sources.map((source) => ({ cell_type: "code", source })));
  });
}"""
_ADD_CELL = """(source) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.model.sharedModel.addCell({ cell_type: "code", source });
  notebook.activeCellIndex = notebook.model.cells.length - 1;
  return notebook.activeCellIndex;
}"""
_SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"
_NUMBERED = re.compile(r"\[\d+\]:")
_STATUS = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"


class Notebook:
    """An open notebook with a running kernel."""

    def __init__(self, page: Page, jupyter: Jupyter, app: App, name: str) -> None:
        self.page = page
        self.jupyter = jupyter
        self.app = app
        self.name = name

    @classmethod
    def open(cls, page: Page, jupyter: Jupyter, app: App, kernel: str, name: str = "") -> Notebook:
        """Create a notebook, open it, and wait for its kernel."""
        name = name or f"{app}-{kernel}.ipynb"
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell()])
        made.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
        nbformat.write(made, jupyter.root / name)
        notebook = cls(page, jupyter, app, name)
        page.goto(jupyter.address(app, name) + ("?reset" if app == "lab" else ""))
        notebook.wait_for_kernel()
        return notebook

    def wait_for_kernel(self, status: str = "idle") -> None:
        """Wait until the page is connected to an idle kernel; earlier messages can be dropped."""
        self.page.wait_for_function(_READY, arg=status, timeout=PATIENCE)

    # -- elements ----------------------------------------------------------------------------------

    def cell(self, n: int) -> Locator:
        """The n-th cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(n)

    def outputs(self, n: int) -> Locator:
        """The outputs of the n-th cell."""
        return self.cell(n).locator(".jp-OutputArea-output")

    def prompt(self, n: int) -> Locator:
        """The prompt of the n-th cell: `[*]:`, `[3]:`, `[ ]:`."""
        return self.cell(n).locator(".jp-InputPrompt")

    @property
    def form(self) -> Locator:
        """The visible form."""
        return self.page.locator(".oc-ask:visible")

    # -- actions -----------------------------------------------------------------------------------

    def do(self, command: str, **args: object) -> None:
        """Start a command of the front end without waiting for its end."""
        code = "([id, args]) => { window.jupyterapp.commands.execute(id, args); }"
        self.page.evaluate(code, [command, args])

    def run(self, *cells: str) -> None:
        """Replace the cells of the notebook, and run them all."""
        self.page.evaluate(_SET_CELLS, list(cells))
        self.do("notebook:run-all-cells")

    def run_more(self, *cells: str) -> None:
        """Append cells and run them one after the other."""
        for source in cells:
            at: int = self.page.evaluate(_ADD_CELL, source)
            self.do("notebook:run-cell")
            self.done(at)

    def run_through(self, *cells: str) -> None:
        """Replace the cells, run them, and wait until all are done."""
        self.run(*cells)
        self.done(len(cells) - 1)

    def done(self, n: int) -> None:
        """Wait until the n-th cell has been run."""
        from playwright.sync_api import expect

        expect(self.prompt(n)).to_have_text(_NUMBERED)

    def interrupt(self) -> None:
        """Interrupt the kernel, like the stop button."""
        self.do("notebook:interrupt-kernel")

    def settle(self) -> None:
        """Interrupt running cells, and wait until the kernel is idle."""
        if self.page.evaluate(_STATUS) != "idle":
            self.interrupt()
        self.wait_for_kernel()

    def save(self) -> nbformat.NotebookNode:
        """Save it and return the content of the file."""
        self.page.evaluate(_SAVE)
        return nbformat.read(self.jupyter.root / self.name, as_version=4)

    def theme(self, name: str) -> None:
        """Change the theme: "JupyterLab Light" or "JupyterLab Dark"."""
        self.page.evaluate(
            "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
        )
