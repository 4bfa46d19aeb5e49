"""Charts of usage (bars) and of a session's context (tokens per step).

They are drawn from frames, so that every value in a chart can be checked. Only `picture` depends
on matplotlib, which is imported when the first chart is created. Unknown values have no bar; a
note below the chart counts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.client import Client, optional
from ..core.formatting import format_usd, pluralize
from ..core.model import Session
from .cache import Cache
from .optional_imports import import_extra
from .queries import messages, resolve_sessions, steps
from .times import PERIODS
from .usage_entries import GROUP_KEYS

if TYPE_CHECKING:
    import pandas as pd

    from .picture import Picture

_MAX_BARS = 20
_MAX_PARTS = 7  # of a stacked bar
_DAY = 86_400  # seconds
_LENGTHS = {"day": 1.0, "week": 7.0, "month": 30.0}  # days
_STEPS = {"day": "D", "week": "7D", "month": "MS"}
_MAX_TICKS = 8
_LABEL = 38  # characters
_MIN_SLOTS = 6  # periods or steps on an axis
_OTHERS = "all others"


def picture_module() -> Any:
    """Import the module that uses matplotlib.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    import_extra("matplotlib", "Charts", "plots")
    from . import picture

    return picture


# -- usage -----------------------------------------------------------------------------------------


def chart(usage: pd.DataFrame, value: str | None = None) -> Picture:
    """Draw a frame of `history.usage`: one bar per value of the first key, stacked by other keys.

    By day, week or month the bars are on a time axis; otherwise only the 20 largest are drawn. Up
    to 7 parts of stacked bars have their own colors.

    Args:
        usage: The frame, or some of its rows.
        value: The column to draw; default: cost, or calls if no cost is known (by tool).

    Returns:
        A matplotlib figure that displays itself in a notebook; `savefig` saves it.

    Raises:
        ValueError: There is no such numeric column, or it can't be stacked.
        MissingPackageError: Charts need matplotlib: `pip install 'opencode-magics[plots]'`.
    """
    keys = [name for name in usage.columns if name in GROUP_KEYS]
    keys = [name for name in keys if name != "provider" or "model" not in keys]
    value = _value(usage, value)
    times = [name for name in keys if name in PERIODS]
    first = (times or keys)[:1]
    rest = [name for name in keys if name not in first]
    if rest and value in (*_NOT_ADDITIVE, "gap"):
        raise ValueError(f"{value} can't be stacked: its parts don't add up. Group by one key only")
    table = _table(usage, value, first, rest)
    draw = _draw_over_time if times else _draw_bars
    return draw(_Captions(value, keys, usage, table), table)


def _value(usage: pd.DataFrame, value: str | None) -> str:
    if value is None:
        return "cost" if usage["cost"].notna().any() or usage["calls"].isna().all() else "calls"
    numbers = [n for n in usage.select_dtypes("number").columns if n not in GROUP_KEYS]
    if value not in numbers:
        raise ValueError(f"{value!r} can't be drawn; use one of: {', '.join(numbers)}")
    return value


def _table(usage: pd.DataFrame, value: str, first: list[str], rest: list[str]) -> pd.DataFrame:
    """Return values with one row per bar and one column per part; NA if unknown."""
    bars = _labels(usage, first[0]) if first else ["all"] * len(usage)
    parts = list(map(_join, zip(*(_labels(usage, name) for name in rest), strict=True)))
    values = usage[[]].assign(
        bar=bars, part=parts or [""] * len(usage), value=usage[value].astype("Float64")
    )
    sums = values.groupby(["bar", "part"], sort=False, dropna=False)["value"].sum(min_count=1)
    return sums.unstack("part")


def _join(names: Iterable[Any]) -> str:
    return " · ".join(map(str, names))


