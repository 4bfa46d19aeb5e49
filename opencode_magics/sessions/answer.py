"""Answer the permissions and questions of a turn, once each, and record how they were settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..client.client import Client
from ..core.events import RequestReplied
from ..core.model import Decision, Permission, Question, Session
from ..core.turn import Turn
from ..errors import NotFoundError, ServerConnectionError, StatusError
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
        """Answer a permission."""
        where = self._directory_of(permission.session)
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
        settled = RequestReplied(request.session, request.id, reply, message if ours else "")
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
