"""The timeline chart: one lane per session, its steps above the tools that they called.

The time axis is linear, except that long pauses are cut out; each cut is labeled with its length.
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

_HEAD, _STEP, _TOOL = 0.26, 0.2, 0.24  # inches, the heights of a lane's rows
_GAP = 0.12  # inches between lanes
_CUT = 0.15  # share of the working time; longer pauses are cut out
_MIN_CUT = 3.0  # seconds; shorter pauses are never cut out
_CUT_WIDTH = 0.04  # share of the picture's width
_CUTS_WIDTH = 0.25  # share of the picture's width, for all cuts together
_MIN_LABELED = 0.013  # share of the picture's width; narrower cuts have no label
_MAX_ROWS = 12  # of simultaneous tool calls in a lane
_MIN_BAR = 0.0025  # share of the picture's width


def timeline(client: Client, of: Turn | Session | str, *, last: int | None = 10) -> Picture:
    """Draw a timeline of steps, tool calls and pending requests.

    A subagent has a lane below its parent's. How long a permission or a question waited is known
    only if `of` is a turn that this notebook followed; otherwise a note says that it is unknown.

    Args:
        client: The server.
        of: A turn, or a session by value, id or title.
        last: For a session, the number of latest turns to draw; None draws all.

    Returns:
        A matplotlib figure that displays itself in a notebook; `savefig` saves it. The data is in
        `history.spans`.

    Raises:
        UnknownNameError: There is no such session.
        MissingPackageError: Charts need matplotlib: `pip install 'opencode-magics[plots]'`.
    """
    picture_module()
    return timeline_from_frame(spans(client, of, last=last))


def timeline_from_frame(spans: pd.DataFrame, tz: str | None = None) -> Picture:
    """Draw the same chart from a loaded frame of spans, with times in a time zone."""
    card = picture_module()
    started = spans[spans["started"].notna()]
    bars = [_bar(row) for row in started.to_dict("records")]
    axis = _TimeAxis(bars)
    lanes = _lanes(bars)
    height = max(0.6, sum(lane.height for lane in lanes))
    figure: Picture
    with card.style():
        figure, axes = card.picture(
            height + 0.45,
            _title(spans),
            _about(bars, axis, tz),
            _legend(bars),
            _notes(spans, bars),
        )
        axes.set_xlim(-0.004, 1.004)
        axes.set_ylim(height, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axis.draw(axes, height)
        top, tops = 0.0, {}
        for lane in lanes:
            tops[lane.session] = top
            _draw_lane(axes, lane, top, axis)
            top += lane.height
        _connect_subagents(axes, bars, lanes, tops, axis)
    return figure


class _Bar(NamedTuple):
    """A span in seconds since the epoch; `end` is None if it never ended."""

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


class _TimeAxis:
    """Maps times to positions from 0 to 1, with long pauses cut out."""

    def __init__(self, bars: Sequence[_Bar]) -> None:
        times = sorted((b.start, b.start if b.end is None else b.end) for b in bars)
        self.blocks = _blocks(times)
        self.last = max((end for _, end in self.blocks), default=0.0)
        self.first = self.blocks[0][0] if self.blocks else 0.0
        self.busy = sum(end - start for start, end in self.blocks) or 1.0
        cuts = max(1, len(self.blocks) - 1)
        self._cut_width = min(_CUT_WIDTH, _CUTS_WIDTH / cuts)
        self._busy_width = 1 - self._cut_width * (len(self.blocks) - 1)

    def position(self, time: float) -> float:
        """Return the position of a time."""
        position = 0.0
        for start, end in self.blocks:
            if time <= end:
                return position + max(0.0, time - start) / self.busy * self._busy_width
            position += (end - start) / self.busy * self._busy_width + self._cut_width
        return 1.0

    def extent(self, bar: _Bar) -> tuple[float, float]:
        """Return the left and right positions of a bar; an open one reaches to the last time."""
        left = self.position(bar.start)
        right = self.position(self.last if bar.end is None else bar.end)
        return left, max(right, left + _MIN_BAR)

    def draw(self, axes: Any, height: float) -> None:
        """Draw ticks (the time since the start of each block) and the cuts between blocks."""
        card = picture_module()
        ticks: list[tuple[float, str]] = []
        step = _tick_step(self.busy)
        for start, end in self.blocks:
            count = int((end - start) / step) + 1
            block_ticks = [
                (self.position(start + n * step), _duration(n * step)) for n in range(count)
            ]
            ticks += [tick for tick in block_ticks if not ticks or tick[0] - ticks[-1][0] > 0.035]
        axes.set_xticks([position for position, _ in ticks], [label for _, label in ticks])
        axes.grid(axis="x")
        for (_, end), (start, _) in pairwise(self.blocks):
            left, right = self.position(end), self.position(start)
            axes.axvspan(left, right, color="#f6f8fa", zorder=0.5)
            if right - left < _MIN_LABELED:
                continue
            axes.text(
                (left + right) / 2,
                height / 2,
                f"{_duration(start - end)} later",
                rotation=90,
                ha="center",
                va="center",
                size=8,
                color=card.FAINT,
            )


def _blocks(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge spans of time into blocks without a long pause."""
    merged: list[tuple[float, float]] = []
    for start, end in times:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    longest_pause = max(_MIN_CUT, _CUT * sum(end - start for start, end in merged))
    blocks = merged[:1]
    for start, end in merged[1:]:
        if start - blocks[-1][1] > longest_pause:
            blocks.append((start, end))
        else:
            blocks[-1] = (blocks[-1][0], end)
    return blocks