def _labels(usage: pd.DataFrame, name: str) -> list[Any]:
    """Return labels for a key's values: titles of sessions and ids of models, made unique."""
    if name == "model" and "provider" in usage:
        counts = usage["provider"].groupby(usage["model"]).transform("nunique")
        models = zip(usage["provider"], usage["model"], counts, strict=True)
        return [f"{provider}/{model}" if count > 1 else model for provider, model, count in models]
    if name in PERIODS or name not in ("session", "root") or "title" not in usage:
        return list(usage[name])
    ids, titles = usage[name].astype(str), usage["title"].fillna("").astype(str)
    counts = ids.groupby(titles).transform("nunique")
    return [
        f"{_short(title, _LABEL - 8)} …{id[-6:]}" if count > 1 or not title else title
        for id, title, count in zip(ids, titles, counts, strict=True)
    ]


def _short(text: object, length: int) -> str:
    short: str = picture_module().short(text, length)
    return short


class _Captions:
    """The texts of a usage chart."""

    def __init__(
        self, value: str, keys: Sequence[str], usage: pd.DataFrame, table: pd.DataFrame
    ) -> None:
        self.money = value in _MONEY
        self.unit = "USD" if self.money else _UNITS.get(value, "tokens")
        self.title = _TITLES.get(value, value.replace("_", " ").capitalize())
        if keys and keys != ["total"]:
            self.title += f" by {', '.join(keys[:-1])}{' and ' * (len(keys) > 1)}{keys[-1]}"
        self.total = table.sum().sum() if table.notna().any().any() else None
        self._usage, self._value = usage, value
        self.period = next((name for name in keys if name in PERIODS), "")
        self._zone = usage.attrs.get("tz") if {*keys} & {*PERIODS} else None

    def number(self, value: float) -> str:
        """Format a value as the label of a bar."""
        if self.money:
            return format_usd(value)
        return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"

    def ticks(self, values: Sequence[float]) -> list[str]:
        """Format values as tick labels, all with the same number of digits."""
        step = values[1] - values[0] if len(values) > 1 else 1.0
        digits = next((d for d in range(8) if math.isclose(round(step, d), step)), 8)
        return [f"{'$' * self.money}{value:,.{digits}f}" for value in values]

    @property
    def about(self) -> str:
        """The total, its unit, and the time zone of days."""
        if self._usage.empty:
            return "no usage in this period"
        total = "unknown" if self.total is None else self.number(self.total)
        unit = _ABOUT.get(self._value, self.unit)
        if self._value in _NOT_ADDITIVE:
            texts = [unit]
        elif self.money:
            texts = [f"{total} in total", unit]
        else:
            texts = [f"{total} {unit} in total"]
        return " · ".join([*texts, *([f"days in {self._zone}"] if self._zone else [])])

    def omitted_bars(self, rest: pd.Series) -> str:
        """A note about bars that are not drawn because there are too many."""
        total = "" if self._value in _NOT_ADDITIVE else f" ({self.number(float(rest.sum()))})"
        return f"{pluralize(len(rest), 'more bar')} not drawn{total}."

    @property
    def notes(self) -> list[str]:
        """Notes about values without a bar."""
        notes = []
        unknown = int(self._usage["unknown"].fillna(0).sum())
        if unknown and self._value not in _UNITS:
            notes.append(
                f"{pluralize(unknown, 'call')} of unknown usage (aborted, failed) not drawn."
            )
        missing = int(self._usage[self._value].isna().sum())
        if missing:
            name = self.title.partition(" by ")[0]
            notes.append(f"{name} of {pluralize(missing, 'row')} is unknown.")
        copied = int(self._usage["duplicates"].fillna(0).sum())
        if copied:
            notes.append(f"{pluralize(copied, 'call')} copied by forks left out.")
        return notes


