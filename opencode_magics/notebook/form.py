"""The form that asks in a running cell: one small widget, used again for every request.

What it shows is a plain dict (`permission_spec`, `question_spec`), which `ask.js` puts into the
page as text. Its callback may run in another thread (ipykernel 7.0 to 7.3 with subshells), so it
only notes the answer; the cell takes it when it comes by.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anywidget
import traitlets

from ..model import Permission, Question
from . import diff, words
from .blocks import Request

Spec = dict[str, Any]
_DIFF_LINES = 5_000
_EMPTY = {"text/html": "", "text/plain": ""}

CSS = """
.oc-ask { border: 1px solid var(--jp-border-color1, #bdbdbd); border-left: 3px solid #c87a00;
  border-radius: 4px; padding: 8px 12px; margin: 4px 0; max-width: 60em;
  font-family: var(--jp-ui-font-family, system-ui, sans-serif); font-size: 13px;
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color1, transparent); }
.oc-ask[hidden] { display: none; }
.oc-ask-title { font-weight: 600; }
.oc-ask pre { margin: 6px 0; padding: 6px 8px; max-height: 24em; overflow: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 3px;
  font-family: var(--jp-code-font-family, monospace); font-size: 12px; line-height: 1.4;
  color: inherit; background: var(--jp-layout-color2, rgba(128, 128, 128, .1)); }