def _tick_step(busy: float) -> float:
    """Return the seconds between two ticks."""
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
    return next((s for s in steps if busy / s <= 12), 2 * steps[-1] * max(1, round(busy / 90_000)))


def _duration(seconds: float) -> str:
    """Format a duration: `1.5 s`, `2 min 5 s`, `3 h`, `2 days`."""
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
    """The bars of a session, and its tool calls in rows without overlap."""

    session: str
    title: str
    depth: int
    bars: list[_Bar]
    rows: list[list[_Bar]]

    @property
    def height(self) -> float:
        return _HEAD + _STEP + _TOOL * len(self.rows) + _GAP


def _lanes(bars: Sequence[_Bar]) -> list[_Lane]:
    bars_by_session: dict[str, list[_Bar]] = {}
    for bar in bars:
        bars_by_session.setdefault(bar.session, []).append(bar)
    return [
        _Lane(session, own[0].title, own[0].depth, own, _rows(b for b in own if b.kind == "tool"))
        for session, own in bars_by_session.items()
    ]


def _rows(tools: Iterable[_Bar]) -> list[list[_Bar]]:
    """Distribute tool calls over rows, so that simultaneous calls are below each other."""
    rows: list[list[_Bar]] = []
    for bar in sorted(tools, key=lambda b: b.start):
        free = (r for r in rows if r[-1].end is not None and r[-1].end <= bar.start)
        row = next(free, None)
        if row is None and len(rows) < _MAX_ROWS:
            rows.append(row := [])
        (row if row is not None else rows[-1]).append(bar)
    return rows


def _draw_lane(axes: Any, lane: _Lane, top: float, axis: _TimeAxis) -> None:
    card = picture_module()
    indent = "    " * (lane.depth - 1) + "↳ " if lane.depth else ""
    left = axis.position(min(b.start for b in lane.bars))
    if lane.depth:
        text = card.short(f"{indent}{lane.title}", card.letters_in((1 - left) * card.WIDTH))
        axes.text(left, top + _HEAD / 2, text, va="center", size=8.5, color=card.INK)
    else:
        _draw_prompts(axes, [b for b in lane.bars if b.kind == "prompt"], top, axis)
    for bar in lane.bars:
        if bar.kind == "step":
            _draw_bar(axes, bar, top + _HEAD, _STEP * 0.8, axis, _step_color(bar))
    waiting_bars = [b for b in lane.bars if b.kind == "waiting"]
    for number, row in enumerate(lane.rows):
        row_top = top + _HEAD + _STEP + number * _TOOL
        for bar, next_bar in zip(row, [*row[1:], None], strict=True):
            _draw_bar(axes, bar, row_top, _TOOL * 0.75, axis, _tool_color(bar))
            waits = [wait for wait in waiting_bars if _belongs_to(wait, bar)]
            for wait in waits:
                _draw_bar(axes, wait, row_top, _TOOL * 0.75, axis, card.AMBER, hatch="////")
            _label_tool(axes, bar, row_top + _TOOL * 0.375, axis, next_bar, waited=bool(waits))


def _belongs_to(wait: _Bar, call: _Bar) -> bool:
    """Return True if a request that waited belongs to this tool call."""
    inside = wait.start >= call.start and (call.end is None or wait.start <= call.end)
    return inside and wait.detail == call.detail


def _draw_prompts(axes: Any, prompts: Sequence[_Bar], top: float, axis: _TimeAxis) -> None:
    card = picture_module()
    ranges = pairwise([*(axis.position(bar.start) for bar in prompts), 1.0])
    for bar, (left, right) in zip(prompts, ranges, strict=True):
        room = card.letters_in((right - left) * card.WIDTH) - 4
        if room < 0:
            continue
        text = card.short(bar.detail, room) if room > 4 else ""
        axes.text(
            left,
            top + _HEAD / 2,
            f"▸ {text}",
            va="center",
            size=8.5,
            weight="bold",
            color=card.INK,
        )


def _step_color(bar: _Bar) -> str:
    card = picture_module()
    if bar.name == "compaction":
        return str(card.GREY)
    return str(card.RED if bar.status in ("failed", "aborted", "interrupted") else card.PALE)


def _tool_color(bar: _Bar) -> str:
    card = picture_module()
    if bar.status in ("error", "declined"):
        return str(card.RED)
    return str(card.PURPLE if bar.child else card.BLUE)