# A session may count in several rows, and a subagent's cost in the rows of all its parents.
_NOT_ADDITIVE = ("cache_share", "cost_inclusive", "sessions", "subagents")
_MONEY = ("cost", "cost_listed", "cost_inclusive", "gap")
_UNITS = {"calls": "calls", "turns": "prompts", "errors": "failed calls", "sessions": "sessions"}
_UNITS |= {"unknown": "calls", "retries": "retries", "duplicates": "calls", "subagents": "sessions"}
_UNITS |= {"cache_share": "share of all prompt tokens, 0 to 1"}
_TITLES = {
    "cost": "Cost",
    "cost_listed": "Cost at list prices",
    "cost_inclusive": "Cost with subagents",
    "gap": "Listed minus stored cost",
    "input": "Input tokens (not from the cache)",
    "cache_share": "Share of prompt tokens from the cache",
}
_ABOUT = {"cost": "USD as the server stored it"}


class _Part(NamedTuple):
    """One part of the stacked bars: its name, its color, its value in each bar."""

    name: str
    color: str
    values: Any


def _parts(table: pd.DataFrame) -> list[_Part]:
    """Return the parts of the bars, the largest first; the smallest are merged if too many."""
    card = picture_module()
    sums = table.sum(min_count=0).sort_values(ascending=False, kind="stable")
    names = list(sums.index)
    separate = names if len(names) <= _MAX_PARTS else names[: _MAX_PARTS - 1]
    parts = [
        _Part(card.short(name, _LABEL), color, table[name])
        for name, color in zip(separate, card.COLORS, strict=False)
    ]
    if len(separate) < len(names):
        rest = table[names[len(separate) :]].sum(axis=1, min_count=1)
        parts.append(_Part(_OTHERS, card.GREY, rest))
    return parts


def _legend(parts: Sequence[_Part]) -> list[tuple[str, str, str]]:
    return [(p.name, p.color, "") for p in parts] if len(parts) > 1 else []


