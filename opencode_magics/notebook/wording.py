"""Texts that all views share: one line for a tool call, a request, a retry or a turn.

Unknown values read "unknown", never 0. Nothing here is HTML; `clean` makes the text of a model or
a tool safe to print.
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
from ..core.outcome import is_granted, tool_outcome
from ..core.patches import changes_in
from ..core.turn import Retry, Turn
from ..sessions.transcript import Transcript
from .blocks import RequestState
from .diff_rows import visible_lines

LIMIT = 110  # characters of a one-line subject
LONGEST = 20_000  # characters; the middle of a longer text is left out
LONGEST_FAILURE = 4_000

# -- text ------------------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colors, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Remove everything that a terminal or a browser might interpret.

    Escape sequences and control characters except \n and \t are removed; a lone surrogate becomes
    U+FFFD. If a text grows, its cleaned form only grows, too.
    """
    if not _UNCLEAN.search(text):
        return text
    text = _ESCAPE.sub("", text)
    text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    if _SURROGATE.search(text):
        # The second half of the pair may not have arrived yet.
        text = text[:-1] if "\ud800" <= text[-1] <= "\udbff" else text
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def first_line(text: str, limit: int = LIMIT) -> str:
    """Return the first line of a text, at most `limit` characters; an ellipsis marks a cut."""
    lines = clean(text).strip().split("\n", 1)
    line = lines[0].replace("\t", " ").rstrip()
    if len(line) > limit:
        return shorten(line, limit)
    return f"{line} …" if len(lines) > 1 else line


def seconds(value: float) -> str:
    """Format a duration: `51 ms`, `3.2 s`, `1 min 05 s`, `2 h 03 min`."""
    if value < 0.9995:
        return f"{max(0, round(value * 1000))} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def clock(moment: int) -> str:
    """Format milliseconds since the epoch as a local time of day."""
    return f"{datetime.fromtimestamp(moment / 1000):%H:%M:%S}"


def elapsed(start: int | None, end: int | None) -> str:
    """Format the time from start to end (ms); "" while it is unknown."""
    duration = seconds_between(start, end)
    return "" if duration is None else seconds(duration)


def at_least(cost: float | None, complete: bool) -> str:
    """Format a cost: `$0.0139`, or `≥ $0.0139` if it is incomplete; an incomplete 0 is unknown."""
    if complete or not cost:
        return format_usd(cost if complete else None)
    return f"≥ {format_usd(cost)}"


# -- tool calls ------------------------------------------------------------------------------------

_SUBJECTS = ("filePath", "path", "pattern", "url", "query", "description", "name", "tool", "id")


def tool_subject(tool: ToolCall) -> str:
    """Return the subject of a tool call in one line: its command, else its title, else an input."""
    files = ", ".join(diff.name for diff in tool.diffs) if "patchText" in tool.input else ""
    values = [tool.input.get("command"), files, tool.title, *map(tool.input.get, _SUBJECTS)]
    subject = next((v for v in values if isinstance(v, str) and v.strip()), "")
    workdir = tool.input.get("workdir")
    where = f" in {first_line(visible_lines(workdir), 60)}" if isinstance(workdir, str) else ""
    return f"{first_line(visible_lines(subject))}{where}"


def tool_notes(tool: ToolCall, closed: bool = True) -> tuple[str, ...]:
    """Return the notes after a tool's line: an unusual end, and the duration."""
    state = tool_outcome(tool, closed)
    ends = {"nonzero": f"exit {tool.exit}", "declined": "declined", "unfinished": "not finished"}
    return tuple(note for note in (ends.get(state, ""), elapsed(tool.start, tool.end)) if note)


# -- requests, retries, failures -------------------------------------------------------------------


def request_text(request: Permission | Question) -> str:
    """Return the content of a request in one line."""
    if isinstance(request, Question):
        return first_line(" / ".join(i.question or i.header for i in request.items))
    action = first_line(request.action)
    if request.command is None:
        return f"{action} {first_line(visible_lines(request.subject))}".rstrip()
    return f"{action} {_command_in(request.command, request.workdir)}"


def _command_in(command: str, workdir: str) -> str:
    quoted = f"'{first_line(visible_lines(command))}'"
    return f"{quoted} in {first_line(visible_lines(workdir))}" if workdir else quoted


def request_line(request: RequestState) -> str:
    """Return a request in one line: `Permission: bash 'git push' → once`."""
    if not request.reply:
        noun = "permission" if isinstance(request.request, Permission) else "an answer"
        return f"Waiting for {noun}{_owner(request)}: {request_text(request.request)}"
    if request.together:
        verb = "allowed" if is_granted(request.reply) else "rejected"
        other = first_line(visible_lines(request.together), 60)
        return f"{request_title(request)} → {verb} together with {other}"
    message = f" ({first_line(request.message)})" if request.message.strip() else ""
    return f"{request_title(request)} → {first_line(request.reply)}{message}"


def request_title(request: RequestState) -> str:
    """Return the title of a request: `Permission for subagent 'Tests': bash 'git push'`."""
    noun = "Permission" if isinstance(request.request, Permission) else "Question"
    return f"{noun}{_owner(request)}: {request_text(request.request)}"


def always_scope(permission: Permission, scope: str) -> str:
    """Describe what "always" allows: the patterns or every such action, and the server's scope."""
    if not permission.saves:
        return "only this once, since there is no pattern to save"
    patterns = ", ".join(permission.always or permission.patterns)
    actions = f"every {permission.action}" if patterns == "*" else visible_lines(patterns)
    return f"{actions} {scope}".rstrip()


