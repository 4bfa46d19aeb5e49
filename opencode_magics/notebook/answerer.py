"""Puts what an agent asks to a person, or to the policy where nobody can answer.

An answer is a value; `Run` sends it. Nothing is allowed here that a person didn't allow: by typing
it, or by setting the policy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..core import patches, questions
from ..core.model import Decision, FileDiff, Permission, Question, QuestionItem
from ..errors import AnswerNeeded
from ..prompts.answering import PermissionAnswer, QuestionAnswer
from . import text, wording

Policy = Literal["ask", "once", "reject"]
Fallback = Literal["reject", "once", "error"]

_CHOICES: dict[str, Decision] = {
    "1": "once",
    "once": "once",
    "2": "always",
    "always": "always",
    "3": "reject",
    "reject": "reject",
}
_DISMISS = "dismiss"

# What could steer a terminal instead of being read in it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers what a turn asks.

    Args:
        policy: What to do with permissions: ask a person, or always the same.
        fallback: What to do where no person can answer: "error" raises.
        can_ask: Whether `read` reaches a person.
        read, write: Where a person is; `input` and `print` by default. The kernel puts its own
            `input` in place for every cell, so it is looked up when it is needed.
    """

    policy: Policy = "ask"
    fallback: Fallback = "reject"
    can_ask: bool = False
    read: Callable[[str], str] = lambda prompt: input(prompt)
    write: Callable[[str], None] = print

    def asks(self, request: Permission | Question) -> bool:
        """Whether a person is asked this, rather than the policy."""
        return self.can_ask and (self.policy == "ask" or isinstance(request, Question))

    def permission(
        self,
        permission: Permission,
        subagent: str = "",
        always_scope: str = "",
        also_rejected: int = 0,
    ) -> PermissionAnswer:
        """Decide a permission.

        Args:
            permission: What is asked.
            subagent: The subagent that asks, "" for the agent itself.
            always_scope: How far "always" reaches on this server.
            also_rejected: How many other waiting permissions a rejection rejects too.

        Raises:
            AnswerNeeded: Nobody can answer and the policy is "error".
        """
        if self.policy != "ask":
            return PermissionAnswer(self.policy, by=f"policy {self.policy!r}")
        if self.asks(permission):
            try:
                return self._ask_permission(permission, subagent, always_scope, also_rejected)
            except (EOFError, NotImplementedError):
                pass  # the front-end has no way to type after all
        if self.fallback == "error":
            raise _needed(f"permission: {permission.action} {permission.subject!r}")
        return PermissionAnswer(self.fallback, by="nobody can answer here")

    def question(self, question: Question, subagent: str = "") -> QuestionAnswer:
        """Answer a question. Raises like `permission`; a policy never answers, it dismisses."""
        if self.asks(question):
            try:
                return self._ask_question(question, subagent)
            except (EOFError, NotImplementedError):
                pass
        if self.fallback == "error":
            raise _needed(f"question: {question.items[0].question!r}")
        return QuestionAnswer(None, by="nobody can answer here")

    def _ask_permission(
        self, permission: Permission, subagent: str, always_scope: str, also_rejected: int
    ) -> PermissionAnswer:
        silent, told = wording.rejection_effects(subagent, also_rejected)
        self.write(f"Permission{_owner(subagent)}: {escaped_line(permission.action)}")
        self.write(_indented(permission.subject))
        if permission.diff is not None:
            self.write(_indented(_edit(permission.diff)))
        self.write(
            "[1] Allow once\n"
            f"[2] Always allow {escaped_line(wording.always_scope(permission, always_scope))}\n"
            f"[3] Reject: {silent}\n"
            f"[3 MESSAGE] Reject with a message: {told}"
        )
        while (decided := _decided(self.read("1, 2, 3 or 3 MESSAGE: "))) is None:
            self.write("Please type 1, 2 or 3, or once, always or reject.")
        return decided

    def _ask_question(self, question: Question, subagent: str) -> QuestionAnswer:
        if subagent:
            self.write(f"Question{_owner(subagent)}")
        answers: list[tuple[str, ...]] = []
        for item in question.items:
            if not questions.applies(question, item, answers):
                answers.append(())
                continue
            answer = self._ask_item(item, subagent)
            while answer != (_DISMISS,) and (wrong := questions.answer_error(item, answer)):
                self.write(f"{escaped_line(wrong)}.")
                answer = self._ask_item(item, subagent)
            if answer == (_DISMISS,):
                return QuestionAnswer(None)
            answers.append(answer)
        return QuestionAnswer(tuple(answers))

    def _ask_item(self, item: QuestionItem, subagent: str) -> tuple[str, ...]:
        self.write(escape_controls(item.question))
        if item.url:
            self.write(_indented(item.url))
        for number, option in enumerate(item.options, 1):
            description = f" - {option.description}" if option.description else ""
            self.write(f"[{number}] {escaped_line(option.label + description)}")
        own = ", or your own words" if item.custom else ""
        how = f"numbers, separated by commas{own}" if item.multiple else ""
        how = how or (f"number{own}" if item.options else "your answer")
        how = f"{how} ({_DISMISS} to give none: {wording.stop_effect(subagent)})"
        while not (typed := self.read(f"{how}: ").strip()):
            continue
        return _chosen(item, typed)


def _decided(typed: str) -> PermissionAnswer | None:
    """What was typed, by number or by word; None if it is neither."""
    choice, _, message = typed.strip().partition(" ")
    decision = _CHOICES.get(choice.lower())
    if decision is None or (message and decision != "reject"):
        return None
    return PermissionAnswer(decision, message.strip())


def _chosen(item: QuestionItem, typed: str) -> tuple[str, ...]:
    """The labels behind typed numbers; anything else is an answer in a person's own words."""
    picks = [p.strip() for p in typed.split(",") if p.strip()] if item.multiple else [typed]
    labels = {str(n): o.label for n, o in enumerate(item.options, 1)}
    if picks and all(p in labels for p in picks):
        return tuple(labels[p] for p in picks)
    return (typed,)


def _edit(diff: FileDiff) -> str:
    """An edit as a person reads it; raw where a reader finds nothing in it, so nothing hides."""
    read = any(change.hunks for change in patches.changes_in(diff))
    return text.file_diff(diff) if read else diff.patch


def _owner(subagent: str) -> str:
    return f" for subagent {escaped_line(subagent)}" if subagent else ""


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in escape_controls(text).split("\n"))


def escape_controls(text: str) -> str:
    """A text with control characters made visible, so that it can't play with the terminal."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def escaped_line(text: str) -> str:
    """The same on one line, so that it can't look like something that we say."""
    return escape_controls(text).replace("\n", "\\n")


def _needed(what: str) -> AnswerNeeded:
    return AnswerNeeded(
        f"The agent waits for a {what}, and nobody can answer here.",
        "Run it where you can answer, or set the policy: "
        '%config OpenCodeMagics.noninteractive = "reject"',
    )


def can_ask(shell: Any) -> bool:
    """Whether a person can type an answer in this shell, as far as can be known."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        # nbclient, papermill and nbconvert send their cells with stdin closed.
        return bool(getattr(kernel, "_allow_stdin", False))
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # it is closed
        return False
