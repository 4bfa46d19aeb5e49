"""Pictures of what agents used and did: usage as bars, and how a session's context grew.

They are drawn from the frames, so that what can be seen can be checked; nothing but `picture`
knows matplotlib, which is imported when the first picture is made. What is not known has no bar,
and the picture says so.
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

_BARS = 20  # what more there is, is told in words
_STACKED = 7
_DAY = 86_400  # seconds
_LENGTHS = {"day": 1.0, "week": 7.0, "month": 30.0}  # days
_STEPS = {"day": "D", "week": "7D", "month": "MS"}
_TICKS = 8
_LABEL = 38  # letters
_FEWEST = 6  # periods on a time axis
_OTHERS = "all others"


def picture_module() -> Any:
    """The module that draws.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    import_extra("matplotlib", "Pictures", "plots")
    from . import picture

    return picture


# -- usage -----------------------------------------------------------------------------------------


def chart(usage: pd.DataFrame, value: str | None = None) -> Picture:
    """A frame of `history.usage` as a picture: bars for the first key, stacked by the others.

    By day, week or month the bars stand on a time axis; else there are at most 20, the largest.
    Up to 7 parts of bars have colours of their own.

    Args:
        usage: The frame, or some of its lines.
        value: Which column; default: cost, or calls where no cost is known (by tool).

    Returns:
        A matplotlib figure; it shows itself in a notebook, and `savefig` writes it.

    Raises:
        ValueError: There is no such column of numbers, or it can't be stacked.
        MissingPackageError: It needs matplotlib: `pip install 'opencode-magics[plots]'`.
    """
    keys = [name for name in usage.columns if name in GROUP_KEYS]
    keys = [name for name in keys if name != "provider" or "model" not in keys]
    value = _value(usage, value)
    times = [name for name in keys if name in PERIODS]
    first = (times or keys)[:1]
    rest = [name for name in keys if name not in first]
    if rest and value in (*_NO_SUMS, "gap"):
        raise ValueError(f"{value} can't be stacked, its parts don't add up: draw it by one key")
    table = _table(usage, value, first, rest)
    draw = _over_time if times else _across
    return draw(_Words(value, keys, usage, table), table)


def _value(usage: pd.DataFrame, value: str | None) -> str:
    if value is None:
        return "cost" if usage["cost"].notna().any() or usage["calls"].isna().all() else "calls"
    numbers = [n for n in usage.select_dtypes("number").columns if n not in GROUP_KEYS]
    if value not in numbers:
        raise ValueError(f"{value!r} can't be drawn; there are: {', '.join(numbers)}")
    return value


def _table(usage: pd.DataFrame, value: str, first: list[str], rest: list[str]) -> pd.DataFrame:
    """Values, a row per bar and a column per part; NA where nothing is known."""
    labels = _labels(usage, first[0]) if first else ["all"] * len(usage)
    parts = list(map(_joined, zip(*(_labels(usage, name) for name in rest), strict=True)))
    told = usage[[]].assign(
        bar=labels, part=parts or [""] * len(usage), value=usage[value].astype("Float64")
    )
    sums = told.groupby(["bar", "part"], sort=False, dropna=False)["value"].sum(min_count=1)
    return sums.unstack("part")


def _joined(names: Iterable[Any]) -> str:
    return " · ".join(map(str, names))


def _labels(usage: pd.DataFrame, name: str) -> list[Any]:
    """What a key's values are called: sessions by titles, models by ids, as far as these differ."""
    if name == "model" and "provider" in usage:
        providers = usage["provider"].groupby(usage["model"]).transform("nunique")
        named = zip(usage["provider"], usage["model"], providers, strict=True)
        return [f"{provider}/{model}" if many > 1 else model for provider, model, many in named]
    if name in PERIODS or name not in ("session", "root") or "title" not in usage:
        return list(usage[name])
    ids, titles = usage[name].astype(str), usage["title"].fillna("").astype(str)
    owners = ids.groupby(titles).transform("nunique")
    return [
        f"{_short(title, _LABEL - 8)} …{id[-6:]}" if many > 1 or not title else title
        for id, title, many in zip(ids, titles, owners, strict=True)
    ]


def _short(text: object, length: int) -> str:
    short: str = picture_module().short(text, length)
    return short


