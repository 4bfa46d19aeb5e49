"""A figure that looks the same everywhere: in a notebook of any theme, saved, on a code host.

It is a light card with its own colours, whatever style is set, and belongs to no `pyplot`. Words
stand in a strip above (title, what it says, legend) and below (what is not known).
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
# Told apart by people who see few colours, too (after Okabe and Ito).
COLOURS = ("#33689e", "#e69f00", "#2a9d78", "#cc79a7", "#56b4e9", "#d55e00", "#8a7f00")

_SHOWN, _STORED = 100, 160  # dots per inch on the screen, and in the file
_LINE = 0.2  # inches of a line of small text
_LETTER = 0.075  # inches
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.parse_math": False,  # a title may have two dollars
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
_KEPT = ("backend", "backend_fallback", "interactive", "toolbar")
# What matplotlib's own font lacks, where the machine has it.
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
    """The style of pictures, whatever else is set: what is made or drawn in it has it."""
    here = {font.name for font in fontManager.ttflist}
    fonts = {"font.sans-serif": ["DejaVu Sans", *(name for name in _FONTS if name in here)]}
    plain = {name: value for name, value in mpl.rcParamsDefault.items() if name not in _KEPT}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mpl.MatplotlibDeprecationWarning)  # of old settings
        # A letter that no font here has is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        settings: Any = {**plain, **_STYLE, **fonts}
        with mpl.rc_context(settings):
            yield


class Picture(Figure):
    """A matplotlib figure that shows itself in a notebook, and says in words what it shows."""

    alt = ""

    def draw(self, renderer: Any) -> None:
        """Draw it in its own style."""
        with style():
            super().draw(renderer)

    def __repr__(self) -> str:
        return f"<Picture: {self.alt}>"

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=_STORED)
        width, height = (round(inches * _SHOWN) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height, "alt": self.alt}


def picture(
    height: float,
    title: str,
    about: str,
    legend: Sequence[tuple[str, str, str]] = (),
    notes: Iterable[str] = (),
) -> tuple[Picture, Any]:
    """A card with its words, and axes to draw on.

    Args:
        height: Of the axes, inches.
        title: What it is.
        about: What it comes to, and by which clocks or units.
        legend: Names, colours and hatches.
        notes: What is not in it, and why; a sentence each.
    """
    columns = _columns([len(name) + 6 for name, *_ in legend])
    rows = -(-len(legend) // columns)
    foot = [line for note in notes for line in textwrap.wrap(note, 118)]
    top = 0.62 + rows * 0.23
    bottom = len(foot) * _LINE + (0.14 if foot else 0.04)
    whole = height + top + bottom
    made = Picture(figsize=(WIDTH, whole), facecolor=CARD, edgecolor=LINE, layout="constrained")
    made.patch.set_linewidth(1)
    made.alt = ". ".join([title, *([about] if about else []), *(n.rstrip(".") for n in foot)])
    engine: Any = made.get_layout_engine()
    engine.set(rect=(0.01, bottom / whole, 0.98, height / whole))
    made.text(0.015, 1 - 0.13 / whole, title, va="top", weight="bold", size=11.5)
    made.text(0.015, 1 - 0.37 / whole, about, va="top", color=FAINT)
    if legend:
        made.legend(
            handles=[
                Patch(facecolor=colour, hatch=hatch, label=name) for name, colour, hatch in legend
            ],
            loc="upper left",
            bbox_to_anchor=(0.005, 1 - 0.56 / whole),
            ncols=columns,
            frameon=False,
            handlelength=1,
            handleheight=1,
            columnspacing=1.6,
        )
    for at, line in enumerate(reversed(foot)):
        made.text(0.015, (0.08 + at * _LINE) / whole, line, va="bottom", color=FAINT, size=8.5)
    return made, made.subplots()


def _columns(lengths: Sequence[int]) -> int:
    """In how many columns names of so many letters stand: one line, or below each other."""
    room = int(WIDTH / _LETTER)
    return len(lengths) or 1 if sum(lengths) <= room else max(1, room // max(lengths))


def short(text: object, length: int) -> str:
    """A text in one line of at most so many letters, without what can't be drawn."""
    return in_one_line("".join(c if c.isprintable() else " " for c in str(text)), length)


def fitting_letters(inches: float) -> int:
    """How many letters of small text fit into a width."""
    return int(inches / _LETTER)
