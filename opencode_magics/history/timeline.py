"""A picture of what happened when: a lane per session, steps above the tools that they called.

Nothing is drawn longer or shorter than it was, but for the time in which nothing happened: where
it would fill the picture, it is cut out, and the cut says how long it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.client import Client
from ..core.formatting import pluralize
from ..core.model import Session
from ..core.turn import Turn
from .plots import picture_module
from .spans import spans
from .times import zone

if TYPE_CHECKING:
    import pandas as pd

    from .picture import Picture

_HEAD, _STEP, _TOOL = 0.26, 0.2, 0.24  # inches of a lane's parts
_GAP = 0.12
_CUT = 0.15  # of the time at work: a longer pause is cut out
_CUT_LEAST = 3.0  # seconds
_PAUSE = 0.04  # of the picture: how wide a cut is
_PAUSES = 0.25  # and all of them together
_NARROW = 0.013  # too narrow for words
_ROWS = 12  # tool calls at the same time that are seen apart


def timeline(client: Client, of: Turn | Session | str, *, last: int | None = 10) -> Picture:
    """What happened when: steps, tool calls, waiting for permission; subagents below.

    A subagent has a lane below its parent's. How long a permission or a question waited is
    known of a turn that was followed here; a history doesn't tell, and the picture says so.

    Args:
        client: The server.
        of: A turn, or a session by value, id or title.
        last: Of a session only so many turns, the latest; None draws all.

    Returns:
        A matplotlib figure; it shows itself in a notebook, and `savefig` writes it. What it shows
        is in `history.spans`.

    Raises:
        UnknownNameError: There is no such session.
        MissingPackageError: It needs matplotlib: `pip install 'opencode-magics[plots]'`.
    """
    picture_module()
    return timeline_from_frame(spans(client, of, last=last))


def timeline_from_frame(spans: pd.DataFrame, tz: str | None = None) -> Picture:
    """The same, of a frame of spans that is here already; clock times are those of a zone."""
    card = picture_module()
    known = spans[spans["started"].notna()]
    bars = [_bar(row) for row in known.to_dict("records")]
    clock = _Clock(bars)
    lanes = _lanes(bars)
    height = max(0.6, sum(lane.height for lane in lanes))
    made: Picture
    with card.style():
        made, axes = card.picture(
            height + 0.45,
            _title(spans),
            _about(bars, clock, tz),
            _legend(bars),
            _notes(spans, bars),
        )
        axes.set_xlim(-0.004, 1.004)
        axes.set_ylim(height, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        clock.draw(axes, height)
        top, tops = 0.0, {}
        for lane in lanes:
            tops[lane.session] = top
            _draw(axes, lane, top, clock)
            top += lane.height
        _connect(axes, bars, lanes, tops, clock)
    return made


class _Bar(NamedTuple):
    """A span in seconds since the epoch; an open one ends as far as is known."""

    session: str
    title: str
    depth: int
    kind: str
    name: str
    detail: str
    start: float
    end: float | None
    status: str
    child: str | None


def _bar(row: dict[Any, Any]) -> _Bar:
    import pandas as pd

    def text(name: str) -> str:
        return "" if pd.isna(row[name]) else str(row[name])

    start = row["started"].timestamp()
    end = None if pd.isna(row["ended"]) else max(start, row["ended"].timestamp())
    return _Bar(
        text("session"),
        text("title"),
        int(row["depth"]),
        text("kind"),
        text("name"),
        text("detail"),
        start,
        end,
        text("status"),
        text("child") or None,
    )


# -- time ------------------------------------------------------------------------------------------


class _Clock:
    """Turns times into places from 0 to 1; long pauses are cut out."""

    def __init__(self, bars: Sequence[_Bar]) -> None:
        times = sorted((b.start, b.start if b.end is None else b.end) for b in bars)
        self.blocks = _blocks(times)
        self.last = max((end for _, end in self.blocks), default=0.0)
        self.first = self.blocks[0][0] if self.blocks else 0.0
        self.busy = sum(end - start for start, end in self.blocks) or 1.0
        cuts = max(1, len(self.blocks) - 1)
        self._pause = min(_PAUSE, _PAUSES / cuts)
        self._wide = 1 - self._pause * (len(self.blocks) - 1)

    def place(self, time: float) -> float:
        """Where a time is."""
        place = 0.0
        for start, end in self.blocks:
            if time <= end:
                return place + max(0.0, time - start) / self.busy * self._wide
            place += (end - start) / self.busy * self._wide + self._pause
        return 1.0

    def draw(self, axes: Any, height: float) -> None:
        """The axis: seconds from the beginning of each block, and the cuts between them."""
        card = picture_module()
        ticks: list[tuple[float, str]] = []
        step = _step(self.busy)
        for start, end in self.blocks:
            count = int((end - start) / step) + 1
            own = [(self.place(start + at * step), _seconds(at * step)) for at in range(count)]
            ticks += [tick for tick in own if not ticks or tick[0] - ticks[-1][0] > 0.035]
        axes.set_xticks([place for place, _ in ticks], [name for _, name in ticks])
        axes.grid(axis="x")
        for (_, end), (start, _) in pairwise(self.blocks):
            left, right = self.place(end), self.place(start)
            axes.axvspan(left, right, color="#f6f8fa", zorder=0.5)
            if right - left < _NARROW:
                continue
            axes.text(
                (left + right) / 2,
                height / 2,
                f"{_seconds(start - end)} later",
                rotation=90,
                ha="center",
                va="center",
                size=8,
                color=card.FAINT,
            )


def _blocks(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches of time without a long pause."""
    merged: list[tuple[float, float]] = []
    for start, end in times:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    long = max(_CUT_LEAST, _CUT * sum(end - start for start, end in merged))
    blocks = merged[:1]
    for start, end in merged[1:]:
        if start - blocks[-1][1] > long:
            blocks.append((start, end))
        else:
            blocks[-1] = (blocks[-1][0], end)
    return blocks


