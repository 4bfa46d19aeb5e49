"""Answers to a turn's permissions and questions.

An answer is a value; `send` delivers it. `Callbacks` gets answers from functions, for plain Python.
Only the exact words allow a permission; any other return value of a function is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..core import questions
from ..core.model import Decision, Permission, Question
from ..errors import AnswerNeeded, InvalidAnswer, ServerConnectionError, StatusError
from ..sessions.answer import Answerable

_PATIENCE = 60.0  # seconds in which an answer is sent again, about as long as a turn is followed

PermissionPolicy = Literal["reject", "once", "error"]
PermissionCallback = Callable[[Permission], Decision | tuple[Decision, str]]
QuestionCallback = Callable[[Question], Sequence[str | Sequence[str]] | None]


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    """An answer to a permission. `by` names the policy or callback; "" for a person."""

    decision: Decision
    message: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """An answer to a question: labels or free text for each item; None dismisses the question."""

    answers: tuple[tuple[str, ...], ...] | None
    by: str = ""


def send(
    run: Answerable, request: Permission | Question, answer: PermissionAnswer | QuestionAnswer
) -> None:
    """Send the answer to a request of a run; try again for a minute, as long as it is pending.

    Raises:
        InvalidAnswer: The answer is invalid for the question.
        ServerConnectionError: The server could not be reached within a minute.
        StatusError: The server replied with an error for a minute.
    """
    wait, deadline = 0.5, time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            _send_once(run, request, answer)
            return
        except (ServerConnectionError, StatusError):  # the request is still pending
            time.sleep(wait)
            wait = min(2 * wait, 4.0)
        except InvalidAnswer:
            if isinstance(request, Question):
                raise
            return  # it is for something else now, and is asked again
    _send_once(run, request, answer)


def _send_once(
    run: Answerable, request: Permission | Question, answer: PermissionAnswer | QuestionAnswer
) -> None:
    match request, answer:
        case Permission(), PermissionAnswer(decision, message, by):
            run.decide(request, decision, message, by=by)
        case Question(), QuestionAnswer(None, by):
            run.dismiss(request, by=by)
        case Question(), QuestionAnswer(tuple(answers)):
            run.answer(request, answers)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Answers requests by a policy or by functions.

    Args:
        on_permission: "reject", "once" (allow every permission once) or "error" (stop the turn and
            raise `AnswerNeeded`); or a function that returns "once", "always" or "reject", or a
            pair of "reject" and a message to the agent, which then continues.
        on_question: A function that returns an answer for each item of the question, a label or
            free text or several of these, or None to dismiss the question. Without a function,
            every question is dismissed.

    Raises:
        ValueError: `on_permission` is any other string.
    """

    on_permission: PermissionPolicy | PermissionCallback = "reject"
    on_question: QuestionCallback | None = None

    def __post_init__(self) -> None:
        if not callable(self.on_permission) and self.on_permission not in get_args(
            PermissionPolicy
        ):
            raise ValueError(
                'on_permission takes "reject", "once", "error" or a function, '
                f"not {self.on_permission!r}"
            )

    def answer(self, request: Permission | Question) -> PermissionAnswer | QuestionAnswer:
        """Return the answer to a request.

        Raises:
            AnswerNeeded: It is a permission, and the policy is "error".
            InvalidAnswer: A function returned an invalid answer to this request.
        """
        if isinstance(request, Question):
            return self._question(request)
        match self.on_permission:
            case "error":
                raise AnswerNeeded(
                    f"The agent is waiting for a permission: {request.action} {request.subject!r}.",
                    "Pass a function that decides: on_permission=...",
                )
            case "reject" | "once" as policy:
                return PermissionAnswer(policy, by=f"policy {policy!r}")
            case decide:
                return _decided(request, decide(request))

    def _question(self, question: Question) -> QuestionAnswer:
        if self.on_question is None:
            return QuestionAnswer(None, by="no on_question")
        returned = self.on_question(question)
        if returned is None:
            return QuestionAnswer(None, by="on_question")
        if not _is_list(returned) or not all(
            isinstance(a, str) or _is_list(a, str) for a in returned
        ):
            raise _invalid("on_question", returned, "a list with the text of each answer, or None")
        if len(returned) != len(question.items):
            raise _invalid(
                "on_question", returned, f"{len(question.items)} answers, one for each item"
            )
        answers = tuple((a,) if isinstance(a, str) else tuple(a) for a in returned)
        questions.check_answers(question, answers)
        return QuestionAnswer(answers)


def _is_list(value: object, of: type = object) -> bool:
    """Return whether a value is a list or a tuple with items of a type; a string is neither."""
    return isinstance(value, list | tuple) and all(isinstance(v, of) for v in value)


def _decided(permission: Permission, returned: object) -> PermissionAnswer:
    """Convert the return value of a function; only the exact words allow anything."""
    match returned:
        case str("once" | "always" | "reject" as decision):
            return PermissionAnswer(decision, by="on_permission")
        case (str("once" | "always" | "reject" as decision), str("")):
            return PermissionAnswer(decision, by="on_permission")
        case (str("reject"), str(message)):
            return PermissionAnswer("reject", message)
        case _:
            expected = '"once", "always", "reject" or ("reject", message)'
            what = f"{expected} for {permission.action} {permission.subject!r}"
            raise _invalid("on_permission", returned, what)


def _invalid(name: str, returned: object, expected: str) -> InvalidAnswer:
    return InvalidAnswer(f"{name} returned {returned!r}; it must return {expected}.")
