"""Configure the site that Sphinx builds from the lessons and the reference pages."""

from __future__ import annotations

from importlib.metadata import metadata

_package = metadata("opencode-magics")
_links = dict(link.split(", ", 1) for link in _package.get_all("Project-URL") or ())

project = "opencode_magics"
author = "the opencode_magics contributors"
version = release = _package["Version"]
language = "en"

extensions = ["myst_nb"]
exclude_patterns = ["**.ipynb_checkpoints"]
nb_execution_mode = "off"  # the lessons are stored with their output
nb_ipywidgets_js = {}  # no lesson stores a live widget, so no page loads a script for one
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"opencode_magics {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
