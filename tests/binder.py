"""Build the environment of `binder/` as Binder does, and execute the notebooks in it.

    python tests/binder.py

It creates a virtual environment, installs a clean copy of the tracked files, runs `postBuild`, and
then executes each notebook through `start`. A lesson has to have the output that is stored with it.
pip and npm use their caches; OpenCode is installed again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from itertools import chain
from pathlib import Path

import nbformat
from support.run_lessons import LESSONS, output_lines

ROOT = Path(__file__).parents[1]
# repo2docker supports many files. Only these are supported here.
SUPPORTED = {"apt.txt", "postBuild", "requirements.txt", "runtime.txt", "start"}
PROFILE = "c.OpenCodeMagics.noninteractive = 'once'\n"


def lines(path: Path) -> list[str]:
    """Return the entries of a list file, without comments."""
    entries = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [entry for entry in entries if entry]


def copy(target: Path) -> Path:
    """Copy the tracked files in their current state."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def python(runtime: Path) -> str:
    """Return the Python that `runtime.txt` names."""
    (name,) = lines(runtime)
    version = name.removeprefix("python-")
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    program = shutil.which(f"python{version}")
    if program is None:
        raise SystemExit(f"binder/runtime.txt needs Python {version}, which is not installed.")
    return program


def build(repository: Path, home: Path) -> dict[str, str]:
    """Build the environment and return the variables that activate it."""
    binder = repository / "binder"
    if others := {p.name for p in binder.iterdir()} ^ SUPPORTED:
        raise SystemExit(f"binder/ has unsupported or missing files: {sorted(others)}")
    for package in lines(binder / "apt.txt"):
        subprocess.run(["dpkg-query", "-s", package], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([python(binder / "runtime.txt"), "-m", "venv", home / "venv"], check=True)
    env = environment(home)
    install = ["python", "-m", "pip", "install", "--quiet", "-r", "binder/requirements.txt"]
    for command in (install, [str(binder / "postBuild")]):
        subprocess.run(command, cwd=repository, env=env, check=True)
    return env


def environment(home: Path) -> dict[str, str]:
    """Return a visitor's variables: the programs of that environment, without our settings."""
    excluded = re.compile("PYTHON|OPENCODE_|JUPYTER|IPYTHON|VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if not excluded.match(name)}
    profile = home / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(PROFILE)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return inherited | {
        "PATH": os.pathsep.join([str(home / "venv" / "bin"), "/usr/bin", "/bin"]),
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR") or str(caches / "pip"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "IPYTHONDIR": str(home / "ipython"),
    }


def visit(repository: Path, env: dict[str, str], home: Path, stored: Path) -> str:
    """Execute a notebook in its own world, compare it with the stored one, and return its name."""
    name, out = stored.name, home / "out"
    execute = ["jupyter", "nbconvert", "--to", "notebook", "--execute", "--log-level=WARN"]
    if stored in LESSONS:
        env = env | {"IPYTHONDIR": str(home / stored.stem), "TZ": "UTC"}
    start = str(repository / "binder" / "start")
    subprocess.run(
        [start, *execute, f"--output-dir={out}", name], cwd=repository, env=env, check=True
    )
    executed = nbformat.read(out / name, as_version=4)
    outputs = [o for cell in executed.cells for o in cell.get("outputs", [])]
    if any(output.output_type == "error" for output in outputs):
        raise SystemExit(f"A cell of {name} failed.")
    lines, wanted = output_lines(executed), output_lines(nbformat.read(stored, as_version=4))
    if stored in LESSONS and lines != wanted:
        print(*unified_diff([*chain(*wanted)], [*chain(*lines)], "stored", "executed"), sep="\n")
        raise SystemExit(f"Store it again: python tests/support/run_lessons.py {stored.stem}")
    return name


def main() -> None:
    """Build the environment, execute the notebooks, and print the duration."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="binder-") as folder:
        home = Path(folder).resolve()
        repository = copy(home / "repository")
        env = build(repository, home)
        print(f"binder: built in {time.monotonic() - begun:.0f} s", flush=True)
        notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
        with ThreadPoolExecutor(2) as pool:
            names = [*pool.map(lambda stored: visit(repository, env, home, stored), notebooks)]
    print(f"binder: ok, {', '.join(names)} in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
