"""The words that every face uses: one line for a tool call, a request, a retry, a whole turn.

Unknown is said as unknown and never as 0. Nothing here knows HTML; `clean` is what makes text of a
model or a tool safe to print at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from ..core.formatting import format_usd, pluralize, seconds_between, shorten
from ..core.model import (
    Failure,
    FileDiff,
    Permission,
    Question,
    Session,
    ToolCall,
    Usage,
    total_usage,
)
from ..core.outcome import of_tool
from ..core.patches import changes_in
from ..core.turn import Retry, Turn
from ..sessions.transcript import Transcript
from .blocks import RequestState
from .diff_rows import visible_lines

LIMIT = 110  # characters of a one-line subject
LONGEST = 20_000  # characters of a text of which the middle is not left out
LONGEST_FAILURE = 4_000

# -- text ------------------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_HALF = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Text without anything that a terminal or a browser might obey.

    Escape sequences and control characters go (but for \n and \t), a half of a surrogate pair
    becomes U+FFFD. Of a growing text, what is kept only grows.
    """
    if not _ODD.search(text):
        return text
    text = _ESCAPE.sub("", text)
    text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    if _HALF.search(text):
        # The other half may still be on its way.
        text = text[:-1] if "\ud800" <= text[-1] <= "\udbff" else text
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def first_line(text: str, limit: int = LIMIT) -> str:
    """The first line of a text, cut to a limit; what is left out is shown as an ellipsis."""
    lines = clean(text).strip().split("\n", 1)
    line = lines[0].replace("\t", " ").rstrip()
    if len(line) > limit:
        return shorten(line, limit)
    return f"{line} …" if len(lines) > 1 else line


def seconds(value: float) -> str:
    """A duration: `51 ms`, `3.2 s`, `1 min 05 s`, `2 h 03 min`."""
    if value < 0.9995:
        return f"{max(0, round(value * 1000))} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def clock(moment: int) -> str:
    """A time of day, by the clock of this machine, from ms since the epoch."""
    return f"{datetime.fromtimestamp(moment / 1000):%H:%M:%S}"


def elapsed(start: int | None, end: int | None) -> str:
    """The time from start to end (ms); "" while it is unknown."""
    spent = seconds_between(start, end)
    return "" if spent is None else seconds(spent)


def at_least(cost: float | None, complete: bool) -> str:
    """What is known of a cost: `$0.0139`, `≥ $0.0139` where that is not all; of 0 nothing is."""
    if complete or not cost:
        return format_usd(cost if complete else None)
    return f"≥ {format_usd(cost)}"


# -- tool calls ------------------------------------------------------------------------------------

_TOLD_BY = ("filePath", "path", "pattern", "url", "query", "description", "name", "tool", "id")


def tool_subject(tool: ToolCall) -> str:
    """What a tool call is about, in one line: its command, else its title, else a telling input."""
    told = [tool.input.get("command"), tool.title, *(tool.input.get(k) for k in _TOLD_BY)]
    return first_line(
        visible_lines(next((t for t in told if isinstance(t, str) and t.strip()), ""))
    )


def tool_notes(tool: ToolCall, closed: bool = True) -> tuple[str, ...]:
    """What stands behind a tool's line: how it ended where that isn't plain, and how long."""
    how = of_tool(tool, closed)
    words = {"nonzero": f"exit {tool.exit}", "declined": "declined", "unfinished": "not finished"}
    return tuple(w for w in (words.get(how, ""), elapsed(tool.start, tool.end)) if w)


# -- requests, retries, failures -------------------------------------------------------------------


def asked(request: Permission | Question) -> str:
    """What a request asks, in one line."""
    if isinstance(request, Question):
        return first_line(" / ".join(i.question or i.header for i in request.items))
    action, what = first_line(request.action), first_line(visible_lines(request.subject))
    return f"{action} '{what}'" if request.command else f"{action} {what}".rstrip()


def request_line(request: RequestState) -> str:
    """A request as one static line: `Permission: bash 'git push' → once`."""
    if not request.reply:
        noun = "permission" if isinstance(request.request, Permission) else "an answer"
        return f"Waiting for {noun}{_whose(request)}: {asked(request.request)}"
    said = f" ({first_line(request.message)})" if request.message.strip() else ""
    return f"{request_title(request)} → {first_line(request.reply)}{said}"


def request_title(request: RequestState) -> str:
    """What is asked, and for whom: `Permission for subagent 'Tests': bash 'git push'`."""
    noun = "Permission" if isinstance(request.request, Permission) else "Question"
    return f"{noun}{_whose(request)}: {asked(request.request)}"


def always_scope(permission: Permission, means: str) -> str:
    """What "always" allows, the patterns or every action of the kind, and how far it reaches."""
    if not permission.saves:
        return "no more than this once, since there is nothing to save"
    patterns = ", ".join(permission.always) or permission.subject
    what = f"every {permission.action}" if patterns == "*" else visible_lines(patterns)
    return f"{what} {means}".rstrip()


