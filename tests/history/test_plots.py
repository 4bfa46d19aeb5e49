"""Pictures: they show the frames' values, count unknown ones, and look the same everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import matplotlib as mpl
import pandas as pd
import pytest
from IPython.core.error import UsageError
from matplotlib.patches import Rectangle
from support.generations import both_generations
from support.ipython_shell import Shell, is_short_error
from support.sample_turns import answer, permission, tool, turn

from opencode_magics import history
from opencode_magics.client.client import Client
from opencode_magics.core import columns
from opencode_magics.core.columns import Column, frame_from_rows
from opencode_magics.core.model import Message, ModelRef, Session, Text, Usage
from opencode_magics.core.turn import SettledRequest, Turn
from opencode_magics.errors import MissingPackageError
from opencode_magics.history import picture
from opencode_magics.history.frames import MESSAGES, STEPS, message_rows, step_rows
from opencode_magics.history.plots import context_from_frames
from opencode_magics.history.spans import SPANS, Span, _session_spans
from opencode_magics.history.sums import UsageEntry, sums_by_key
from opencode_magics.history.timeline import timeline_from_frame
from opencode_magics.history.times import PERIODS
from opencode_magics.history.usage import USAGE, UsageRow
from opencode_magics.sessions.run import prepare

DAY = 86_400_000
T0 = 1_764_374_400_000  # 2025-11-29, midnight UTC

SUMS = {n: c for n, c in USAGE.items() if n not in ("title", "cost_inclusive", "subagents")}


# -- contents of a picture -------------------------------------------------------------------------


def texts(figure: Any) -> list[str]:
    """Return every visible text: of axes, ticks, legend and margins."""
    free = [*figure.texts, *(t for a in figure.axes for t in a.texts)]
    ticks = [t for a in figure.axes for axis in (a.xaxis, a.yaxis) for t in axis.get_ticklabels()]
    legend = [t for box in figure.legends for t in box.get_texts()]
    return [t.get_text() for t in (*free, *ticks, *legend) if t.get_text()]


def bars(figure: Any) -> list[Rectangle]:
    return [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]


def colors(figure: Any) -> set[str]:
    return {mpl.colors.to_hex(p.get_facecolor()) for p in bars(figure) if p.get_width()}


def labels(figure: Any) -> list[str]:
    """Return the labels of the y axis from the top."""
    return [t.get_text() for t in figure.axes[0].get_yticklabels()]


def drawn(figure: Any) -> bytes:
    """Return the picture as PNG; a warning while drawing fails the test."""
    png, size = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert size["width"] == 900
    assert size["alt"] == figure.alt
    return png


# -- usage -----------------------------------------------------------------------------------------


def call(*key: Any, cost: float | None = 0.5, calls: int = 1, **fields: Any) -> UsageEntry:
    used = None if cost is None else Usage(10, 2, 0, 30, 0, cost)
    return UsageEntry(key, "ses_1", used, calls=calls, unknown=int(cost is None), **fields)


def usage(keys: str, *entries: UsageEntry) -> pd.DataFrame:
    """Build a usage frame like that of `history.usage`."""
    key_columns = {
        name: Column(
            columns.DAY if name in PERIODS else columns.TEXT, lambda r, n=n: r.sum.key[n], ""
        )
        for n, name in enumerate(keys.split(","))
    }
    return frame_from_rows({**key_columns, **SUMS}, [UsageRow(s) for s in sums_by_key(entries)])


def test_bars_are_the_first_key_and_their_parts_the_second() -> None:
    figure = history.chart(
        usage(
            "agent,model",
            call("plan", "small", cost=0.25),
            call("build", "large", cost=2.0),
            call("build", "small", cost=1.0),
        )
    )
    assert labels(figure) == ["build", "plan"]
    assert sorted(b.get_width() for b in bars(figure)) == [0, 0.25, 1, 2]
    assert "Cost by agent and model" in texts(figure)
    assert "$3.25 in total · USD as the server stored it" in texts(figure)
    assert {"large", "small", "$3.00", "$0.25"} <= {*texts(figure)}
    drawn(figure)


def test_days_have_a_time_axis_with_gaps_for_empty_ones() -> None:
    frame = usage("day,model", call(T0, "m"), call(T0 + 3 * DAY, "m", cost=0.1))
    frame.attrs["tz"] = "Europe/Berlin"
    figure = history.chart(frame)
    middles = [b.get_x() + b.get_width() / 2 for b in bars(figure)]
    assert middles[1] - middles[0] == pytest.approx(3)
    assert {"Nov 29", "Dec 2", "2025"} <= {*texts(figure), figure.axes[0].get_xlabel()}
    assert any("days in Europe/Berlin" in t for t in texts(figure))
    drawn(figure)


@pytest.mark.parametrize(
    ("period", "step", "name"),
    [("week", 7 * DAY, "week of Dec 6"), ("month", 31 * DAY, "Nov")],
)
def test_weeks_and_months_have_a_time_axis_too(period: str, step: int, name: str) -> None:
    first = T0 if period == "week" else int(datetime(2025, 10, 1).timestamp() * 1000)
    figure = history.chart(usage(period, call(first), call(first + step)))
    assert name in texts(figure)
    drawn(figure)


def test_usage_by_tool_is_drawn_as_calls() -> None:
    entry = UsageEntry(("bash",), "ses_1", calls=3, unknown=None)
    figure = history.chart(
        usage("tool", entry, UsageEntry(("read",), "ses_1", calls=5, unknown=None))
    )
    assert labels(figure) == ["read", "bash"]
    assert {"Calls by tool", "8 calls in total", "5", "3"} <= {*texts(figure)}


def test_unknown_costs_have_a_note_and_no_bar() -> None:
    figure = history.chart(
        usage("model", call("m", cost=1.0), call("n", cost=None), call("n", cost=None))
    )
    assert sorted(b.get_width() for b in bars(figure)) == [0, 1]
    assert "unknown" in texts(figure)
    assert "2 calls of unknown usage (aborted, failed) not drawn." in texts(figure)
    assert "Cost of 1 row is unknown." in texts(figure)
    assert "2 calls of unknown usage" in figure.alt


def test_a_cost_of_0_is_not_unknown() -> None:
    figure = history.chart(usage("model", call("free", cost=0.0)))
    assert "$0" in texts(figure)
    assert "unknown" not in texts(figure)


def test_a_note_counts_copies_left_out() -> None:
    figure = history.chart(usage("model", call("m"), call("m", cost=None, copies=4, calls=0)))
    assert "4 calls copied by forks left out." in texts(figure)


def test_a_note_counts_bars_not_drawn() -> None:
    entries = [call(f"p{n}", cost=float(n)) for n in range(1, 31)]
    figure = history.chart(usage("project", *entries))
    assert labels(figure) == [f"p{n}" for n in range(30, 10, -1)]
    assert "10 more bars not drawn ($55.00)." in texts(figure)


def test_parts_without_a_color_of_their_own_are_merged() -> None:
    figure = history.chart(usage("day,model", *(call(T0, f"m{n}", cost=1.0) for n in range(12))))
    assert "all others" in texts(figure)
    assert len(colors(figure)) == 7
    assert max(b.get_y() + b.get_height() for b in bars(figure)) == 12


def test_sessions_with_the_same_title_have_different_labels() -> None:
    frame = usage("session", call("ses_abcdef", cost=2.0), call("ses_uvwxyz"), call("ses_3"))
    frame.insert(1, "title", pd.array(["Practice", "Practice", "Work"], dtype="string"))
    assert labels(history.chart(frame)) == ["Practice …abcdef", "Practice …uvwxyz", "Work"]


def test_a_note_counts_usage_without_a_date() -> None:
    figure = history.chart(usage("day", call(T0), call(None, cost=0.25)))
    assert len(bars(figure)) == 1
    assert "$0.25 without a date not drawn." in texts(figure)


@pytest.mark.parametrize("keys", ["model", "day", "agent,model"])
def test_empty_usage_can_be_drawn(keys: str) -> None:
    figure = history.chart(usage(keys))
    assert "no usage in this period" in texts(figure)
    drawn(figure)


def test_a_total_is_one_bar() -> None:
    figure = history.chart(frame_from_rows(SUMS, [UsageRow(s) for s in sums_by_key([call()])]))
    assert [b.get_width() for b in bars(figure)] == [0.5]
    assert texts(figure)[0] == "Cost"


def test_any_numeric_column_can_be_drawn() -> None:
    frame = usage("model", call("m"))
    assert "30 tokens in total" in texts(history.chart(frame, "cache_read"))
    assert any("0 to 1" in t for t in texts(history.chart(frame, "cache_share")))
    assert any(t == "sessions" for t in texts(history.chart(frame, "sessions")))
    with pytest.raises(ValueError, match=r"'model' can't be drawn; use one of: cost, calls, "):
        history.chart(frame, "model")


@pytest.mark.parametrize("value", ["cache_share", "sessions", "gap"])
def test_columns_that_do_not_add_up_are_not_stacked(value: str) -> None:
    with pytest.raises(ValueError, match=f"{value} can't be stacked"):
        history.chart(usage("agent,model", call("build", "m")), value)


STRANGE = ["costs $5 or $6", "日本語", "a\nb\x00c\u202e", "x" * 300, "", "_{^}\\frac"]


@pytest.mark.parametrize("name", STRANGE)
def test_any_name_can_be_drawn(name: str) -> None:
    figure = history.chart(usage("agent,model", call(name, name), call("b", name), call("b", "c")))
    assert all(len(label) <= 38 for label in labels(figure))
    assert not any(t.get_parse_math() for t in figure.findobj(mpl.text.Text))
    drawn(figure)
    drawn(
        timeline_from_frame(spans(Span(Session("s", name), 0, "tool", name, 1, 9000, "ok", name)))
    )


# -- context ---------------------------------------------------------------------------------------


def step(at: int, tokens: int | None, read: int = 0, **fields: Any) -> Message:
    used = None if tokens is None else Usage(tokens, 5, 0, read, 0, 0.01)
    model = ModelRef("acme", "m-1")
    times = {"created": at * 1000, "completed": at * 1000 + 500}
    return Message(
        f"m{at}", "s", "assistant", **times, model=model, finish="stop", reported=used, **fields
    )


def prompt(at: int, text: str) -> Message:
    return Message(f"m{at}", "s", "user", at * 1000, parts=(Text(f"t{at}", text, 0, 0),))


def context(*messages: Message, **options: Any) -> Any:
    return context_from_frames(
        frame_from_rows(STEPS, step_rows(messages)),
        frame_from_rows(MESSAGES, message_rows(messages)),
        **options,
    )


def test_context_is_drawn_per_step_and_source() -> None:
    figure = context(
        prompt(0, "Fix the login test"),
        step(1, 1000),
        step(2, 200, 1000),
        prompt(3, "Why?"),
        step(4, 300, 1200),
        title="Work",
        limits={("acme", "m-1"): 2000},
    )
    tops: dict[float, float] = {}
    for bar in bars(figure):
        middle = round(bar.get_x() + bar.get_width() / 2)
        tops[middle] = max(tops.get(middle, 0), bar.get_y() + bar.get_height())
    assert tops == {1: 1000, 2: 1200, 3: 1500}
    assert {"not cached", "read from the cache", "Fix the login test", "Why?"} <= {*texts(figure)}
    assert "Context of “Work”" in texts(figure)
    assert any("at most 1,500 tokens of 2,000 (75%)" in t for t in texts(figure))
    assert [
        line.get_ydata()[0] for line in figure.axes[0].lines if len({*line.get_ydata()}) == 1
    ] == [2000]
    drawn(figure)


def test_a_step_of_unknown_usage_has_a_question_mark() -> None:
    figure = context(prompt(0, "hi"), step(1, 1000), step(2, None))
    assert "?" in texts(figure)
    assert "1 step of unknown usage: no bar." in texts(figure)


def test_a_compaction_is_marked_after_its_step() -> None:
    figure = context(step(1, 1000), step(2, 9000, summary=True), step(3, 100))
    (mark,) = [line for line in figure.axes[0].lines if line.get_color() == picture.RED]
    assert mark.get_xdata()[0] == 2.5
    assert "compacted" in texts(figure)


@pytest.mark.parametrize("count", [0, 1, 400])
def test_empty_and_long_sessions_can_be_drawn(count: int) -> None:
    figure = context(*(step(n, n) for n in range(1, count + 1)))
    assert len(bars(figure)) == count
    assert any(t.startswith(f"{count} step") for t in texts(figure))
    drawn(figure)


# -- timeline --------------------------------------------------------------------------------------

TOP, SUB = Session("ses_1", "Work"), Session("ses_2", "Look (@explore subagent)", parent="ses_1")


def spans(*rows: Span) -> pd.DataFrame:
    return frame_from_rows(SPANS, rows)


def span(kind: str, start: int, end: int | None, session: Session = TOP, **fields: Any) -> Span:
    fields = {"name": kind, "status": "completed", "detail": f"{kind} at {start}", **fields}
    end = end and T0 + end
    return Span(session, int(session is SUB), kind, start=T0 + start, end=end, **fields)


def positions(figure: Any, color: str) -> list[tuple[float, float]]:
    """Return x and y of the bars of a color, from left to right."""
    colored = [b for b in bars(figure) if mpl.colors.to_hex(b.get_facecolor()) == color]
    return sorted((round(b.get_x(), 4), round(b.get_y(), 2)) for b in colored)


def test_a_subagents_lane_is_below_the_call_that_started_it() -> None:
    figure = timeline_from_frame(
        spans(
            span("prompt", 0, 0, detail="Look around"),
            span("step", 0, 4000, status="succeeded"),
            span("tool", 1000, 3000, name="task", child=SUB.id),
            span("step", 1500, 2500, SUB, status="succeeded"),
            span("tool", 2000, 2500, SUB, name="read"),
        )
    )
    ((left, task),) = positions(figure, picture.PURPLE)
    ((_, read),) = positions(figure, picture.BLUE)
    assert left == 0.25
    assert task < read
    assert figure.axes[0].yaxis_inverted()
    assert {"▸ Look around", "↳ Look (@explore subagent)", "subagent"} <= {*texts(figure)}
    (line,) = [x for x in figure.axes[0].lines if x.get_color() == picture.PURPLE]
    assert line.get_xdata()[0] == pytest.approx(0.25)
    drawn(figure)


def test_simultaneous_calls_have_separate_rows() -> None:
    figure = timeline_from_frame(
        spans(*(span("tool", n, 1000 + n) for n in range(3)), span("tool", 1001, 1500))
    )
    rows = [y for _, y in positions(figure, picture.BLUE)]
    assert len({*rows}) == 3
    assert rows[3] == rows[0]


def test_waiting_is_drawn_over_its_call() -> None:
    frame = spans(
        span("tool", 0, 2000, name="bash", detail="git push"),
        span("waiting", 0, 1500, name="permission", status="once", detail="git push"),
    )
    frame.attrs["waiting"] = True
    figure = timeline_from_frame(frame)
    (wait,) = [b for b in bars(figure) if b.get_hatch()]
    assert wait.get_width() == pytest.approx(0.75)
    assert any("1.5 s of waiting for a reply" in t for t in texts(figure))
    assert "waiting for permission or an answer" in texts(figure)
    assert not any("does not store" in t for t in texts(figure))


def test_a_note_says_that_waiting_times_are_unknown() -> None:
    figure = timeline_from_frame(spans(span("tool", 0, 2000)))
    assert "The server does not store how long requests waited for a reply." in texts(figure)


def test_a_long_pause_is_cut_out_and_labeled() -> None:
    hour = 3_600_000
    figure = timeline_from_frame(spans(span("tool", 0, 2000), span("tool", hour, hour + 2000)))
    assert "1 h later" not in texts(figure)
    assert "59 min 58 s later" in texts(figure)
    first, second = (b.get_width() for b in bars(figure) if b.get_height() < 0.3)
    assert first == pytest.approx(second)
    assert first == pytest.approx(0.48)
    assert any("4 s of activity" in t for t in texts(figure))


def test_bars_without_an_end_are_pale_and_have_a_note() -> None:
    figure = timeline_from_frame(
        spans(span("tool", 0, None, status="running"), span("step", 0, 9000))
    )
    (pale,) = [b for b in bars(figure) if b.get_alpha() == 0.4]
    assert pale.get_width() == pytest.approx(1)
    assert "1 without an end time: pale, up to the last known time." in texts(figure)


def test_a_clock_running_backwards_breaks_nothing() -> None:
    figure = timeline_from_frame(spans(span("tool", 5000, 1000), span("step", 0, 9000)))
    assert all(b.get_width() > 0 for b in bars(figure))
    assert all(0 <= b.get_x() <= 1 for b in bars(figure))


@pytest.mark.parametrize("status", ["failed", "aborted", "interrupted"])
def test_failures_are_red(status: str) -> None:
    figure = timeline_from_frame(
        spans(span("step", 0, 1000, status=status), span("tool", 0, 9, status="error"))
    )
    assert len(positions(figure, picture.RED)) == 2
    assert "failed, aborted or declined" in texts(figure)


def test_an_empty_timeline_can_be_drawn() -> None:
    figure = timeline_from_frame(spans())
    assert texts(figure)[0] == "Timeline: no activity"
    drawn(figure)


def test_times_are_local_to_the_time_zone() -> None:
    figure = timeline_from_frame(spans(span("tool", 0, 2000)), tz="Asia/Tokyo")
    assert any("2025-11-29 09:00:00 (Asia/Tokyo)" in t for t in texts(figure))


# -- spans -----------------------------------------------------------------------------------------


def test_waiting_starts_with_its_call_and_lasts_as_measured() -> None:
    run = turn(answer(tool(start=1200, end=3000)))
    settled = (
        SettledRequest(permission(), "always", waited=0.5),
        SettledRequest(permission("x"), "once", waited=9.0),
        SettledRequest(permission(), "once", waited=0.75),
        SettledRequest(permission(), "reject"),
    )
    frame = frame_from_rows(SPANS, _session_spans(Session("ses_1"), 0, run.log, settled))
    waits = frame[frame["kind"] == "waiting"]
    assert list(frame["kind"]) == ["prompt", "step", "tool", "waiting", "waiting"]
    assert list(waits["name"]) == ["permission", "permission"]
    assert list(waits["status"]) == ["always", "once"]
    assert list(waits["duration"]) == [0.5, 0.75]
    assert list(waits["started"]) == [frame["started"][2], waits["ended"].iloc[0]]


@pytest.mark.parametrize("name", SPANS)
def test_help_and_page_list_every_column_of_spans(name: str) -> None:
    column = SPANS[name]
    page = (Path(__file__).parents[2] / "notebooks" / "columns.md").read_text(encoding="utf-8")
    assert f"{name} ({column.dtype}): {column.about}" in str(history.spans.__doc__)
    assert f"| `{name}` | {column.dtype} | {column.about} |" in page


# -- the same appearance everywhere ----------------------------------------------------------------

ALONE = """
import sys
from test_plots import call, usage
from opencode_magics import history
import matplotlib
settings = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != "backend"}
before = settings()
history.chart(usage("model", call("m")))._repr_png_()
assert before == settings()
assert "matplotlib.pyplot" not in sys.modules
"""


def test_no_global_state_is_used_or_changed() -> None:
    """Creating a picture neither imports `pyplot` nor changes a setting."""
    here = Path(__file__).parent
    path = [str(Path(history.__file__).parents[2]), str(here), str(here.parent)]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{ALONE}"], check=True
    )


def test_pictures_do_not_depend_on_the_current_style() -> None:
    plain = drawn(history.chart(usage("model", call("m"))))
    with mpl.rc_context({"figure.facecolor": "black", "font.size": 30, "text.color": "white"}):
        assert drawn(history.chart(usage("model", call("m")))) == plain


def test_a_picture_has_a_description_in_words(tmp_path: Path) -> None:
    figure = history.chart(usage("model", call("m")))
    assert repr(figure) == (
        "<Picture: Cost by model. $0.50 in total · USD as the server stored it>"
    )
    figure.savefig(tmp_path / "usage.svg")
    assert "<svg" in (tmp_path / "usage.svg").read_text(encoding="utf-8")


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors (WCAG)."""

    def luminance(color: str) -> float:
        linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(color))
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def rgb(color: str) -> Sequence[float]:
        return mpl.colors.to_rgb(color)

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("color", [picture.INK, picture.FAINT, picture.RED])
def test_texts_have_enough_contrast(color: str) -> None:
    assert contrast(color, picture.CARD) >= 4.5