def _step(busy: float) -> float:
    """Seconds between two marks of the axis."""
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
    return next((s for s in steps if busy / s <= 12), 2 * steps[-1] * max(1, round(busy / 90_000)))


def _seconds(seconds: float) -> str:
    """A length of time, as people say it."""
    if seconds < 60:
        return f"{seconds:g} s" if seconds == round(seconds, 1) else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{round(hours / 24)} days"


# -- lanes -----------------------------------------------------------------------------------------


class _Lane(NamedTuple):
    """A session's bars, its tool calls row by row."""

    session: str
    title: str
    depth: int
    bars: list[_Bar]
    rows: list[list[_Bar]]

    @property
    def height(self) -> float:
        return _HEAD + _STEP + _TOOL * len(self.rows) + _GAP


def _lanes(bars: Sequence[_Bar]) -> list[_Lane]:
    owned: dict[str, list[_Bar]] = {}
    for bar in bars:
        owned.setdefault(bar.session, []).append(bar)
    return [
        _Lane(session, own[0].title, own[0].depth, own, _rows(b for b in own if b.kind == "tool"))
        for session, own in owned.items()
    ]


def _rows(tools: Iterable[_Bar]) -> list[list[_Bar]]:
    """Tool calls that overlap stand below each other."""
    rows: list[list[_Bar]] = []
    for bar in sorted(tools, key=lambda b: b.start):
        free = (r for r in rows if r[-1].end is not None and r[-1].end <= bar.start)
        row = next(free, None)
        if row is None and len(rows) < _ROWS:
            rows.append(row := [])
        (row if row is not None else rows[-1]).append(bar)
    return rows


