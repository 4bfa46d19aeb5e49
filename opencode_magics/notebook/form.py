"""The form for requests in a running cell: one small widget, reused for every request.

Its content is a plain dict (`permission_spec`, `question_spec`), which `ask.js` puts into the page
as text. The widget's callback may run in another thread (ipykernel 7.0 to 7.3 with subshells), so
it only queues the answer; the cell polls the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import anywidget
import traitlets

from ..core import decision, patches, questions
from ..core.formatting import pluralize, without_middle
from ..core.model import FileDiff, Permission, Question, QuestionItem
from . import diff_rows, wording
from .blocks import RequestState

Spec = dict[str, Any]
_MAX_CHARS = 200_000  # of a command or a diff; Jupyter drops messages of a few megabytes
_FOLDED_CHARS, _FOLDED_LINES = 4_000, 40  # a longer detail is folded
_EMPTY = {"text/html": "", "text/plain": ""}

CSS = """
.oc-ask { border: 1px solid var(--jp-border-color1, #bdbdbd); border-left: 3px solid #c87a00;
  border-radius: 4px; padding: 8px 12px; margin: 4px 0; max-width: 60em; overflow-wrap: anywhere;
  font-family: var(--jp-ui-font-family, system-ui, sans-serif); font-size: 13px; line-height: 1.4;
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color1, transparent); }
.oc-ask[hidden] { display: none; }
.oc-ask-title { font-weight: 600; }
.oc-ask-detail { display: flex; gap: 10px; align-items: baseline; margin: 4px 0; }
.oc-ask-detail > span { flex: 0 0 7.5em; opacity: .75; font-size: 12px; }
.oc-ask-detail > pre { flex: 1; min-width: 0; margin: 0; padding: 3px 8px; }
.oc-ask summary { opacity: .75; font-size: 12px; cursor: pointer; }
.oc-ask pre { margin: 6px 0; padding: 6px 8px; max-height: 24em; overflow: auto;
  white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; border-radius: 3px;
  font-family: var(--jp-code-font-family, monospace); font-size: 12px; line-height: 1.4;
  color: inherit; background: rgba(128, 128, 128, .12); }