@pytest.mark.parametrize("color", [picture.BLUE, picture.PURPLE, picture.RED])
def test_texts_on_bars_have_enough_contrast(color: str) -> None:
    assert contrast(color, picture.CARD) >= 4.5


# -- in a shell, on a real server ------------------------------------------------------------------


def run_turn(client: Client, session: Session, text: str) -> Turn:
    with prepare(client, session, text) as run:
        run.start()
        for now in run:
            for request in now.permissions:
                run.decide(request, "once")
        return run.turn


def test_a_live_turn_knows_how_long_its_subagent_waited(client: Client, session: Session) -> None:
    turn = run_turn(client, session, "#task #bash echo hi")
    frame = history.spans(client, turn)
    assert frame.attrs["waiting"] is True
    rows = zip(frame["depth"], frame["kind"], frame["name"], strict=True)
    assert [[depth, kind, "" if pd.isna(name) else name] for depth, kind, name in rows] == [
        [0, "prompt", ""],
        [0, "step", "practice/scripted"],
        [0, "tool", "task"],
        [0, "step", "practice/scripted"],
        [1, "prompt", ""],
        [1, "step", "practice/scripted"],
        [1, "tool", "bash"],
        [1, "waiting", "permission"],
        [1, "step", "practice/scripted"],
    ]
    bash, wait = frame.iloc[6], frame.iloc[7]
    assert 0 < wait["duration"] <= bash["duration"]
    stored = history.spans(client, session.id)
    assert stored.attrs["waiting"] is False
    assert list(stored["kind"]) == [k for k in frame["kind"] if k != "waiting"]
    drawn(history.timeline(client, turn))


