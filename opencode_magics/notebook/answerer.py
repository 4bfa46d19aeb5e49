"""Answers to permissions and questions: typed by a person, or taken from the policy.

An answer is a value; `Run` sends it. Nothing is allowed here without a person's consent: a typed
answer, or a policy that they set.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..core import decision, patches, questions
from ..core.model import Decision, FileDiff, Permission, Question, QuestionItem
from ..errors import AnswerNeeded, InvalidAnswer
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

# Control and direction characters, which could manipulate a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers a turn's permissions and questions.

    Args:
        policy: "ask" asks a person; "once" and "reject" answer every permission.
        fallback: The decision where no person can answer; "error" raises.
        can_ask: Whether `read` reaches a person.
        read, write: Read from and write to a person; `input` and `print` by default. The kernel
            replaces `input` for every cell, so the default looks it up at each call.
    """

    policy: Policy = "ask"
    fallback: Fallback = "reject"
    can_ask: bool = False
    read: Callable[[str], str] = lambda prompt: input(prompt)
    write: Callable[[str], None] = print

    def asks(self, request: Permission | Question) -> bool:
        """Return whether a person answers this request, not the policy."""
        return self.can_ask and (self.policy == "ask" or isinstance(request, Question))

    def permission(
        self,
        permission: Permission,
        subagent: str = "",
        always_scope: str = "",
        also_rejected: int = 0,
        directory: str = "",
    ) -> PermissionAnswer:
        """Decide a permission.

        Args:
            permission: The permission.
            subagent: The title of the subagent that asks, "" for the agent itself.
            always_scope: Where and how long "always" applies on this server.
            also_rejected: Number of other waiting permissions that a rejection also rejects.
            directory: The directory of the session.

        Raises:
            AnswerNeeded: Nobody can answer and the policy is "error".
        """
        if self.policy != "ask":
            return PermissionAnswer(self.policy, by=f"policy {self.policy!r}")
        if self.asks(permission):
            try:
                return self._ask_permission(
                    permission, subagent, always_scope, also_rejected, directory
                )
            except (EOFError, NotImplementedError):
                pass  # the front end doesn't support input after all
        if self.fallback == "error":
            raise _answer_needed(f"permission: {permission.action} {permission.subject!r}")
        return PermissionAnswer(self.fallback, by="nobody can answer here")

    def question(self, question: Question, subagent: str = "") -> QuestionAnswer:
        """Answer a question, or dismiss it where no person can answer. Raises like `permission`."""
        if self.asks(question):
            try:
                return self._ask_question(question, subagent)
            except (EOFError, NotImplementedError):
                pass
        if self.fallback == "error":
            raise _answer_needed(f"question: {question.items[0].question!r}")
        return QuestionAnswer(None, by="nobody can answer here")

    def _ask_permission(
        self,
        permission: Permission,
        subagent: str,
        always_scope: str,
        also_rejected: int,
        directory: str,
    ) -> PermissionAnswer:
        without_message, with_message = wording.rejection_effects(subagent, also_rejected)
        self.write(f"Permission{_owner(subagent)}: {escaped_line(permission.action)}")
        for label, content in decision.details(permission, directory):
            self.write(f"    {label}:\n{_indented(_indented(content))}")
        for edit in decision.edits_of(permission):
            self.write(_indented(_diff_text(edit)))
        self.write(
            "[1] Allow once\n"
            f"[2] Always allow {escaped_line(wording.always_scope(permission, always_scope))}\n"
            f"[3] Reject: {without_message}\n"
            f"[3 MESSAGE] Reject with a message: {with_message}"
        )
        while (answer := _parse_decision(self.read("1, 2, 3 or 3 MESSAGE: "))) is None:
            self.write("Please type 1, 2 or 3, or once, always or reject.")
        return answer

    def _ask_question(self, question: Question, subagent: str) -> QuestionAnswer:
        if subagent:
            self.write(f"Question{_owner(subagent)}")
        answers: list[tuple[str, ...]] = []
        for item in question.items:
            if not questions.applies(question, item, answers):
                answers.append(())
                continue
            answer = self._ask_item(item, subagent)
            while answer != (_DISMISS,) and (error := questions.answer_error(item, answer)):
                self.write(f"{escaped_line(error)}.")
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
        custom = ", or your own words" if item.custom else ""
        hint = f"numbers, separated by commas{custom}" if item.multiple else ""
        hint = hint or (f"number{custom}" if item.options else "your answer")
        hint = f"{hint} ({_DISMISS} to give no answer: {wording.stop_effect(subagent)})"
        optional = not item.required or bool(item.default)
        if optional:
            hint += f"; Enter for {', '.join(item.default) or 'no answer'}"
        while True:
            typed = self.read(f"{hint}: ").strip()
            if typed == _DISMISS or (optional and not typed):
                return (_DISMISS,) if typed else ()
            try:
                if typed:
                    return questions.parse_typed(item, typed)
            except InvalidAnswer as error:
                self.write(escaped_line(str(error)))


def _parse_decision(typed: str) -> PermissionAnswer | None:
    """Parse a typed decision, a number or a word; None if it is neither."""
    choice, _, message = typed.strip().partition(" ")
    decision = _CHOICES.get(choice.lower())
    if decision is None or (message and decision != "reject"):
        return None
    return PermissionAnswer(decision, message.strip())


def _diff_text(diff: FileDiff) -> str:
    """An edit as formatted text; the raw patch if it doesn't parse, so that nothing is hidden."""
    parsed = any(change.hunks for change in patches.changes_in(diff))
    return text.file_diff(diff) if parsed else diff.patch


def _owner(subagent: str) -> str:
    return f" for subagent {escaped_line(subagent)}" if subagent else ""


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in escape_controls(text).split("\n"))


def escape_controls(text: str) -> str:
    """Make control characters visible, so that they can't manipulate the terminal."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def escaped_line(text: str) -> str:
    """Escape controls and line breaks, so that the text can't imitate a line of this prompt."""
    return escape_controls(text).replace("\n", "\\n")


def _answer_needed(request: str) -> AnswerNeeded:
    return AnswerNeeded(
        f"The agent is waiting for a {request}, and nobody can answer here.",
        "Run it where you can answer, or set the policy: "
        '%config OpenCodeMagics.noninteractive = "reject"',
    )


def can_ask(shell: Any) -> bool:
    """Return whether a person can probably type an answer in this shell."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        # nbclient, papermill and nbconvert execute cells with `allow_stdin=False`.
        return bool(getattr(kernel, "_allow_stdin", False))
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # stdin is closed
        return False
