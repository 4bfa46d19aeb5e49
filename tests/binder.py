"""Follows the files of `binder/` as Binder does, and executes the notebooks in what comes of it.

    python tests/binder.py

It makes a virtual environment from a clean copy of what git knows, installs into it, runs
`postBuild`, and then each notebook by `start`, as somebody who visits would. What pip and npm have
in their caches is taken from there; OpenCode is installed anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The files that repo2docker reads are many. These are followed here, and there may be no others.
FOLLOWED = {"apt.txt", "postBuild", "requirements.txt", "runtime.txt", "start"}
NOBODY_THERE = "c.OpenCodeMagics.noninteractive = 'once'\n"


def lines(path: Path) -> list[str]:
    """The entries of a list."""
    entries = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [entry for entry in entries if entry]


def copy(target: Path) -> Path:
    """What git knows, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def python(runtime: Path) -> str:
    """The Python that `runtime.txt` names."""
    (named,) = lines(runtime)
    version = named.removeprefix("python-")
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        raise SystemExit(f"binder/runtime.txt wants Python {version}, which is not here.")
    return found


def build(repository: Path, home: Path) -> dict[str, str]:
    """The environment that comes of the files: the variables that make it the one in use."""
    binder = repository / "binder"
    if others := {p.name for p in binder.iterdir()} ^ FOLLOWED:
        raise SystemExit(f"binder/ has other files than are followed here: {sorted(others)}")
    for package in lines(binder / "apt.txt"):
        subprocess.run(["dpkg-query", "-s", package], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([python(binder / "runtime.txt"), "-m", "venv", home / "venv"], check=True)
    env = environment(home)
    install = ["python", "-m", "pip", "install", "--quiet", "-r", "binder/requirements.txt"]
    for command in (install, [str(binder / "postBuild")]):
        subprocess.run(command, cwd=repository, env=env, check=True)
    return env


def environment(home: Path) -> dict[str, str]:
    """A visitor's variables: only that environment's programs, and nobody's settings."""
    foreign = re.compile("PYTHON|OPENCODE_|JUPYTER|IPYTHON|VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    profile = home / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(NOBODY_THERE)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return kept | {
        "PATH": os.pathsep.join([str(home / "venv" / "bin"), "/usr/bin", "/bin"]),
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR") or str(caches / "pip"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "IPYTHONDIR": str(home / "ipython"),
    }


def visit(repository: Path, env: dict[str, str], out: Path) -> Iterator[str]:
    """Execute each notebook, in a world of its own; gives their names."""
    execute = ["jupyter", "nbconvert", "--to", "notebook", "--execute", "--log-level=WARN"]
    for notebook in sorted((repository / "notebooks").glob("*.ipynb")):
        start = [str(repository / "binder" / "start"), *execute]
        subprocess.run(
            [*start, f"--output-dir={out}", notebook.name], cwd=repository, env=env, check=True
        )
        if '"output_type": "error"' in (out / notebook.name).read_text("utf-8"):
            raise SystemExit(f"{notebook.name} has an error in it.")
        yield notebook.name


def main() -> None:
    """Build, visit, and say how long it took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="binder-") as folder:
        home = Path(folder).resolve()
        repository = copy(home / "repository")
        env = build(repository, home)
        print(f"binder: built in {time.monotonic() - begun:.0f} s", flush=True)
        names = [*visit(repository, env, home / "out")]
    print(f"binder: ok, {', '.join(names)} in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