def test_a_turn_has_only_its_own_spans(client: Client, session: Session) -> None:
    run_turn(client, session, "#task #text 3")
    second = run_turn(client, session, "#text 3")
    frame = history.spans(client, second)
    assert list(frame["kind"]) == ["prompt", "step"]
    assert len(history.spans(client, session)) == 8
    latest = history.spans(client, session, last=1)
    assert latest.drop(columns="detail").equals(frame.drop(columns="detail"))
    assert (latest.attrs["earlier"], history.spans(client, session).attrs["earlier"]) == (1, 0)
    assert "1 earlier turn not drawn" in history.timeline(client, session, last=1).alt


@both_generations
def test_a_turn_and_a_session_have_a_timeline(shell: Shell) -> None:
    title = uuid4().hex[:8]  # other tests create sessions on the same server
    shell.run(f"%oc_prompt --title {title} --permission once #bash echo hi")
    own = shell.run("%oc_timeline").value
    assert "of waiting for a reply" in own.alt
    shell.run("%oc_prompt --title two #text 3")
    other = shell.run(f"%oc_timeline {title}").value
    assert other.alt.startswith(f"Timeline of “{title}”")
    assert "The server does not store" in other.alt


@both_generations
def test_a_session_has_a_picture_of_its_context(shell: Shell) -> None:
    shell.run("%oc_prompt --title c --permission once #two")
    figure = shell.run("%oc_context").value
    assert figure.alt.startswith("Context of “c”. 2 steps · at most ")
    drawn(figure)