def _draw(axes: Any, lane: _Lane, top: float, clock: _Clock) -> None:
    card = picture_module()
    indent = "    " * (lane.depth - 1) + "↳ " if lane.depth else ""
    begin = clock.place(min(b.start for b in lane.bars))
    asked = [b for b in lane.bars if b.kind == "prompt"]
    if lane.depth:
        text = card.short(f"{indent}{lane.title}", card.fitting_letters((1 - begin) * card.WIDTH))
        axes.text(begin, top + _HEAD / 2, text, va="center", size=8.5, color=card.INK)
    else:
        _prompts(axes, asked, top, clock)
    for bar in lane.bars:
        if bar.kind == "step":
            _box(axes, bar, top + _HEAD, _STEP * 0.8, clock, _step_colour(bar))
    waits = [b for b in lane.bars if b.kind == "waiting"]
    for at, row in enumerate(lane.rows):
        middle = top + _HEAD + _STEP + at * _TOOL
        for bar, after in zip(row, [*row[1:], None], strict=True):
            _box(axes, bar, middle, _TOOL * 0.75, clock, _tool_colour(bar))
            own = [wait for wait in waits if _is_of(wait, bar)]
            for wait in own:
                _box(axes, wait, middle, _TOOL * 0.75, clock, card.AMBER, hatch="////")
            _name(axes, bar, middle + _TOOL * 0.375, clock, after, waited=bool(own))


def _is_of(wait: _Bar, call: _Bar) -> bool:
    """Whether it was for this call that something waited."""
    inside = wait.start >= call.start and (call.end is None or wait.start <= call.end)
    return inside and wait.detail == call.detail


def _prompts(axes: Any, asked: Sequence[_Bar], top: float, clock: _Clock) -> None:
    card = picture_module()
    stretches = pairwise([*(clock.place(bar.start) for bar in asked), 1.0])
    for bar, (place, end) in zip(asked, stretches, strict=True):
        room = card.fitting_letters((end - place) * card.WIDTH) - 4
        if room < 0:
            continue
        words = card.short(bar.detail, room) if room > 4 else ""
        axes.text(
            place,
            top + _HEAD / 2,
            f"▸ {words}",
            va="center",
            size=8.5,
            weight="bold",
            color=card.INK,
        )


def _step_colour(bar: _Bar) -> str:
    card = picture_module()
    if bar.name == "compaction":
        return str(card.GREY)
    return str(card.RED if bar.status in ("failed", "aborted", "interrupted") else card.PALE)


def _tool_colour(bar: _Bar) -> str:
    card = picture_module()
    if bar.status in ("error", "declined"):
        return str(card.RED)
    return str(card.PURPLE if bar.child else card.BLUE)


def _box(
    axes: Any, bar: _Bar, top: float, height: float, clock: _Clock, colour: str, hatch: str = ""
) -> None:
    """A bar; one without an end reaches as far as anything is known, and is pale."""
    left = clock.place(bar.start)
    right = clock.place(clock.last if bar.end is None else bar.end)
    axes.barh(
        top + height / 2,
        max(right - left, 0.0025),
        height,
        left,
        color=colour,
        hatch=hatch,
        alpha=0.4 if bar.end is None else 1.0,
        zorder=3 if hatch else 2,
    )


def _name(
    axes: Any, bar: _Bar, middle: float, clock: _Clock, after: _Bar | None, waited: bool
) -> None:
    """A call's name behind its bar, as far as there is room; inside of a bar that is long."""
    card = picture_module()
    left = clock.place(bar.start)
    right = max(clock.place(clock.last if bar.end is None else bar.end), left + 0.0025)
    limit = clock.place(after.start) if after is not None else 1.0
    text = f"{bar.name} {bar.detail}".strip()
    outside, inside = (
        card.fitting_letters(w * card.WIDTH) - 1 for w in (limit - right, right - left)
    )
    enough = min(len(text), 12) if waited else len(text)
    if within := outside < enough and outside < inside:
        place, room = left + 0.006, inside
    else:
        place, room = right + 0.004, outside
    if room < len(bar.name):
        return
    axes.text(
        place,
        middle,
        card.short(text, room) if room > len(bar.name) + 4 else bar.name,
        va="center",
        size=8,
        color=card.CARD if within and not waited else card.INK,
        bbox={"facecolor": card.CARD, "edgecolor": "none", "pad": 1.2}
        if within and waited
        else None,
        zorder=4,
    )