def _draw_bar(
    axes: Any, bar: _Bar, top: float, height: float, axis: _TimeAxis, color: str, hatch: str = ""
) -> None:
    """Draw a bar; one that never ended is pale."""
    left, right = axis.extent(bar)
    axes.barh(
        top + height / 2,
        right - left,
        height,
        left,
        color=color,
        hatch=hatch,
        alpha=0.4 if bar.end is None else 1.0,
        zorder=3 if hatch else 2,
    )


def _label_tool(
    axes: Any, bar: _Bar, middle: float, axis: _TimeAxis, next_bar: _Bar | None, waited: bool
) -> None:
    """Write a call's name right of its bar, or inside it if there is more room, if it fits."""
    card = picture_module()
    left, right = axis.extent(bar)
    limit = axis.position(next_bar.start) if next_bar is not None else 1.0
    text = f"{bar.name} {bar.detail}".strip()
    room_outside, room_inside = (
        card.letters_in(width * card.WIDTH) - 1 for width in (limit - right, right - left)
    )
    enough = min(len(text), 12) if waited else len(text)
    if inside := room_outside < enough and room_outside < room_inside:
        text_left, room = left + 0.006, room_inside
    else:
        text_left, room = right + 0.004, room_outside
    if room < len(bar.name):
        return
    axes.text(
        text_left,
        middle,
        card.short(text, room) if room > len(bar.name) + 4 else bar.name,
        va="center",
        size=8,
        color=card.CARD if inside and not waited else card.INK,
        bbox={"facecolor": card.CARD, "edgecolor": "none", "pad": 1.2}
        if inside and waited
        else None,
        zorder=4,
    )


def _connect_subagents(
    axes: Any, bars: Sequence[_Bar], lanes: Sequence[_Lane], tops: dict[str, float], axis: _TimeAxis
) -> None:
    """Draw lines from calls that started subagents to the subagents' lanes."""
    card = picture_module()
    rows = {
        (bar.session, bar.start, bar.detail): number
        for lane in lanes
        for number, row in enumerate(lane.rows)
        for bar in row
    }
    for bar in bars:
        if bar.kind != "tool" or bar.child not in tops:
            continue
        row = rows[bar.session, bar.start, bar.detail]
        start = tops[bar.session] + _HEAD + _STEP + (row + 0.75) * _TOOL
        x = axis.position(bar.start)
        axes.plot([x] * 2, [start, tops[bar.child] + 0.05], color=card.PURPLE, linewidth=1)


# -- texts -----------------------------------------------------------------------------------------


def _title(spans: pd.DataFrame) -> str:
    if not len(spans):
        return "Timeline: no activity"
    return f"Timeline of “{picture_module().short(spans['title'].iloc[0], 70)}”"


def _about(bars: Sequence[_Bar], axis: _TimeAxis, tz: str | None) -> str:
    from datetime import datetime

    if not bars:
        return ""
    time_zone = zone(tz)
    start = datetime.fromtimestamp(axis.first, time_zone)
    kinds = {"step": "step", "tool": "tool call"}
    counts = [(sum(b.kind == kind for b in bars), noun) for kind, noun in kinds.items()]
    waited = sum((b.end or b.start) - b.start for b in bars if b.kind == "waiting")
    texts = [
        f"{start:%Y-%m-%d %H:%M:%S} ({time_zone})",
        f"{_duration(round(axis.busy, 1))} of activity",
        *(pluralize(count, noun) for count, noun in counts),
    ]
    if waited:
        texts.append(f"{_duration(round(waited, 1))} of waiting for a reply")
    return " · ".join(texts)


def _legend(bars: Sequence[_Bar]) -> list[tuple[str, str, str]]:
    card = picture_module()
    entries = {
        "step, with its tools": (card.PALE, "", [b.kind == "step" for b in bars]),
        "tool call": (card.BLUE, "", [b.kind == "tool" and not b.child for b in bars]),
        "subagent": (card.PURPLE, "", [b.child is not None for b in bars]),
        "waiting for permission or an answer": (
            card.AMBER,
            "////",
            [b.kind == "waiting" for b in bars],
        ),
        "failed, aborted or declined": (card.RED, "", [_is_red(b) for b in bars]),
        "compaction": (card.GREY, "", [b.name == "compaction" for b in bars]),
    }
    return [(name, color, hatch) for name, (color, hatch, used) in entries.items() if any(used)]


def _is_red(bar: _Bar) -> bool:
    color = _step_color(bar) if bar.kind == "step" else _tool_color(bar)
    return bar.kind in ("step", "tool") and color == picture_module().RED


def _notes(spans: pd.DataFrame, bars: Sequence[_Bar]) -> list[str]:
    notes = []
    if earlier := spans.attrs.get("earlier", 0):
        notes.append(f"{pluralize(earlier, 'earlier turn')} not drawn.")
    if bars and not spans.attrs.get("waiting"):
        notes.append("The server does not store how long requests waited for a reply.")
    unended = sum(b.end is None for b in bars)
    if unended:
        notes.append(f"{unended} without an end time: pale, up to the last known time.")
    unstarted = int(spans["started"].isna().sum())
    if unstarted:
        notes.append(f"{unstarted} without a start time: not drawn.")
    return notes