def test_plotted_usage_is_displayed_and_returned(shell: Shell) -> None:
    shell.run("%oc_prompt --new #text 3")
    session = shell.run("%oc_session").value
    result = shell.run(f"frame = %oc_usage --by model --session {session.id} --plot")
    assert "without deleted sessions" in result.text
    (output,) = result.outputs
    assert output.data["image/png"]
    assert output.data["text/plain"].startswith("<Picture: Cost by model. $0.0")
    assert shell.run("len(frame)").value == 1


@pytest.mark.parametrize("line", ["%oc_usage --plot", "%oc_timeline", "%oc_context"])
def test_without_matplotlib_the_error_says_what_to_install(
    shell: Shell, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("%oc_new x")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    failed = shell.fails(line)
    assert isinstance(failed.error, MissingPackageError)
    assert is_short_error(failed)
    assert failed.lines == [
        "MissingPackageError: Charts need matplotlib, which is not installed.",
        "Install it with: pip install 'opencode-magics[plots]'",
    ]


def test_a_broken_matplotlib_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opencode_magics.history.optional_imports import import_extra

    (tmp_path / "broken_package.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        import_extra("broken_package", "Pictures", "plots")


@pytest.mark.parametrize("line", ["%oc_timeline", "%oc_context"])
def test_without_a_session_the_error_says_what_to_do(shell: Shell, line: str) -> None:
    failed = shell.fails(line)
    assert isinstance(failed.error, UsageError)
    assert "%oc_new" in failed.text


def test_a_number_of_turns_below_1_is_refused(shell: Shell) -> None:
    shell.run("%oc_new x")
    failed = shell.fails("%oc_timeline x --last 0")
    assert isinstance(failed.error, UsageError)
    assert "--last must be at least 1." in failed.text