def _draw_bars(captions: _Captions, table: pd.DataFrame) -> Picture:
    """Draw horizontal bars, the longest at the top."""
    card = picture_module()
    sums = table.sum(axis=1, min_count=1).sort_values(ascending=False, kind="stable")
    table, rest = table.loc[sums.index[:_MAX_BARS]], sums.iloc[_MAX_BARS:]
    notes = captions.notes + ([captions.omitted_bars(rest)] if len(rest) else [])
    parts = _parts(table)
    figure: Picture
    with card.style():
        figure, axes = card.picture(
            0.35 + 0.3 * max(1, len(table)), captions.title, captions.about, _legend(parts), notes
        )
        rows = range(len(table))
        ends = [0.0] * len(table)
        for part in parts:
            widths = list(part.values.fillna(0.0).astype(float))
            axes.barh(rows, widths, 0.72, ends, color=part.color)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for row, (known, end) in enumerate(zip(table.notna().any(axis=1), ends, strict=True)):
            _label_bar(axes, row, end, captions.number(end) if known else "unknown", known)
        axes.set_yticks(rows, [card.short(name, _LABEL) for name in table.index])
        axes.set_ylim(len(table) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.set_xticks([])
        axes.set_xlim(min(0.0, *ends, 0.0), 1.12 * max(0.0, *ends, 0.0) or 1)
    return figure


def _label_bar(axes: Any, row: int, end: float, text: str, known: bool) -> None:
    card = picture_module()
    axes.annotate(
        text,
        (max(end, 0.0), row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=card.INK if known else card.FAINT,
        style="normal" if known else "italic",
    )


def _draw_over_time(captions: _Captions, table: pd.DataFrame) -> Picture:
    """Draw vertical bars on a time axis, where days without usage are gaps."""
    card = picture_module()
    dated = table[table.index.notna()].sort_index()
    notes = captions.notes
    if len(dated) < len(table):
        undated = table[table.index.isna()].sum().sum()
        notes.append(f"{captions.number(float(undated))} without a date not drawn.")
    parts = _parts(dated)
    days = [day.timestamp() / _DAY for day in dated.index]
    figure: Picture
    with card.style():
        figure, axes = card.picture(2.6, captions.title, captions.about, _legend(parts), notes)
        tops = [0.0] * len(days)
        for part in parts:
            heights = list(part.values.fillna(0.0).astype(float))
            axes.bar(days, heights, 0.8 * _LENGTHS[captions.period], tops, color=part.color)
            tops = [top + height for top, height in zip(tops, heights, strict=True)]
        _set_time_axis(axes, days, captions.period)
        axes.set_ylabel(captions.unit)
        ticks = [tick for tick in axes.get_yticks() if tick <= axes.get_ylim()[1]]
        axes.set_yticks(ticks, captions.ticks(ticks))
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        for day, top in zip(days, tops, strict=True) if len(days) <= 2 * _MIN_SLOTS else ():
            above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
            axes.annotate(captions.number(top), (day, top), **above)
    return figure


def _set_time_axis(axes: Any, days: Sequence[float], period: str) -> None:
    """Set the limits of a time axis and label at most eight periods."""
    import pandas as pd

    if not days:
        axes.set_xticks([])
        return
    length = _LENGTHS[period]
    margin = max(0.6 * length, (_MIN_SLOTS * length - (days[-1] - days[0])) / 2)
    axes.set_xlim(days[0] - margin, days[-1] + margin)
    first, last = (pd.Timestamp(day, unit="D") for day in (days[0], days[-1]))
    periods = pd.date_range(first, last, freq=_STEPS[period])
    ticks = periods[:: -(-len(periods) // _MAX_TICKS)]
    labels = [_tick_label(tick, period) for tick in ticks]
    axes.set_xticks([tick.timestamp() / _DAY for tick in ticks], labels)
    axes.set_xlabel(str(first.year) if first.year == last.year else f"{first.year} to {last.year}")


def _tick_label(tick: pd.Timestamp, period: str) -> str:
    name = f"{tick:%b}" if period == "month" else f"{tick:%b} {tick.day}"
    return f"week of {name}" if period == "week" else name


# -- context ---------------------------------------------------------------------------------------

_SOURCES = {
    "cache_read": "read from the cache",
    "cache_write": "written to the cache",
    "input": "not cached",
}
_MAX_SPACED = 80  # bars; more are drawn without gaps


def context(
    client: Client, session: Session | str, *, cache: Cache | bool = True, refresh: bool = False
) -> Picture:
    """Draw how a session's context grew: the prompt tokens of each step, cached and not cached.

    A step is one model call. Compactions (summaries of the conversation) are marked. Subagents have
    their own contexts and are left out.

    Args:
        client: The server.
        session: The session, by value, id or title.
        cache, refresh: As for `history.steps`.

    Returns:
        A matplotlib figure that displays itself in a notebook; `savefig` saves it.

    Raises:
        UnknownNameError: There is no such session, or more than one.
        MissingPackageError: Charts need matplotlib: `pip install 'opencode-magics[plots]'`.
    """
    picture_module()
    (chosen,) = resolve_sessions(client, [session])
    models = optional(lambda: client.models(chosen.directory), ())
    limits = {(m.provider, m.id): m.context for m in models}
    return context_from_frames(
        steps(client, [chosen], cache=cache, refresh=refresh),
        messages(client, [chosen], cache=cache, refresh=refresh),
        title=chosen.title,
        limits=limits,
    )


def context_from_frames(
    steps: pd.DataFrame,
    messages: pd.DataFrame,
    *,
    title: str = "",
    limits: Mapping[tuple[str, str], int | None] | None = None,
) -> Picture:
    """Draw the same chart from loaded frames.

    Args:
        steps, messages: The frames of one session.
        title: Title of the session.
        limits: Context window in tokens, by provider and model id.
    """
    card = picture_module()
    known = steps["context"].notna().to_numpy(dtype=bool)
    notes = (
        [f"{pluralize(int((~known).sum()), 'step')} of unknown usage: no bar."]
        if not all(known)
        else []
    )
    colors = dict(zip(_SOURCES, (card.PALE, card.AMBER, card.BLUE), strict=True))
    used = [name for name in _SOURCES if steps[name].fillna(0).sum() > 0] or ["input"]
    legend = [(_SOURCES[name], colors[name], "") for name in used]
    limit = _last_limit(steps, limits or {})
    figure: Picture
    with card.style():
        figure, axes = card.picture(
            2.8,
            f"Context of “{card.short(title, 60)}”" if title else "Context",
            _context_about(steps, limit),
            legend,
            notes,
        )
        numbers, tops = list(range(1, len(steps) + 1)), [0.0] * len(steps)
        for name in used:
            heights = list(steps[name].fillna(0).astype(float))
            width = 0.84 if len(steps) <= _MAX_SPACED else 1.0
            axes.bar(numbers, heights, width, tops, color=colors[name])
            tops = [top + height for top, height in zip(tops, heights, strict=True)]
        highest = max(tops, default=0.0) or 1.0
        for number, is_known in zip(numbers, known, strict=True):
            if not is_known:
                axes.annotate(
                    "?", (number, 0), xytext=(0, 3), textcoords="offset points", ha="center"
                )
        if limit and highest > limit / 3:
            axes.axhline(limit, color=card.RED, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(0, highest * 1.18)
        axes.set_xlim(0.4, max(len(steps), _MIN_SLOTS) + 0.6)
        _mark_prompts(axes, steps, messages, highest * 1.16)
        _mark_compactions(axes, steps, messages)
        axes.set_xlabel("step")
        axes.set_ylabel("tokens")
        axes.set_xticks(numbers[:: -(-len(numbers) // 15) or 1])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _last_limit(steps: pd.DataFrame, limits: Mapping[tuple[str, str], int | None]) -> int | None:
    """Return the context window of the model of the last step."""
    names = steps[["provider", "model"]].dropna().astype(str)
    return limits.get((names.iloc[-1, 0], names.iloc[-1, 1])) if len(names) else None


def _context_about(steps: pd.DataFrame, limit: int | None) -> str:
    texts = [pluralize(len(steps), "step")]
    highest = steps["context"].max() if steps["context"].notna().any() else None
    if highest is not None:
        share = f" of {limit:,} ({highest / limit:.0%})" if limit else ""
        texts.append(f"at most {highest:,} tokens{share}")
        sums = [steps[name].fillna(0).sum() for name in ("cache_read", "cache_write", "input")]
        if sum(sums):
            texts.append(f"{sums[0] / sum(sums):.0%} of all prompt tokens from the cache")
    return " · ".join(texts)


def _mark_prompts(axes: Any, steps: pd.DataFrame, messages: pd.DataFrame, height: float) -> None:
    """Mark the first step of each prompt, with as much of its text as fits."""
    card = picture_module()
    prompts = messages[(messages["role"] == "user") & ~messages["synthetic"].fillna(False)]
    firsts = [int((steps["created"] < created).sum()) + 1 for created in prompts["created"]]
    inches_per_step = (card.WIDTH - 1.2) / (max(len(steps), _MIN_SLOTS) + 0.2)
    ranges = pairwise([*firsts, len(steps) + 1])
    for text, (first, end) in zip(prompts["text"], ranges, strict=True):
        if first > len(steps):
            continue
        axes.axvline(first - 0.5, color=card.LINE, linewidth=1, zorder=0)
        room = card.letters_in((end - first) * inches_per_step) - 1
        if text and room > 5:
            axes.text(
                first - 0.44, height, card.short(text, room), va="top", size=8.5, color=card.FAINT
            )


def _mark_compactions(axes: Any, steps: pd.DataFrame, messages: pd.DataFrame) -> None:
    """Mark the steps after which the conversation was replaced by a summary."""
    card = picture_module()
    summaries = set(messages.loc[messages["compaction"].fillna(False), "message"])
    for number, message in enumerate(steps["message"], 1):
        if message in summaries:
            axes.axvline(number + 0.5, color=card.RED, linewidth=1.2)
            below = {"xytext": (4, -16), "textcoords": "offset points", "va": "top"}
            axes.annotate(
                "compacted",
                (number + 0.5, 1),
                xycoords=("data", "axes fraction"),
                color=card.RED,
                size=8.5,
                **below,
            )
