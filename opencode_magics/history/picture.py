"""A figure that looks the same in every notebook theme, in a saved file and on a code host.

It is a light card with its own colors, independent of the current matplotlib style and of `pyplot`.
The title, a summary and the legend are above the axes, notes about missing data below.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import Patch

from ..core.formatting import in_one_line

WIDTH = 9.0  # inches
INK, FAINT, LINE, CARD = "#24292f", "#59636e", "#d0d7de", "#ffffff"
BLUE, AMBER, RED, PURPLE, PALE = "#33689e", "#e3a008", "#c93c37", "#8250df", "#b9cde2"
GREY = "#aab2bb"
# Safe for color-blind readers (after Okabe and Ito).
COLORS = ("#33689e", "#e69f00", "#2a9d78", "#cc79a7", "#56b4e9", "#d55e00", "#8a7f00")

_SCREEN_DPI, _FILE_DPI = 100, 160
_LINE = 0.2  # inches, the height of a line of small text
_LETTER = 0.075  # inches, the width of a character of small text
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.parse_math": False,  # a title with two dollar signs is not a formula
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": "#eaeef2",
    "xtick.color": FAINT,
    "ytick.color": INK,
    "hatch.linewidth": 1.2,
    "hatch.color": "#ffffff",
    "axes.unicode_minus": False,
}
_NOT_RESET = ("backend", "backend_fallback", "interactive", "toolbar")
# For scripts that matplotlib's own font lacks; used if installed.
_FONTS = (
    "Noto Sans CJK JP",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
)


@contextmanager
def style() -> Iterator[None]:
    """Replace the current matplotlib style by that of pictures, for creating or drawing one."""
    installed = {font.name for font in fontManager.ttflist}
    fonts = {"font.sans-serif": ["DejaVu Sans", *(name for name in _FONTS if name in installed)]}
    defaults = {n: value for n, value in mpl.rcParamsDefault.items() if n not in _NOT_RESET}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mpl.MatplotlibDeprecationWarning)  # about old settings
        # matplotlib draws a box for a character that no installed font has.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        settings: Any = {**defaults, **_STYLE, **fonts}
        with mpl.rc_context(settings):
            yield


class Picture(Figure):
    """A matplotlib figure that displays itself in a notebook; `alt` describes it in words."""

    alt = ""

    def draw(self, renderer: Any) -> None:
        """Draw the figure in the style of pictures."""
        with style():
            super().draw(renderer)

    def __repr__(self) -> str:
        return f"<Picture: {self.alt}>"

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=_FILE_DPI)
        width, height = (round(inches * _SCREEN_DPI) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height, "alt": self.alt}


def picture(
    height: float,
    title: str,
    about: str,
    legend: Sequence[tuple[str, str, str]] = (),
    notes: Iterable[str] = (),
) -> tuple[Picture, Any]:
    """Create a card with its texts, and axes to draw on.

    Args:
        height: Height of the axes in inches.
        title: Title.
        about: Summary line: totals, unit, time zone.
        legend: Names, colors and hatches.
        notes: What is missing from the picture and why, one sentence each.
    """
    columns = _legend_columns([len(name) + 6 for name, *_ in legend])
    rows = -(-len(legend) // columns)
    footer = [line for note in notes for line in textwrap.wrap(note, 118)]
    top = 0.62 + rows * 0.23
    bottom = len(footer) * _LINE + (0.14 if footer else 0.04)
    total = height + top + bottom
    figure = Picture(figsize=(WIDTH, total), facecolor=CARD, edgecolor=LINE, layout="constrained")
    figure.patch.set_linewidth(1)
    figure.alt = ". ".join([title, *([about] if about else []), *(n.rstrip(".") for n in footer)])
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.01, bottom / total, 0.98, height / total))
    figure.text(0.015, 1 - 0.13 / total, title, va="top", weight="bold", size=11.5)
    figure.text(0.015, 1 - 0.37 / total, about, va="top", color=FAINT)
    if legend:
        figure.legend(
            handles=[
                Patch(facecolor=color, hatch=hatch, label=name) for name, color, hatch in legend
            ],
            loc="upper left",
            bbox_to_anchor=(0.005, 1 - 0.56 / total),
            ncols=columns,
            frameon=False,
            handlelength=1,
            handleheight=1,
            columnspacing=1.6,
        )
    for row, line in enumerate(reversed(footer)):
        figure.text(0.015, (0.08 + row * _LINE) / total, line, va="bottom", color=FAINT, size=8.5)
    return figure, figure.subplots()


def _legend_columns(lengths: Sequence[int]) -> int:
    """Return the number of columns for names of these lengths: all on one line if they fit."""
    room = int(WIDTH / _LETTER)
    return len(lengths) or 1 if sum(lengths) <= room else max(1, room // max(lengths))


def short(text: object, length: int) -> str:
    """Shorten a text to one line of at most `length` characters, all of them printable."""
    return in_one_line("".join(c if c.isprintable() else " " for c in str(text)), length)


def letters_in(inches: float) -> int:
    """Return the number of characters of small text that fit into a width."""
    return int(inches / _LETTER)