class _Words:
    """What a picture of usage says."""

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
        """A value as it stands beside a bar."""
        if self.money:
            return format_usd(value)
        return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"

    def ticks(self, places: Sequence[float]) -> list[str]:
        """Values as they stand along an axis, all with the same digits."""
        step = places[1] - places[0] if len(places) > 1 else 1.0
        digits = next((d for d in range(8) if math.isclose(round(step, d), step)), 8)
        return [f"{'$' * self.money}{place:,.{digits}f}" for place in places]

    @property
    def about(self) -> str:
        """What it comes to, in which unit, by whose calendar."""
        if self._usage.empty:
            return "nothing in this time"
        whole = "unknown" if self.total is None else self.number(self.total)
        unit = _ABOUT.get(self._value, self.unit)
        if self._value in _NO_SUMS:
            told = [unit]
        elif self.money:
            told = [f"{whole} in all", unit]
        else:
            told = [f"{whole} {unit} in all"]
        return " · ".join([*told, *([f"days of {self._zone}"] if self._zone else [])])

    def more(self, rest: pd.Series) -> str:
        """What is not drawn for want of room."""
        whole = "" if self._value in _NO_SUMS else f", of {self.number(float(rest.sum()))},"
        return f"{pluralize(len(rest), 'bar')} more{whole} not drawn."

    @property
    def notes(self) -> list[str]:
        """What has no bar, and why."""
        told = []
        blind = int(self._usage["unknown"].fillna(0).sum())
        if blind and self._value not in _UNITS:
            told.append(f"{pluralize(blind, 'call')} of unknown usage (stopped, failed) in no bar.")
        lost = int(self._usage[self._value].isna().sum())
        if lost:
            told.append(
                f"{self.title.partition(' by ')[0]} of {pluralize(lost, 'line')} is unknown."
            )
        copied = int(self._usage["duplicates"].fillna(0).sum())
        if copied:
            told.append(f"{pluralize(copied, 'call')} that forks copied left out.")
        return told


# A session may have a part in several lines, and subagents are in those above them.
_NO_SUMS = ("cache_share", "cost_inclusive", "sessions", "subagents")
_MONEY = ("cost", "cost_listed", "cost_inclusive", "gap")
_UNITS = {"calls": "calls", "turns": "prompts", "errors": "failed calls", "sessions": "sessions"}
_UNITS |= {"unknown": "calls", "retries": "retries", "duplicates": "calls", "subagents": "sessions"}
_UNITS |= {"cache_share": "part of all prompt tokens, 0 to 1"}
_TITLES = {
    "cost": "Cost",
    "cost_listed": "Cost by the price list",
    "cost_inclusive": "Cost with subagents",
    "gap": "Listed less stored cost",
    "input": "Input tokens (not from the cache)",
    "cache_share": "Part of prompts from the cache",
}
_ABOUT = {"cost": "USD as the server stored it"}


class _Part(NamedTuple):
    """A part of all bars: its name, its colour, its values."""

    name: str
    colour: str
    values: Any


def _parts(table: pd.DataFrame) -> list[_Part]:
    """The parts of bars, the largest first; what is too many stands together at the end."""
    card = picture_module()
    sums = table.sum(min_count=0).sort_values(ascending=False, kind="stable")
    names = list(sums.index)
    own = names if len(names) <= _STACKED else names[: _STACKED - 1]
    parts = [
        _Part(card.short(name, _LABEL), card.COLOURS[at], table[name])
        for at, name in enumerate(own)
    ]
    if len(own) < len(names):
        rest = table[names[len(own) :]].sum(axis=1, min_count=1)
        parts.append(_Part(_OTHERS, card.GREY, rest))
    return parts


def _legend(parts: Sequence[_Part]) -> list[tuple[str, str, str]]:
    return [(p.name, p.colour, "") for p in parts] if len(parts) > 1 else []


