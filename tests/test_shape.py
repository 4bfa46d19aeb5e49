"""The architecture: imports only downward, exact exports, a fast import of the extension."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import tiers

import opencode_magics
from opencode_magics import errors, history
from opencode_magics.magics import TOPICS

PACKAGE = Path(opencode_magics.__file__).parent
NAME = opencode_magics.__name__

# From the bottom up; the folders of one layer don't import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("core",),
    ("dialects",),
    ("recording",),
    ("client",),
    ("sessions",),
    ("prompts", "tables"),
    ("history", "notebook", "practice"),
    ("magics",),
    ("__init__", "cli"),
)
LAYER_OF = {folder: level for level, layer in enumerate(LAYERS) for folder in layer}
CORE = ("errors", "core", "dialects")
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Return a module's name, such as `magics.prompt`; a package has the name of its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    inside = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
    return ".".join(inside)


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names of all imports in a file, including nested and conditional ones."""
    package = [NAME, *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                parts = [*base, *(module.split(".") if module else [])]
                if parts == package[: len(parts)]:  # `from . import client` names modules
                    yield from (".".join([*parts, alias.name]) for alias in names)
                else:
                    yield ".".join(parts)


def folders_used(path: Path) -> set[str]:
    """Return the folders of the package that a file imports from."""
    own = (name.removeprefix(f"{NAME}.") for name in imports(path) if name.startswith(f"{NAME}."))
    return {name.split(".")[0] for name in own}


def outsiders(path: Path) -> set[str]:
    """Return the third-party packages that a file imports from."""
    tops = {name.split(".")[0] for name in imports(path)}
    return tops - {NAME} - sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_downward_only(path: Path) -> None:
    """Types that are imported only under `if TYPE_CHECKING` count as well."""
    folder = module_of(path).split(".")[0]
    used = folders_used(path) - {folder}
    assert not {other for other in used if LAYER_OF[other] >= LAYER_OF[folder]}


OUTSIDE = [path for path in FILES if module_of(path).split(".")[0] not in ("dialects", "practice")]


@pytest.mark.parametrize("path", OUTSIDE, ids=module_of)
def test_only_dialects_distinguish_the_generations(path: Path) -> None:
    """Other code asks the dialect about differences and never compares its name."""
    comparison = re.compile(
        r"(generation|version)\b[^\n]{0,20}(==|!=|\bin\b|startswith)[^\n]{0,9}[\"'][12]\."
    )
    assert not comparison.search(path.read_text(encoding="utf-8"))


def test_every_module_has_a_layer() -> None:
    assert {module_of(path).split(".")[0] for path in FILES} <= LAYER_OF.keys()


CORE_MODULES = [module_of(path) for path in FILES if module_of(path).split(".")[0] in CORE]
IMPORTS = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(f"opencode_magics.{name}")
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_importing_the_core_imports_nothing_but_python() -> None:
    """`columns` and `diffs` import pandas only when a frame is built."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORTS, *CORE_MODULES],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert set(json.loads(done.stdout)) <= {NAME, "__main__"} | sys.stdlib_module_names


def test_the_network_is_reached_through_the_client_alone() -> None:
    """`server` checks whether a started server is up; all else goes through a transport."""
    users = {module_of(p) for p in FILES if outsiders(p) & {"httpx", "httpx_sse"}}
    assert users == {"client.transport", "client.server"}


@pytest.mark.parametrize("module", [opencode_magics, history], ids=lambda m: m.__name__)
def test_all_lists_only_existing_names(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert sorted(names) == list(names)
    assert all(getattr(module, name) is not None for name in names)


def test_the_package_exports_no_other_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = opencode_magics.Server  # type: ignore[attr-defined]


def test_the_drawn_tree_of_errors_is_the_real_one() -> None:
    drawn = [line for line in str(errors.__doc__).splitlines() if line.lstrip()[:2] in TWIGS]
    tree: list[tuple[str, str]] = []
    for line in drawn:
        twig, name = line.lstrip()[:2], line.split()[1]
        parents = [n for t, n in tree if TWIGS.index(t) < TWIGS.index(twig)]
        parent = parents[-1] if parents else "Exception"
        assert getattr(errors, name).__base__.__name__ == parent
        tree.append((twig, name))
    classes = {n: v for n, v in vars(errors).items() if isinstance(v, type)}
    defined = {n for n, v in classes.items() if issubclass(v, Exception)}
    assert {name for _, name in tree} == defined


TWIGS = ["* ", "- ", "+ "]

HEAVY = {"pandas", "numpy", "ipywidgets", "markdown_it", "nh3", "anywidget", "matplotlib", "tqdm"}
LOADS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_line_magic("load_ext", "opencode_magics")
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_loading_the_extension_imports_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADS],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent), "IPYTHONDIR": str(tmp_path)},
    )
    loaded = set(json.loads(done.stdout))
    assert f"{NAME}.magics" in loaded
    assert not {name.split(".")[0] for name in loaded} & HEAVY
    assert not {
        name for name in loaded if name.startswith(f"{NAME}.core.")
    }  # dozens of dataclasses


MAGICS = sorted({name for topic in TOPICS for kind in topic.magics.values() for name in kind})


@pytest.mark.parametrize("name", MAGICS)
def test_every_magic_shows_an_example_of_itself(name: str) -> None:
    topic = next(t for t in TOPICS if hasattr(t, name))
    _, heading, example = getattr(topic, name).__doc__.partition("Example::")
    assert heading
    assert f"%{name}" in example


def test_the_tests_that_tiers_name_exist() -> None:
    sources = [
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")
    ]
    for name in tiers.SAMPLES | tiers.IN_CI_SCRIPT:
        assert any(f"def {name}(" in source for source in sources), name