def rejection_effects(subagent: str, also: int) -> tuple[str, str]:
    """What follows a rejection without and with a message.

    Args:
        subagent: The subagent that asks; "" for the agent itself.
        also: How many other permissions of its session wait. They are rejected, too; its questions
            are not (1.18.33).
    """
    more = f"; {pluralize(also, 'other waiting permission')} of it rejected too" if also else ""
    return f"{stop_effect(subagent)}{more}", f"the agent reads it and goes on{more}"


def stop_effect(subagent: str) -> str:
    """What follows when nothing is allowed or answered."""
    return "that subagent's task fails, and the parent goes on" if subagent else "the turn stops"


def _whose(request: RequestState) -> str:
    title = re.sub(r" \(@[\w-]+ subagent\)$", "", first_line(request.subagent, 80))
    return f" for subagent '{title}'" if title else ""


def retry_line(retry: Retry) -> str:
    """A retry: which, why, and when the next try comes (by this machine's clock)."""
    which = "Retry" if retry.attempt is None else f"Retry {retry.attempt}"
    why = first_line(retry.message, 300) or "the provider failed"
    when = datetime.fromtimestamp(retry.next / 1000) if retry.next else None
    return f"{which}: {why}" + (f" · next try at {when:%H:%M:%S}" if when else "")


def failure_line(failure: Failure) -> str:
    """Why something failed, in the server's words."""
    if failure.aborted:
        said = failure.message.strip()
        return "Aborted" if said in ("", "Aborted") else f"Aborted: {clean(said)}"
    status = f" (status {failure.status})" if failure.status else ""
    return clean(str(failure)) + status


# -- files -----------------------------------------------------------------------------------------


def signed_counts(additions: int | None, deletions: int | None) -> str:
    """Counts of lines: `+3 -1`; "" where nobody counted."""
    told = (("+", additions), ("-", deletions))
    return " ".join(f"{sign}{n}" for sign, n in told if n is not None)


def changed_files(diffs: Iterable[FileDiff]) -> dict[str, tuple[int | None, int | None]]:
    """Counts of lines by file, several edits of a file added up."""
    files: dict[str, tuple[int | None, int | None]] = {}
    for change in (c for d in diffs for c in changes_in(d)):
        plus, minus = files.get(change.name, (None, None))
        files[change.name] = (_sum(plus, change.additions), _sum(minus, change.deletions))
    return files


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


# -- the last line ---------------------------------------------------------------------------------


def summary(turn: Turn) -> str:
    """The last line: outcome, agent, model, steps, tools, tokens, cost, time."""
    return " · ".join(summary_parts(turn))


def summary_parts(turn: Turn) -> tuple[str, ...]:
    """The last line in parts, the outcome first."""
    running = turn.outcome == "running"
    usage = total_usage(u for u in _usages(turn) if u and not u.empty)
    least = "" if turn.cost_complete else "≥ "
    spent = () if running and usage is None else (_tokens(usage, least), _cost(turn, usage, least))
    took = () if turn.duration is None or running else (seconds(turn.duration),)
    model = (clean(str(turn.model)), turn.model.variant) if turn.model else ()
    who = (turn.agent, *model)
    done = (pluralize(turn.steps, "step"), pluralize(len(turn.tools), "tool"))
    state = "waiting for you" if running and turn.waiting else turn.outcome
    replay = ("replay",) if turn.replayed else ()
    return (state, *replay, *(clean(w) for w in who if w), *done, *spent, *took)


def _usages(turn: Turn) -> list[Usage | None]:
    return [turn.usage, *(s.usage for s in turn.subagents)]


def _tokens(usage: Usage | None, least: str) -> str:
    if usage is None or usage.total is None or (least and not usage.total):
        return "tokens unknown"
    kinds = {
        "in": usage.input,
        "out": usage.output,
        "reasoning": usage.reasoning,
        "cache read": usage.cache_read,
        "cache write": usage.cache_write,
    }
    told = ", ".join(
        f"{'?' if n is None else f'{n:,}'} {kind}" for kind, n in kinds.items() if n != 0
    )
    return f"{least}{pluralize(usage.total, 'token')} ({told})"


def _cost(turn: Turn, usage: Usage | None, least: str) -> str:
    text = at_least(usage.cost if usage else None, not least)
    helped = len(turn.subagents)
    return f"{text} (incl. {pluralize(helped, 'subagent')})" if helped else text


def prompt_text(turn: Turn) -> str:
    """The prompt of a turn, in full."""
    return clean(turn.question_text).strip() or "(a prompt without text)"


def omitted_turns(told: Transcript) -> str:
    """That earlier turns are not shown, and how to have them."""
    everything = told.left_out + len(told.turns)
    return f"{pluralize(told.left_out, 'earlier turn')} left out: --last {everything} shows all."


def session_line(session: Session) -> str:
    """A session in one line, without its title and id."""
    spent = session.usage.cost if session.usage else None
    parts = [session.directory, session.agent, str(session.model) if session.model else None]
    return " · ".join([*(first_line(p) for p in parts if p), format_usd(spent)])