def _across(words: _Words, table: pd.DataFrame) -> Picture:
    """Bars from left to right, the longest at the top."""
    card = picture_module()
    sums = table.sum(axis=1, min_count=1).sort_values(ascending=False, kind="stable")
    table, rest = table.loc[sums.index[:_BARS]], sums.iloc[_BARS:]
    notes = words.notes + ([words.more(rest)] if len(rest) else [])
    parts = _parts(table)
    made: Picture
    with card.style():
        made, axes = card.picture(
            0.35 + 0.3 * max(1, len(table)), words.title, words.about, _legend(parts), notes
        )
        places = range(len(table))
        ends = [0.0] * len(table)
        for part in parts:
            widths = list(part.values.fillna(0.0).astype(float))
            axes.barh(places, widths, 0.72, ends, color=part.colour)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for at, (known, end) in enumerate(zip(table.notna().any(axis=1), ends, strict=True)):
            _beside(axes, at, end, words.number(end) if known else "unknown", known)
        axes.set_yticks(places, [card.short(name, _LABEL) for name in table.index])
        axes.set_ylim(len(table) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.set_xticks([])
        axes.set_xlim(min(0.0, *ends, 0.0), 1.12 * max(0.0, *ends, 0.0) or 1)
    return made


def _beside(axes: Any, at: int, end: float, text: str, known: bool) -> None:
    card = picture_module()
    axes.annotate(
        text,
        (max(end, 0.0), at),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=card.INK if known else card.FAINT,
        style="normal" if known else "italic",
    )


def _over_time(words: _Words, table: pd.DataFrame) -> Picture:
    """Bars on a time axis, so that days without work are seen."""
    card = picture_module()
    known = table[table.index.notna()].sort_index()
    notes = words.notes
    if len(known) < len(table):
        undated = table[table.index.isna()].sum().sum()
        notes.append(f"{words.number(float(undated))} without a date not shown.")
    parts = _parts(known)
    days = [day.timestamp() / _DAY for day in known.index]
    made: Picture
    with card.style():
        made, axes = card.picture(2.6, words.title, words.about, _legend(parts), notes)
        tops = [0.0] * len(days)
        for part in parts:
            heights = list(part.values.fillna(0.0).astype(float))
            axes.bar(days, heights, 0.8 * _LENGTHS[words.period], tops, color=part.colour)
            tops = [top + height for top, height in zip(tops, heights, strict=True)]
        _time_axis(axes, days, words.period)
        axes.set_ylabel(words.unit)
        places = [place for place in axes.get_yticks() if place <= axes.get_ylim()[1]]
        axes.set_yticks(places, words.ticks(places))
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        for day, top in zip(days, tops, strict=True) if len(days) <= 2 * _FEWEST else ():
            above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
            axes.annotate(words.number(top), (day, top), **above)
    return made


def _time_axis(axes: Any, days: Sequence[float], period: str) -> None:
    """Some of the periods that there were, by name."""
    import pandas as pd

    if not days:
        axes.set_xticks([])
        return
    length = _LENGTHS[period]
    more = max(0.6 * length, (_FEWEST * length - (days[-1] - days[0])) / 2)
    axes.set_xlim(days[0] - more, days[-1] + more)
    first, last = (pd.Timestamp(day, unit="D") for day in (days[0], days[-1]))
    every = pd.date_range(first, last, freq=_STEPS[period])
    ticks = every[:: -(-len(every) // _TICKS)]
    axes.set_xticks([tick.timestamp() / _DAY for tick in ticks], [_day(t, period) for t in ticks])
    axes.set_xlabel(str(first.year) if first.year == last.year else f"{first.year} to {last.year}")


def _day(tick: pd.Timestamp, period: str) -> str:
    name = f"{tick:%b}" if period == "month" else f"{tick:%b} {tick.day}"
    return f"week of {name}" if period == "week" else name


# -- context ---------------------------------------------------------------------------------------

_KINDS = {"cache_read": "read from the cache", "cache_write": "written to it", "input": "new"}
_EDGES = 80  # with more bars than that they touch


def context(
    client: Client, session: Session | str, *, cache: Cache | bool = True, refresh: bool = False
) -> Picture:
    """How the context of a session grew: the prompt tokens of each step, by where they came from.

    A step is one call of a model. Where the conversation was summed up is marked. Subagents have
    contexts of their own, and are left out.

    Args:
        client: The server.
        session: Which, by value, id or title.
        cache, refresh: As for `history.steps`.

    Returns:
        A matplotlib figure; it shows itself in a notebook, and `savefig` writes it.

    Raises:
        UnknownNameError: There is no such session, or more than one.
        MissingPackageError: It needs matplotlib: `pip install 'opencode-magics[plots]'`.
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
    """The same, of frames that are here already.

    Args:
        steps, messages: Those of one session.
        title: What it is called.
        limits: How many tokens fit into the context of a model, by provider and id.
    """
    card = picture_module()
    known = steps["context"].notna().to_numpy(dtype=bool)
    notes = (
        [f"{pluralize(int((~known).sum()), 'step')} of unknown usage: no bar."]
        if not all(known)
        else []
    )
    colours = dict(zip(_KINDS, (card.PALE, card.AMBER, card.BLUE), strict=True))
    used = [name for name in _KINDS if steps[name].fillna(0).sum() > 0] or ["input"]
    legend = [(_KINDS[name], colours[name], "") for name in used]
    limit = _limit(steps, limits or {})
    made: Picture
    with card.style():
        made, axes = card.picture(
            2.8,
            f"Context of “{card.short(title, 60)}”" if title else "Context",
            _context_about(steps, limit),
            legend,
            notes,
        )
        places, bottom = list(range(1, len(steps) + 1)), [0.0] * len(steps)
        for name in used:
            heights = list(steps[name].fillna(0).astype(float))
            width = 0.84 if len(steps) <= _EDGES else 1.0
            axes.bar(places, heights, width, bottom, color=colours[name])
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        most = max(bottom, default=0.0) or 1.0
        for place, told in zip(places, known, strict=True):
            if not told:
                axes.annotate(
                    "?", (place, 0), xytext=(0, 3), textcoords="offset points", ha="center"
                )
        if limit and most > limit / 3:
            axes.axhline(limit, color=card.RED, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(0, most * 1.18)
        axes.set_xlim(0.4, max(len(steps), _FEWEST) + 0.6)
        _mark_prompts(axes, steps, messages, most * 1.16)
        _mark_compactions(axes, steps, messages)
        axes.set_xlabel("step")
        axes.set_ylabel("tokens")
        axes.set_xticks(places[:: -(-len(places) // 15) or 1])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return made


def _limit(steps: pd.DataFrame, limits: Mapping[tuple[str, str], int | None]) -> int | None:
    """What fits into the context of the model that was used last."""
    names = steps[["provider", "model"]].dropna().astype(str)
    return limits.get((names.iloc[-1, 0], names.iloc[-1, 1])) if len(names) else None


def _context_about(steps: pd.DataFrame, limit: int | None) -> str:
    told = [pluralize(len(steps), "step")]
    most = steps["context"].max() if steps["context"].notna().any() else None
    if most is not None:
        whole = f" of {limit:,} ({most / limit:.0%})" if limit else ""
        told.append(f"at most {most:,} tokens{whole}")
        parts = [steps[name].fillna(0).sum() for name in ("cache_read", "cache_write", "input")]
        if sum(parts):
            told.append(f"{parts[0] / sum(parts):.0%} of all prompt tokens from the cache")
    return " · ".join(told)


def _mark_prompts(axes: Any, steps: pd.DataFrame, messages: pd.DataFrame, height: float) -> None:
    """Where each prompt begins, and its words as far as there is room."""
    card = picture_module()
    asked = messages[(messages["role"] == "user") & ~messages["synthetic"].fillna(False)]
    firsts = [int((steps["created"] < created).sum()) + 1 for created in asked["created"]]
    inches = (card.WIDTH - 1.2) / (max(len(steps), _FEWEST) + 0.2)
    stretches = pairwise([*firsts, len(steps) + 1])
    for text, (first, end) in zip(asked["text"], stretches, strict=True):
        if first > len(steps):
            continue
        axes.axvline(first - 0.5, color=card.LINE, linewidth=1, zorder=0)
        room = card.fitting_letters((end - first) * inches) - 1
        if text and room > 5:
            axes.text(
                first - 0.44, height, card.short(text, room), va="top", size=8.5, color=card.FAINT
            )


def _mark_compactions(axes: Any, steps: pd.DataFrame, messages: pd.DataFrame) -> None:
    """Where the conversation was summed up, to make room."""
    card = picture_module()
    summaries = set(messages.loc[messages["compaction"].fillna(False), "message"])
    for place, message in enumerate(steps["message"], 1):
        if message in summaries:
            axes.axvline(place + 0.5, color=card.RED, linewidth=1.2)
            below = {"xytext": (4, -16), "textcoords": "offset points", "va": "top"}
            axes.annotate(
                "summed up",
                (place + 0.5, 1),
                xycoords=("data", "axes fraction"),
                color=card.RED,
                size=8.5,
                **below,
            )