def _connect(
    axes: Any, bars: Sequence[_Bar], lanes: Sequence[_Lane], tops: dict[str, float], clock: _Clock
) -> None:
    """Lines from the calls that started subagents to the lanes of these."""
    card = picture_module()
    rows = {
        (b.session, b.start, b.detail): at
        for la in lanes
        for at, r in enumerate(la.rows)
        for b in r
    }
    for bar in bars:
        if bar.kind != "tool" or bar.child not in tops:
            continue
        row = rows[bar.session, bar.start, bar.detail]
        begin = tops[bar.session] + _HEAD + _STEP + (row + 0.75) * _TOOL
        place = clock.place(bar.start)
        axes.plot([place] * 2, [begin, tops[bar.child] + 0.05], color=card.PURPLE, linewidth=1)


# -- words -----------------------------------------------------------------------------------------


def _title(spans: pd.DataFrame) -> str:
    if not len(spans):
        return "Timeline: nothing happened"
    return f"Timeline of “{picture_module().short(spans['title'].iloc[0], 70)}”"


def _about(bars: Sequence[_Bar], clock: _Clock, tz: str | None) -> str:
    from datetime import datetime

    if not bars:
        return ""
    where = zone(tz)
    began = datetime.fromtimestamp(clock.first, where)
    kinds = {"step": "step", "tool": "tool call"}
    counts = [(sum(b.kind == kind for b in bars), word) for kind, word in kinds.items()]
    waited = sum((b.end or b.start) - b.start for b in bars if b.kind == "waiting")
    told = [
        f"{began:%Y-%m-%d %H:%M:%S} ({where})",
        f"{_seconds(round(clock.busy, 1))} at work",
        *(pluralize(n, word) for n, word in counts),
    ]
    if waited:
        told.append(f"{_seconds(round(waited, 1))} of waiting for an answer")
    return " · ".join(told)


def _legend(bars: Sequence[_Bar]) -> list[tuple[str, str, str]]:
    card = picture_module()
    met = {
        "step, with its tools": (card.PALE, "", [b.kind == "step" for b in bars]),
        "tool call": (card.BLUE, "", [b.kind == "tool" and not b.child for b in bars]),
        "subagent": (card.PURPLE, "", [b.child is not None for b in bars]),
        "waits for permission or an answer": (
            card.AMBER,
            "////",
            [b.kind == "waiting" for b in bars],
        ),
        "failed, stopped or declined": (card.RED, "", [_is_red(b) for b in bars]),
        "sums up the conversation": (card.GREY, "", [b.name == "compaction" for b in bars]),
    }
    return [(name, colour, hatch) for name, (colour, hatch, any_) in met.items() if any(any_)]


def _is_red(bar: _Bar) -> bool:
    colour = _step_colour(bar) if bar.kind == "step" else _tool_colour(bar)
    return bar.kind in ("step", "tool") and colour == picture_module().RED


def _notes(spans: pd.DataFrame, bars: Sequence[_Bar]) -> list[str]:
    told = []
    if earlier := spans.attrs.get("earlier", 0):
        told.append(f"{earlier} earlier turn{'s' * (earlier > 1)} not drawn.")
    if bars and not spans.attrs.get("waiting"):
        told.append("How long permissions were waited for, the server does not store.")
    open_ones = sum(b.end is None for b in bars)
    if open_ones:
        told.append(f"{open_ones} without an end: pale, drawn as far as anything is known.")
    lost = int(spans["started"].isna().sum())
    if lost:
        told.append(f"{lost} without a beginning: not drawn.")
    return told