.oc-ask pre.oc-ask-diff { padding: 4px 0; }
.oc-ask-diff span { display: block; padding: 0 8px; }
.oc-ask-added { background: rgba(46, 160, 67, .2); }
.oc-ask-removed { background: rgba(248, 81, 73, .2); }
.oc-ask-hunk, .oc-ask small, .oc-ask-effects { opacity: .75; }
.oc-ask-buttons { display: flex; gap: 8px; align-items: center; flex-wrap: wrap; margin: 8px 0; }
.oc-ask button { font: inherit; padding: 4px 12px; border-radius: 3px; cursor: pointer;
  border: 1px solid var(--jp-border-color1, #bdbdbd); color: inherit;
  background: var(--jp-layout-color2, rgba(128, 128, 128, .15)); }
.oc-ask button:hover:enabled { border-color: var(--jp-brand-color1, #1976d2); }
.oc-ask button:disabled { opacity: .5; cursor: default; }
.oc-ask:focus-visible, .oc-ask :focus-visible {
  outline: 2px solid var(--jp-brand-color1, #1976d2); outline-offset: 1px; }
.oc-ask input { accent-color: var(--jp-brand-color1, #1976d2); }
.oc-ask input:not([type=radio], [type=checkbox]) { font: inherit; color: inherit;
  padding: 3px 6px; width: min(26em, 100%); box-sizing: border-box; border-radius: 3px;
  border: 1px solid var(--jp-border-color1, #bdbdbd);
  background: var(--jp-layout-color0, transparent); }
.oc-ask fieldset { border: 0; padding: 0; margin: 8px 0 14px; min-width: 0; }
.oc-ask legend { font-weight: 600; padding: 0; margin-bottom: 4px; white-space: pre-wrap; }
.oc-ask-option { display: flex; gap: 8px; align-items: baseline; margin: 3px 0; width: fit-content;
  white-space: pre-wrap; }
.oc-ask-option input { margin: 0; flex: none; position: relative; top: 2px; }
.oc-ask-option span, .oc-ask small { unicode-bidi: isolate; }
.oc-ask small { font-size: 12px; margin-left: 8px; }
.oc-ask-effects { margin: 6px 0 0; padding-left: 1.4em; font-size: 12px; }
.oc-ask-note { margin-top: 6px; font-weight: 600; white-space: pre-line; }
.oc-ask-note:empty { display: none; }
"""


@dataclass(frozen=True, slots=True)
class Click:
    """A person's answer in the form to the request with this id."""

    id: str
    reply: Literal["once", "always", "reject", "answer", "dismiss", "next", "rest"]
    message: str = ""
    answers: tuple[tuple[str, ...], ...] = ()


class AskWidget(anywidget.AnyWidget):
    """The widget; `spec` is its whole state."""

    _esm = Path(__file__).with_name("ask.js")
    _css = CSS
    spec = traitlets.Dict().tag(sync=True)


class Form:
    """A form in the running cell.

    `ready` becomes true when the front end has drawn the form and its messages arrive: the proof
    that buttons work here. Only the first click on a request counts.
    """

    def __init__(self) -> None:
        self.ready = False
        self._shown = 0
        self._lock = Lock()
        self._clicks: deque[Click] = deque()
        self._answered: set[str] = set()
        self._widget = AskWidget(spec={})
        self._widget.on_msg(self._receive)

    def show(self, spec: Spec) -> None:
        """Show a request, or show it again if its answer did not reach the server."""
        self._answered.discard(spec["id"])
        # The counter makes an equal spec a change, which the front end gets.
        self._shown += 1
        self._widget.spec = {**spec, "shown": self._shown}

    def hide(self) -> None:
        """Hide the form until the next request."""
        self._widget.spec = {}

    def place(self, display_id: str) -> None:
        """Display the form in a new output of the cell."""
        from IPython.display import display

        bundle = self._widget._repr_mimebundle_()
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        # The plain text is for a notebook that is saved now and opened without a kernel.
        bundle = {**bundle, "text/plain": "(waiting for an answer)"}
        display(bundle, raw=True, display_id=display_id)

    def next_click(self) -> Click | None:
        """Take the next answer from the queue; None if it is empty."""
        return self._clicks.popleft() if self._clicks else None

    def close(self, display_id: str = "") -> None:
        """Close the form, and clear the output `display_id` if it still holds it."""
        from IPython.display import display

        self._widget.close()
        if display_id:
            display(_EMPTY, raw=True, display_id=display_id, update=True)

    def _receive(self, widget: object, content: Any, buffers: object) -> None:
        if content.get("kind") == "ready":
            self.ready = True
            return
        click = _parse_click(content)
        with self._lock:
            if click is not None and click.id not in self._answered:
                self._answered.add(click.id)
                self._clicks.append(click)


def _parse_click(content: Any) -> Click | None:
    """Parse a message of the front end; None if it is not a click."""
    match content:
        case {"kind": "answer", "id": str(key), "reply": "answer", "answers": list(answers)}:
            return Click(key, "answer", answers=tuple(tuple(map(str, a)) for a in answers))
        case {"kind": "answer", "id": str(key), "reply": "dismiss"}:
            return Click(key, "dismiss")
        case {"kind": "answer", "id": str(key), "reply": "next" | "rest" as reply}:
            return Click(key, reply)
        case {"kind": "answer", "id": str(key), "reply": "once" | "always" | "reject" as reply}:
            return Click(key, reply, str(content.get("message") or "").strip())
        case _:
            return None


# -- form specs, plain dicts -----------------------------------------------------------------------


def permission_spec(
    permission: Permission, subagent: str, always_scope: str, also_rejected: int, directory: str
) -> Spec:
    """Return the form's content for a permission.

    Its id contains a digest of what is shown, so that a click only counts for what was drawn.

    Args:
        permission: The permission.
        subagent: The title of the subagent that asks; "" for the agent itself.
        always_scope: Where and how long "always" applies on this server.
        also_rejected: Number of other waiting permissions that a rejection also rejects.
        directory: The directory of the session.
    """
    edits = decision.edits_of(permission)
    diff = [line for edit in edits for line in _diff_lines(edit, named=len(edits) > 1)]
    details = decision.details(permission, directory)
    without_message, with_message = wording.rejection_effects(subagent, also_rejected)
    return {
        "id": f"{permission.id}-{decision.digest(permission, directory)}",
        "title": wording.request_title(RequestState(permission, subagent=subagent)),
        "details": [_detail(detail) for detail in details],
        "diff": diff,
        "note": "",
        "choices": [
            {"value": "once", "label": "Allow once", "effect": "Allow once: only this time."},
            {
                "value": "always",
                "label": "Always allow",
                "effect": f"Always allow: {wording.always_scope(permission, always_scope)}.",
            },
            {
                "value": "reject",
                "label": "Reject",
                "effect": f"Reject without a message: {without_message}.",
                "with_message": f"Reject with this message: {with_message}.",
            },
        ],
    }


def _detail(detail: decision.Detail) -> Spec:
    """Return the content for a detail; a long one is folded, and its label says how long it is."""
    text = without_middle(diff_rows.visible_lines(detail.text), _MAX_CHARS)
    lines = text.count("\n") + 1
    folded = len(text) > _FOLDED_CHARS or lines > _FOLDED_LINES
    size = f" ({pluralize(lines, 'line')}, {len(text):,} characters)" if folded else ""
    return {"label": f"{detail.label}{size}", "text": text, "folded": folded}


def pause_spec(key: str, title: str) -> Spec:
    """Return the form's content between two steps of a replay."""
    return {
        "id": key,
        "title": wording.clean(title),
        "details": [],
        "diff": [],
        "note": "",
        "decides": False,
        "choices": [
            {"value": "next", "label": "Next", "effect": "Next: the next event."},
            {"value": "rest", "label": "Play the rest", "effect": "Play the rest: without pauses."},
        ],
    }


def _diff_lines(edit: FileDiff, named: bool) -> Iterator[tuple[str, str]]:
    """Yield a whole edit as (kind, text): a person must see all that they allow."""
    changes, left = patches.changes_in(edit), _MAX_CHARS
    if not any(change.hunks for change in changes):  # the patch doesn't parse: show it raw
        if named:
            yield "@", diff_rows.visible_line(edit.name)
        raw = without_middle(edit.patch.strip(), _MAX_CHARS)
        yield from ((" ", diff_rows.visible_line(line)) for line in raw.split("\n") if raw)
        return
    for change in changes:
        notes = diff_rows.notes(change)
        if notes or named or len(changes) > 1:
            yield "@", " · ".join((diff_rows.visible_line(change.name), *notes))
        crlf = all(line.endswith("\r") for h in change.hunks for line in h.lines if line[0] != "\\")
        for hunk in patches.trim_context(change.hunks):
            for kind, line in (("@", hunk.header), *((line[0], line) for line in hunk.lines)):
                left -= len(line)
                if left < 0:
                    yield "@", "… the rest is too long to show here"
                    return
                yield kind, diff_rows.visible_line(line.removesuffix("\r") if crlf else line)


def question_spec(question: Question, subagent: str) -> Spec:
    """Return the form's content for a question."""
    # The title leaves out the items, which are shown below it.
    state = RequestState(replace(question, items=()), subagent=subagent)
    return {
        "id": question.id,
        "title": wording.request_title(state).removesuffix(": "),
        "note": "",
        "dismissal": f"Dismiss: no answer, and {wording.stop_effect(subagent)}.",
        "items": [_item(item) for item in question.items],
    }


# Kinds and formats with an HTML input type of their own, and the `step` of the numeric ones.
_INPUTS = {"number": "number", "integer": "number", "email": "email", "uri": "url", "date": "date"}
_STEPS = {"number": "any", "integer": "1"}


def _item(item: QuestionItem) -> Spec:
    """Return the content for one item: its options, and its text field if it has one."""
    own = item.custom and item.kind not in ("boolean", "external")
    values = {o.value or o.label for o in item.options}
    custom_default = [text for text in item.default if text not in values]
    numeric = item.kind in _STEPS
    return {
        "header": wording.clean(item.header),
        "question": wording.clean(item.question),
        "note": wording.clean(item.url) if item.kind == "external" else "",
        "asks": item.kind != "external",
        "required": item.required and item.kind != "external",
        "key": wording.clean(item.key),
        "when": [[wording.clean(value) for value in condition] for condition in item.when],
        "default": [wording.clean(questions.normalize_value(item, text)) for text in item.default],
        "multiple": item.multiple,
        "options": [
            {
                "label": wording.clean(o.label),
                "value": wording.clean(o.value or o.label),
                "description": wording.clean(o.description),
                "chosen": (o.value or o.label) in item.default,
            }
            for o in item.options
        ],
        "input": (_INPUTS.get(item.kind) or _INPUTS.get(item.format, "text")) if own else "",
        "own": wording.clean(", ".join(custom_default)) if own else "",
        "least": item.least if numeric else None,
        "most": item.most if numeric else None,
        "step": _STEPS.get(item.kind, ""),
    }
