"""Configure the site that Sphinx builds from the lessons and the pages beside them.

python -m sphinx --fail-on-warning --keep-going notebooks build/site
"""

from __future__ import annotations

from importlib.metadata import metadata

from ipython_pygments_lexers import IPython3Lexer
from sphinx.application import Sphinx

_package = metadata("opencode-magics")
_links = dict(link.split(", ", 1) for link in _package.get_all("Project-URL") or ())

project = "opencode_magics"
author = "the opencode_magics contributors"
version = release = _package["Version"]

extensions = ["myst_nb"]
exclude_patterns = ["**.ipynb_checkpoints"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the lessons are stored with their output
# They contain no widgets, so no page has to load scripts for them.
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

html_theme = "furo"
html_title = f"opencode_magics {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "source_repository": _links["Source"],
    "source_branch": "main",
    "source_directory": "notebooks/",
}


def setup(app: Sphinx) -> None:
    """Highlight code as IPython does: the lessons have magics and shell commands."""
    app.add_lexer("python", IPython3Lexer)
