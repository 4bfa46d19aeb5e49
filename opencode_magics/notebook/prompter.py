"""Prompts for a running turn's requests: buttons, typed answers, or the policy.

If a person can answer, buttons are tried first: the form's "ready" message within five seconds
proves that the front end draws it and that clicks arrive. Otherwise `input()` asks instead. If
nobody can answer, the policy decides immediately.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..core.model import Permission, Question
from ..errors import InvalidAnswer, OpenCodeError
from ..prompts import answering
from ..prompts.answering import PermissionAnswer, QuestionAnswer
from ..sessions.answer import Answerable
from . import wording
from .answerer import Answerer
from .interrupts import DeferredInterrupt

if TYPE_CHECKING:
    from .form import Click, Form
    from .live import View

Ui = Literal["auto", "widgets", "text"]
READY_TIMEOUT = 5.0


class Prompter:
    """Answers the requests of a run's turn. `handle_requests` never waits for a click.

    Args:
        run: The run that has the requests.
        view: The view that shows the turn; the form comes below it.
        answerer: Answers by typing or by policy.
        ui: "auto", "widgets" (no typing), or "text" (no buttons).
        why_not: The reason why clicks can't reach this kernel, if it is known in advance.
    """

    def __init__(
        self, run: Answerable, view: View, answerer: Answerer, ui: Ui = "auto", why_not: str = ""
    ) -> None:
        self._run = run
        self._view = view
        self._answerer = answerer
        self._ui = ui
        self._why_not = why_not
        self._buttons = ui != "text" and answerer.can_ask and view.outputs is not None
        self._form: Form | None = None
        self._below: int | None = None  # number of the view's outputs when the form was placed
        self._place = ""  # display id of the form's output
        self._open: Permission | Question | None = None
        self._shown = ""  # id of the drawing in the form
        self._others = 0  # other permissions that a rejection also rejects, as shown in the form
        self._since = 0.0
        self._paused = ""  # key of the pause that the form shows

    def handle_requests(self) -> None:
        """Show a waiting request, and send its answer once there is one.

        Raises:
            AnswerNeeded: Nobody can answer and the policy is "error".
        """
        waiting = {r.id: r for r in self._run.waiting}
        if self._open is not None and self._open.id not in waiting:
            self._hide_form()  # answered elsewhere, or over
        if not waiting:
            return
        request = waiting[self._open.id] if self._open else next(iter(waiting.values()))
        if self._buttons and self._answerer.asks(request):
            self._answer_with_buttons(request)
        else:
            self._answer_without_buttons(request)

    def pause(self, key: str, title: str) -> Literal["next", "rest"] | None:
        """Show a pause and return the answer, if there is one; call it again until there is.

        Args:
            key: Identifies the pause.
            title: The title to show.

        Returns:
            "next" for one more step, "rest" for all others, also if nobody can answer; None while
            there is no answer.
        """
        from .form import pause_spec

        if not self._buttons:
            return self._pause_typed(title)
        form = self._form_below()
        if self._paused != key:
            self._paused, self._since = key, time.monotonic()
            form.show(pause_spec(key, title))
        while (click := form.next_click()) is not None:
            if click.id == key and click.reply in ("next", "rest"):
                form.hide()
                return click.reply
        if not form.ready and time.monotonic() - self._since > READY_TIMEOUT:
            self._give_up_buttons()
        return None

    def _pause_typed(self, title: str) -> Literal["next", "rest"]:
        if not self._answerer.can_ask:
            return "rest"
        self._view.step_aside()
        try:
            typed = self._answerer.read(f"{title}: Enter for the next step, r for the rest: ")
        except (EOFError, NotImplementedError):
            return "rest"
        return "rest" if typed.strip().lower().startswith("r") else "next"

    def close(self) -> None:
        """Remove the form from the cell."""
        if self._form is not None:
            left = self._below == self._view.outputs  # otherwise the view has replaced it
            self._form.close(self._place if left else "")
            self._form = None

    # -- buttons ---------------------------------------------------------------------------------

    def _answer_with_buttons(self, request: Permission | Question) -> None:
        form = self._form_below()
        if self._open is None:
            self._open, self._since = request, time.monotonic()
            self._show(request, form)
        elif self._others != self._also_rejected(request) or self._open is not request:
            self._open = request
            self._show(request, form)
        while (click := form.next_click()) is not None:
            if click.id == self._shown:  # a click on an earlier drawing is void
                self._submit(request, click, form)
                return
        if not form.ready and time.monotonic() - self._since > READY_TIMEOUT:
            self._give_up_buttons()

    def _form_below(self) -> Form:
        """Return the form below the view's last output, placed anew if the view has grown."""
        from .form import Form

        if self._form is not None and self._below == self._view.outputs:
            return self._form
        with DeferredInterrupt():  # an interrupt would leave the lent output empty
            self._form = self._form or Form()
            self._below, self._place = self._view.outputs, self._view.lend_output()
            self._form.place(self._place)
        return self._form

    def _show(self, request: Permission | Question, form: Form, note: str = "") -> None:
        from .form import permission_spec, question_spec

        subagent, self._others = self._owner(request), self._also_rejected(request)
        if isinstance(request, Question):
            spec = question_spec(request, subagent)
        else:
            spec = permission_spec(
                request, subagent, self._run.always_scope, self._others, self._run.directory
            )
        self._shown = spec["id"]
        form.show(spec | {"note": wording.clean(note)})

    def _also_rejected(self, request: Permission | Question) -> int:
        """Return how many other permissions of its session a rejection also rejects."""
        if isinstance(request, Question):
            return 0
        return sum(p.session == request.session for p in self._run.turn.permissions) - 1

    def _submit(self, request: Permission | Question, click: Click, form: Form) -> None:
        try:
            self._send(request, click)
        except InvalidAnswer as error:
            # A permission may be for something else now.
            self._open = next((r for r in self._run.waiting if r.id == request.id), request)
            self._show(self._open, form, error.what)
        except OpenCodeError as error:
            self._show(request, form, f"The answer did not arrive: {error.what} Try again.")
        else:
            self._hide_form()

    def _send(self, request: Permission | Question, click: Click) -> None:
        match request, click.reply:
            case Permission(), "once" | "always":
                self._run.decide(request, click.reply)
            case Permission(), "reject":
                self._run.decide(request, "reject", click.message)
            case Question(), "answer":
                self._run.answer(request, click.answers)
            case Question(), "dismiss":
                self._run.dismiss(request)

    def _hide_form(self) -> None:
        self._open = None
        if self._form is not None:
            self._form.hide()

    def _give_up_buttons(self) -> None:
        self._buttons, self._open = False, None
        self.close()
        if self._ui == "widgets":
            self._answerer = replace(self._answerer, can_ask=False)
            return
        why = self._why_not or f"The front end did not draw the form within {READY_TIMEOUT:.0f} s."
        self._view.step_aside()
        self._answerer.write(
            f'{why} Please type the answer. %config OpenCodeMagics.ui = "text" skips the buttons.'
        )

    # -- typing, or the policy ---------------------------------------------------------------------

    def _answer_without_buttons(self, request: Permission | Question) -> None:
        subagent = self._owner(request)
        if self._answerer.asks(request):
            self._view.step_aside()
        answer: PermissionAnswer | QuestionAnswer
        if isinstance(request, Permission):
            also = self._also_rejected(request)
            scope, directory = self._run.always_scope, self._run.directory
            answer = self._answerer.permission(request, subagent, scope, also, directory)
        else:
            answer = self._answerer.question(request, subagent)
        answering.send(self._run, request, answer)

    def _owner(self, request: Permission | Question) -> str:
        """Return the title of the subagent that asks; "" if it is the agent itself."""
        turn = self._run.turn
        if request.session == turn.session:
            return ""
        titles = {s.id: s.title for s in turn.sessions}
        return titles.get(request.session) or request.session