.oc-ask-diff span { display: block; }
.oc-ask-added { background: rgba(46, 160, 67, .2); }
.oc-ask-removed { background: rgba(248, 81, 73, .2); }
.oc-ask-hunk, .oc-ask small, .oc-ask-effects { opacity: .75; }
.oc-ask-buttons { display: flex; gap: 8px; align-items: center; flex-wrap: wrap; margin: 8px 0; }
.oc-ask button { font: inherit; padding: 4px 12px; border-radius: 3px; cursor: pointer;
  border: 1px solid var(--jp-border-color1, #bdbdbd); color: inherit;
  background: var(--jp-layout-color2, rgba(128, 128, 128, .15)); }
.oc-ask button:hover:enabled { border-color: var(--jp-brand-color1, #1976d2); }
.oc-ask button:disabled { opacity: .5; cursor: default; }
.oc-ask :focus-visible { outline: 2px solid var(--jp-brand-color1, #1976d2); outline-offset: 1px; }
.oc-ask input[type=text] { font: inherit; color: inherit; padding: 3px 6px; width: min(26em, 100%);
  border: 1px solid var(--jp-border-color1, #bdbdbd); border-radius: 3px;
  background: var(--jp-layout-color0, transparent); }
.oc-ask fieldset { border: 0; padding: 0; margin: 8px 0; }
.oc-ask legend { font-weight: 600; padding: 0; }
.oc-ask-option { display: flex; gap: 6px; align-items: baseline; margin: 3px 0; }
.oc-ask-effects { margin: 6px 0 0; padding-left: 1.4em; font-size: 12px; }
.oc-ask-note:empty { display: none; }
"""


@dataclass(frozen=True, slots=True)
class Click:
    """What a person answered in the form, for the request of that id."""

    id: str
    reply: Literal["once", "always", "reject", "answer", "dismiss"]
    message: str = ""
    answers: tuple[tuple[str, ...], ...] = ()


class AskWidget(anywidget.AnyWidget):
    """The widget itself; `spec` is all it knows."""

    _esm = Path(__file__).with_name("ask.js")
    _css = CSS
    spec = traitlets.Dict().tag(sync=True)


class Form:
    """A form in the running cell.

    `ready` turns true when the front-end has drawn it and its messages arrive: the proof that
    buttons work here. One click per request is kept, the first.
    """

    def __init__(self) -> None:
        self.ready = False
        self._clicks: deque[Click] = deque()
        self._answered: set[str] = set()
        self._widget = AskWidget(spec={})
        self._widget.on_msg(self._hear)
        self._handle: Any = None

    def show(self, spec: Spec) -> None:
        """Ask something."""
        self._answered.discard(spec["id"])
        self._widget.spec = spec

    def hide(self) -> None:
        """Ask nothing for now."""
        self._widget.spec = {}

    def place(self) -> None:
        """Show the form below all that the cell shows so far, and only there."""
        from IPython.display import display

        self._clear()
        bundle = self._widget._repr_mimebundle_()
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        # What a notebook shows that is saved right now and opened without a kernel.
        shown = {**bundle, "text/plain": "(waiting for an answer)"}
        self._handle = display(shown, raw=True, display_id=True)

    def clicked(self) -> Click | None:
        """The next answer that a person gave, None if there is none."""
        return self._clicks.popleft() if self._clicks else None

    def close(self) -> None:
        """Take the form out of the cell; nothing of it stays in the notebook."""
        self._widget.close()
        self._clear()

    def _clear(self) -> None:
        if self._handle is not None:
            self._handle.update(_EMPTY, raw=True)
            self._handle = None

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        if content.get("kind") == "ready":
            self.ready = True
            return
        click = _click(content)
        if click is not None and click.id not in self._answered:
            self._answered.add(click.id)
            self._clicks.append(click)


def _click(content: Any) -> Click | None:
    """A click from what the front-end sent; None for anything else."""
    match content:
        case {"kind": "answer", "id": str(key), "reply": "answer", "answers": list(answers)}:
            return Click(key, "answer", answers=tuple(tuple(map(str, a)) for a in answers))
        case {"kind": "answer", "id": str(key), "reply": "dismiss"}:
            return Click(key, "dismiss")
        case {"kind": "answer", "id": str(key), "reply": "once" | "always" | "reject" as reply}:
            return Click(key, reply, str(content.get("message") or "").strip())
        case _:
            return None


# -- what is asked, as plain dicts -----------------------------------------------------------------


def permission_spec(asked: Permission, whose: str, always_means: str, also_rejected: int) -> Spec:
    """What the form says about a permission.

    Args:
        asked: The permission.
        whose: The title of the subagent that asks; "" for the agent itself.
        always_means: How far "always" reaches on this server.
        also_rejected: How many other waiting requests a rejection rejects too.
    """
    always = diff.all_visible(", ".join(asked.always) or asked.subject)
    changes = diff.changes(asked.diff) if asked.diff is not None else ()
    return {
        "id": asked.id,
        "title": words.request_title(Request(asked, whose=whose)),
        "subject": "" if asked.diff is not None else diff.all_visible(asked.subject),
        "diff": [list(line) for change in changes for line in diff.lines(change, _DIFF_LINES)],
        "note": "",
        "choices": [
            {"value": "once", "label": "Allow once", "effect": "Allow once: only this time."},
            {
                "value": "always",
                "label": "Always allow",
                "effect": f"Always allow: {always} {always_means}.",
            },
            {"value": "reject", "label": "Reject", **_rejection(whose, also_rejected)},
        ],
    }


def _rejection(whose: str, also: int) -> dict[str, str]:
    stops = "that subagent's task fails, and the parent goes on" if whose else "the turn stops"
    more = f"; {words.count(also, 'other waiting request')} of it rejected too" if also else ""
    return {
        "effect": f"Reject without a message: {stops}{more}.",
        "with_message": f"Reject with this message: the agent reads it and goes on{more}.",
    }


def question_spec(asked: Question, whose: str) -> Spec:
    """What the form says about a question."""
    return {
        "id": asked.id,
        "title": f"Question of subagent {words.one_line(whose)}" if whose else "Question",
        "note": "",
        "items": [
            {
                "header": words.one_line(item.header),
                "question": words.clean(item.question),
                "multiple": item.multiple,
                "options": [
                    {"label": option.label, "description": words.one_line(option.description)}
                    for option in item.options
                ],
            }
            for item in asked.items
        ],
    }
