"""Answer the permissions and questions of a turn, once each, and record how they were settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..client.client import Client, optional
from ..core import questions
from ..core.events import PermissionAsked, RequestReplied
from ..core.formatting import pluralize
from ..core.model import DECISIONS, Decision, Permission, Question, Session
from ..core.turn import SettledRequest, Turn
from ..errors import InvalidAnswer, NotFoundError, ServerConnectionError, StatusError
from .progress import Progress


class Answerable(Protocol):
    """A turn whose requests can be answered: a `Run`, or a `Replay`."""

    @property
    def turn(self) -> Turn:
        """The latest state of the turn."""

    @property
    def waiting(self) -> tuple[Permission | Question, ...]:
        """The requests that can be answered now, oldest first."""

    @property
    def directory(self) -> str:
        """The directory of its session."""

    @property
    def always_scope(self) -> str:
        """The scope of an "always" reply on this server, in words."""

    def decide(
        self, permission: Permission, decision: Decision, message: str = "", by: str = ""
    ) -> bool:
        """Answer a permission."""

    def answer(self, question: Question, answers: Sequence[Sequence[str]]) -> bool:
        """Answer a question."""

    def dismiss(self, question: Question, by: str = "") -> bool:
        """Dismiss a question."""


class Answers:
    """Sends answers to the server.

    Each method returns whether this answer settled the request: False if something else had
    settled it. Each raises ServerConnectionError or StatusError if sending failed and the server
    still lists the request as pending.
    """

    def __init__(self, client: Client, session: Session, progress: Progress) -> None:
        self._client = client
        self._session = session
        self._progress = progress

    def decide(self, permission: Permission, decision: Decision, message: str, by: str) -> bool:
        """Answer a permission; a grant is only sent for what the person saw.

        Raises:
            InvalidAnswer: The server now has another request with this id; nothing was sent.
        """
        where = self._directory_of(permission.session)
        if decision != "reject":
            self._check_unchanged(permission, where)
        return self._settle(
            permission,
            decision,
            message or by,
            lambda: self._client.run(
                self._client.dialect.reply(permission, where, decision, message)
            ),
        )

    def answer(self, question: Question, answers: Sequence[Sequence[str]]) -> bool:
        """Answer a question: per item a list of option labels or free texts."""
        where = self._directory_of(question.session)
        return self._settle(
            question,
            "answered",
            in_words(answers),
            lambda: self._client.run(self._client.dialect.answer(question, where, answers)),
        )

    def dismiss(self, question: Question, by: str) -> bool:
        """Dismiss a question."""
        where = self._directory_of(question.session)
        return self._settle(
            question,
            "dismissed",
            by,
            lambda: self._client.run(self._client.dialect.dismiss(question, where)),
        )

    def _check_unchanged(self, permission: Permission, directory: str) -> None:
        pending = optional(lambda: self._client.permissions(directory), ())
        now = next((p for p in pending if p.id == permission.id), permission)
        if now != permission:
            self._progress.add([PermissionAsked(now)])
            raise InvalidAnswer(
                f"Permission {permission.id} is for something else now; nothing was sent.",
                "Read it again, and decide again.",
            )

    def _directory_of(self, session: str) -> str:
        known = next((s for s in self._progress.turn.sessions if s.id == session), self._session)
        return known.directory or self._session.directory

    def _settle(
        self, request: Permission | Question, reply: str, message: str, send: Callable[[], None]
    ) -> bool:
        ours = True
        try:
            send()
        except NotFoundError:
            ours, reply = False, "answered elsewhere, or expired"
        except (ServerConnectionError, StatusError):
            if self._is_pending(request):
                raise
            ours, reply = False, "settled, perhaps by this answer"
        settled = RequestReplied(
            request.session, request.id, reply, message if ours else "", ours=True
        )
        self._progress.recorder.answer(
            settled.session, settled.request, settled.reply, settled.message
        )
        self._progress.add([settled])
        return ours

    def _is_pending(self, request: Permission | Question) -> bool:
        where = self._directory_of(request.session)
        pending = {p.id for p in self._client.permissions(where)}
        return request.id in pending | {q.id for q in self._client.questions(where)}


def in_words(answers: Sequence[Sequence[str]]) -> str:
    """The answers to a question as one line."""
    return "; ".join(", ".join(a) or "no answer" for a in answers)


# -- without following the turn --------------------------------------------------------------------


def reply_to(
    client: Client,
    request: Permission | Question,
    session: Session,
    reply: str | None,
    message: str = "",
    answers: Sequence[str] = (),
) -> SettledRequest:
    """Answer a pending request of a session, in words.

    Args:
        client: The server.
        request: The permission or question.
        session: The session that asks.
        reply: once, always or reject; "dismiss" for a question; None with `answers`.
        message: A message to the agent, with a rejection or a dismissal (2.x).
        answers: One for each item of a question: a label, labels separated by commas, or words.

    Returns:
        The request with its reply, as the server accepted it.

    Raises:
        InvalidAnswer: The reply or an answer doesn't fit the request; nothing was sent.
        UnsupportedOperation: A message with a dismissal, on 1.x.
        NotFoundError: The request was answered before, or has expired.
    """
    directory = session.directory
    if isinstance(request, Permission):
        if reply not in DECISIONS or answers:
            raise InvalidAnswer(
                f"{request.id} is a permission.", "Reply with once, always or reject."
            )
        if message and reply != "reject":
            raise InvalidAnswer("Only reject takes a message.")
        client.run(client.dialect.reply(request, directory, reply, message))
        return SettledRequest(request, reply, message)
    if reply == "dismiss":
        client.run(client.dialect.dismiss(request, directory, message))
        return SettledRequest(request, "dismissed", message)
    if reply or len(answers) != len(request.items):
        number = pluralize(len(request.items), "question")
        raise InvalidAnswer(f"{request.id} has {number}.", "Give --answer once for each.")
    labels = [
        questions.parse_typed(item, text, numbers=False)
        for text, item in zip(answers, request.items, strict=True)
    ]
    questions.check_answers(request, labels)
    client.run(client.dialect.answer(request, directory, labels))
    return SettledRequest(request, "answered", in_words(labels))
