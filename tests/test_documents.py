"""The pages of the repository agree with the code, with each other and with the package."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import nbformat
import pytest

import opencode_magics
from opencode_magics.magics.help import overview
from opencode_magics.magics.state import OpenCodeMagics

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("notebooks/*.md")])
GENERATED = runpy.run_path(str(ROOT / "tools" / "reference.py"))["pages"]()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    """If not, run `python tools/reference.py`."""
    assert text(f"notebooks/{name}") == GENERATED[name]


@pytest.mark.parametrize("magic", overview().magics, ids=lambda magic: magic.name)
def test_the_reference_has_every_magic_with_its_help(magic: object) -> None:
    name, help_text = magic.name, magic.text  # type: ignore[attr-defined]
    section = text("notebooks/reference.md").partition(f"\n### `{name}`\n")[2]
    section = section.partition("\n### ")[0]
    assert help_text.partition("\n\nExample::")[0] in section
    for option in re.findall(r"^  (?:-\w.*?, )?(--[\w-]+)", help_text, re.MULTILINE):
        assert re.search(rf"^\|.*`{option}\b", section, re.MULTILINE)


def test_the_reference_has_every_option_of_config_and_no_other() -> None:
    options = text("notebooks/reference.md").partition("\n## Options\n")[2]
    listed = re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)
    assert sorted(listed) == sorted(OpenCodeMagics.class_traits(config=True))


# -- links and pictures ----------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_page_links_only_to_files_that_exist(page: Path) -> None:
    missing = [link for link in links(page) if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("page", sorted(ROOT.glob("notebooks/*.md")), ids=ids)
def test_a_page_of_the_site_links_only_within_the_site(page: Path) -> None:
    """Sphinx checks that the targets exist; files outside `notebooks/` are not part of the site."""
    assert not [link for link in links(page) if link.startswith("..")]


@pytest.mark.parametrize("picture", sorted(ROOT.glob("notebooks/pictures/*")), ids=ids)
def test_a_picture_is_small_and_shown(picture: Path) -> None:
    assert picture.stat().st_size < 150_000
    assert picture in {(page.parent / link).resolve() for page in PAGES for link in links(page)}


@pytest.mark.parametrize("lesson", sorted(ROOT.glob("notebooks/*.ipynb")), ids=ids)
def test_a_lesson_is_linked_from_readme_and_site_and_from_the_end_of_the_tour(lesson: Path) -> None:
    assert f"](notebooks/{lesson.name})" in text("README.md")
    assert f"\n{lesson.stem}\n" in text("notebooks/index.md")
    tour = nbformat.read(ROOT / "notebooks/tour.ipynb", as_version=4)
    assert lesson.stem == "tour" or f"]({lesson.name})" in tour.cells[-1].source


# -- contributing, changelog, package --------------------------------------------------------------


def map_of_modules() -> set[str]:
    """Read the modules that the map in CONTRIBUTING.md names, as paths."""
    lines = text("CONTRIBUTING.md").partition("```text\nopencode_magics/\n")[2]
    modules: set[str] = set()
    folders: list[str] = []
    for line in lines.partition("```")[0].splitlines():
        indent, name = re.match(r"( +)(\S+)", line).groups()  # type: ignore[union-attr]
        del folders[len(indent) // 2 - 1 :]
        if name.endswith("/"):
            folders.append(name)
        else:
            modules.add(f"{''.join(folders)}{name}.py")
    return modules


def test_the_map_names_every_module_and_no_other() -> None:
    package = Path(opencode_magics.__file__).parent
    modules = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    folders = {name for name in modules if name.endswith("/__init__.py")}
    assert map_of_modules() == modules - folders


def test_the_walks_name_only_modules_that_exist() -> None:
    package = Path(opencode_magics.__file__).parent
    folders = "|".join(path.name for path in package.iterdir() if path.is_dir())
    named = re.findall(rf"`((?:{folders})/\w+)(?:\.py)?`", text("CONTRIBUTING.md"))
    assert len(named) > 20
    assert not [name for name in named if not (package / f"{name}.py").is_file()]


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[(\d.*)\] - \d{4}-\d\d-\d\d$", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == opencode_magics.__version__


def readme_on_pypi() -> str:
    """Apply the substitutions that the build applies to README.md."""
    readme = text("README.md")
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        readme = re.sub(rule["pattern"], rule["replacement"], readme)
    return readme


def test_readme_on_pypi_has_only_whole_addresses() -> None:
    home = PROJECT["project"]["urls"]["Source"]
    raw = home.replace("github.com", "raw.githubusercontent.com")
    addresses = LINK.findall(readme_on_pypi())
    pictures = [address for address in addresses if address.endswith(".png")]
    assert all(address.startswith("https://") for address in addresses)
    assert pictures == [f"{raw}/v$HFPR_VERSION/notebooks/pictures/permission.png"]
    assert f"{home}/blob/v$HFPR_VERSION/CONTRIBUTING.md" in addresses


@pytest.mark.parametrize("name", PROJECT["project"]["urls"])
def test_the_address_of_the_repository_is_the_same_everywhere(name: str) -> None:
    home = PROJECT["project"]["urls"]["Source"]
    assert PROJECT["project"]["urls"][name].startswith(home)
    for page in ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        assert home in text(page)