def rejection_effects(subagent: str, also: int) -> tuple[str, str]:
    """Describe the effects of a rejection without and with a message.

    Args:
        subagent: The subagent that asks; "" for the agent itself.
        also: Number of other waiting permissions of its session. They are rejected, too; its
            questions are not (1.18.33).
    """
    others = pluralize(also, "other waiting permission")
    more = f"; also rejects {others} of this session" if also else ""
    return f"{stop_effect(subagent)}{more}", f"the agent reads it and continues{more}"


def stop_effect(subagent: str) -> str:
    """Describe the effect of a rejection or dismissal."""
    return "that subagent's task fails, and the parent continues" if subagent else "the turn stops"


def _owner(request: RequestState) -> str:
    title = re.sub(r" \(@[\w-]+ subagent\)$", "", first_line(request.subagent, 80))
    return f" for subagent '{title}'" if title else ""


def retry_line(retry: Retry) -> str:
    """Return a retry in one line: its number, the reason, the local time of the next try."""
    number = "Retry" if retry.attempt is None else f"Retry {retry.attempt}"
    reason = first_line(retry.message, 300) or "the provider failed"
    time = datetime.fromtimestamp(retry.next / 1000) if retry.next else None
    return f"{number}: {reason}" + (f" · next try at {time:%H:%M:%S}" if time else "")


def failure_line(failure: Failure) -> str:
    """Return the server's message about a failure, with its status."""
    if failure.aborted:
        message = failure.message.strip()
        return "Aborted" if message in ("", "Aborted") else f"Aborted: {clean(message)}"
    status = f" (status {failure.status})" if failure.status else ""
    return clean(str(failure)) + status


# -- files -----------------------------------------------------------------------------------------


def signed_counts(additions: int | None, deletions: int | None) -> str:
    """Format counts of lines: `+3 -1`; "" if they are unknown."""
    counts = (("+", additions), ("-", deletions))
    return " ".join(f"{sign}{n}" for sign, n in counts if n is not None)


def meanwhile_title(during: str) -> str:
    """Introduce the files that changed during a turn, but not by its edits."""
    if during:
        return f"Also changed, during {visible_lines(during)}"
    return "Also changed meanwhile, not by this turn's edits"


def changed_files(diffs: Iterable[FileDiff]) -> dict[str, tuple[int | None, int | None]]:
    """Return the counts of added and deleted lines by file name, summed over its edits."""
    files: dict[str, tuple[int | None, int | None]] = {}
    for change in (c for d in diffs for c in changes_in(d)):
        plus, minus = files.get(change.name, (None, None))
        files[change.name] = (_sum(plus, change.additions), _sum(minus, change.deletions))
    return files


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


# -- the last line ---------------------------------------------------------------------------------


def summary(turn: Turn) -> str:
    """Return the last line: outcome, agent, model, steps, tools, tokens, cost, time."""
    return " · ".join(summary_parts(turn))


def summary_parts(turn: Turn) -> tuple[str, ...]:
    """Return the parts of the last line, the outcome first."""
    running = turn.outcome == "running"
    usage = total_usage(u for u in _usages(turn) if u and not u.empty)
    prefix = "" if turn.cost_complete else "≥ "
    usage_known = not running or usage is not None
    spent = (_tokens(usage, prefix), _cost(turn, usage, prefix)) if usage_known else ()
    duration = () if turn.duration is None or running else (seconds(turn.duration),)
    model = turn.model or (turn.local.model if running else None)
    agent = turn.agent or (turn.local.agent if running else None)
    names = (agent, str(model), model.variant) if model else (agent,)
    counts = (pluralize(turn.steps, "step"), pluralize(len(turn.tools), "tool"))
    state = "waiting for you" if running and turn.waiting else turn.outcome
    replay = ("replay",) if turn.replayed else ()
    return (state, *replay, *(clean(name) for name in names if name), *counts, *spent, *duration)


def _usages(turn: Turn) -> list[Usage | None]:
    return [turn.usage, *(s.usage for s in turn.subagents)]


def _tokens(usage: Usage | None, prefix: str) -> str:
    if usage is None or usage.total is None or (prefix and not usage.total):
        return "tokens unknown"
    kinds = {
        "in": usage.input,
        "out": usage.output,
        "reasoning": usage.reasoning,
        "cache read": usage.cache_read,
        "cache write": usage.cache_write,
    }
    counts = ", ".join(
        f"{'?' if n is None else f'{n:,}'} {kind}" for kind, n in kinds.items() if n != 0
    )
    return f"{prefix}{pluralize(usage.total, 'token')} ({counts})"


def _cost(turn: Turn, usage: Usage | None, prefix: str) -> str:
    text = at_least(usage.cost if usage else None, complete=not prefix)
    subagents = len(turn.subagents)
    return f"{text} (incl. {pluralize(subagents, 'subagent')})" if subagents else text


def prompt_text(turn: Turn) -> str:
    """Return the full prompt of a turn."""
    return clean(turn.question_text).strip() or "(a prompt without text)"


def omitted_turns(transcript: Transcript) -> str:
    """Return a note with the number of omitted turns and the option that shows them."""
    left_out, total = transcript.left_out, transcript.left_out + len(transcript.turns)
    return f"{pluralize(left_out, 'earlier turn')} left out: --last {total} shows all."


def session_line(session: Session) -> str:
    """Return a session in one line, without its title and id."""
    cost = session.usage.cost if session.usage else None
    parts = [session.directory, session.agent, str(session.model) if session.model else None]
    return " · ".join([*(first_line(p) for p in parts if p), format_usd(cost)])
