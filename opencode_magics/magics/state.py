"""What the magics of one shell share: the options, and where they work."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from IPython.core.error import UsageError
from traitlets import Bool, Enum, Float, TraitError, Unicode, validate
from traitlets.config import Configurable

from ..errors import AuthenticationError, RecordingError

if TYPE_CHECKING:
    from pathlib import Path

    from ..client.client import Client
    from ..client.server import ServerProcess
    from ..core.limits import Limits
    from ..core.model import Session
    from ..core.turn import Turn
    from ..notebook.answerer import Answerer, Policy


TrackReason = Literal["made", "chosen", "prompted"]
Action = Literal["delete", "archive"]


@dataclass(frozen=True, slots=True)
class TrackedSession:
    """A session that this notebook has to do with, and how it came to that.

    `ending` is what was to become of it, where that was begun and is not finished.
    """

    session: Session
    how: TrackReason
    ending: Action | None = None


class EndAttempt(NamedTuple):
    """What is to become of a session, and whether that was begun before."""

    action: Action
    resumed: bool


@dataclass(slots=True)
class RecordingTarget:
    """The file that turns are added to, and what came of that so far."""

    path: Path
    raw: bool = False
    turns: dict[str, None] = field(default_factory=dict)  # their prompts
    failed: str = ""

    def __str__(self) -> str:
        how = "as they are, secrets included" if self.raw else "without secrets and home paths"
        so_far = f"\n{len(self.turns)} so far." if self.turns else ""
        failed = f"\nThe last one was not: {self.failed}" if self.failed else ""
        return f"Turns are recorded into {self.path}, {how}.{so_far}{failed}"


class OpenCodeMagics(Configurable):
    """Options of the magics, and their state: the server, the current session, the last turn."""

    directory = Unicode("", help="Directory to work in; empty: the kernel's own.").tag(config=True)
    model = Unicode("", help="Model for prompts, provider/model; empty: the session's.").tag(
        config=True
    )
    agent = Unicode("", help="Agent for prompts; empty: the session's.").tag(config=True)
    permission = Enum(
        ["ask", "once", "reject"],
        "ask",
        help="What to do when an agent asks for permission: ask you, allow once, or reject.",
    ).tag(config=True)
    noninteractive = Enum(
        ["reject", "once", "error"],
        "reject",
        help="What to do with permissions where nobody can answer (nbclient, papermill, scripts): "
        "reject, allow once, or error, which stops the turn and fails the cell. Questions are "
        "dismissed.",
    ).tag(config=True)

    ui = Enum(
        ["auto", "widgets", "text"],
        "auto",
        help="How you are asked: buttons, typing where they don't work (auto); only one of them.",
    ).tag(config=True)

    history_cache = Bool(
        True,
        help="Keep the messages of unchanged sessions in a file of yours, for the next time.",
    ).tag(config=True)

    end_action = Enum(
        ["delete", "archive"],
        "delete",
        help="What %oc_end does to a session that is stopped: delete it for good, or archive it.",
    ).tag(config=True)

    max_cost = Float(
        None,
        allow_none=True,
        min=0,
        help="USD that a turn may cost: it is stopped when its known cost, subagents included, "
        "passes that. None: no limit.",
    ).tag(config=True)

    max_session_cost = Float(
        None,
        allow_none=True,
        min=0,
        help="USD that a session may cost in all, subagents included: a turn that passes it is "
        "stopped, and nothing more is sent to the session. None: no limit.",
    ).tag(config=True)

    loop_guard = Bool(
        True,
        help="Stop a turn whose model gives six equal answers within ten seconds.",
    ).tag(config=True)

    @validate("max_cost", "max_session_cost")
    def _is_a_ceiling(self, proposal: Any) -> Any:
        if proposal.value is not None and math.isnan(proposal.value):
            raise TraitError(f"{proposal.trait.name} takes USD, not NaN, which nothing passes.")
        return proposal.value

    def __init__(self, shell: Any) -> None:
        super().__init__(parent=shell)
        self.shell = shell
        self.session: Session | None = None
        self.turn: Turn | None = None
        self.own_server: ServerProcess | None = None
        self.recording: RecordingTarget | None = None
        self._client: Client | None = None
        self._tracked: dict[str, dict[str, TrackedSession]] = {}  # by the server's address, by id

    @property
    def client(self) -> Client:
        """The server in use; the first use finds one, and says which."""
        if self._client is None:
            print(f"Connected: {self.connect()}")
        assert self._client is not None
        return self._client

    @property
    def connected(self) -> Client | None:
        """The server in use, None if none was needed yet; looks for none."""
        return self._client

    def connect(
        self, url: str | None = None, directory: str | None = None, password: str | None = None
    ) -> Client:
        """Use another server, or another directory. The current session is let go."""
        from ..client.server import connect_to, is_same_server
        from ..notebook.answerer import can_ask

        where = directory or self.directory or None
        if (
            password is None
            and self.own_server is not None
            and is_same_server(url, self.own_server.url)
        ):
            password = self.own_server.password
        try:
            client = connect_to(url, directory=where, password=password)
        except AuthenticationError:
            if password is not None or not can_ask(self.shell):
                raise
            client = self._with_typed_password(url, where)
        self.disconnect()
        self._client = client
        return client

    def _with_typed_password(self, url: str | None, directory: str | None) -> Client:
        from ..client.server import connect_to

        try:
            return connect_to(url, directory=directory, password=_typed_password())
        except AuthenticationError as error:
            raise AuthenticationError(
                "The server did not accept that password.",
                "Run the cell again to type another one.",
                status=error.status,
            ) from error

    def resolve_directory(self, named: str | None) -> str | None:
        """A directory that was named here: what `~` and a relative path mean, the kernel knows."""
        if named is None or not self.client.local:
            return named
        return os.path.abspath(os.path.expanduser(named))

    def disconnect(self) -> None:
        """Let go of the server."""
        if self._client is not None:
            self._client.close()
        self._client = self.session = None

    def stop(self) -> bool:
        """Stop the server that `start` started; False if there is none."""
        if self.own_server is None:
            return False
        if self._client is not None and self._client.url == self.own_server.url:
            self.disconnect()
        self.own_server.stop()
        self.own_server = None
        return True

    def shut_down(self) -> None:
        """Let go of everything, and say what is lost with it."""
        if self.session is not None:
            print(f"The current session is let go. Come back with: %oc_session {self.session.id}")
        if self.own_server is not None and not self.own_server.keep:
            self.stop()
        if self.recording is not None:
            print(f"Nothing is recorded any more into {self.recording.path}.")
        self.recording = None
        self.disconnect()

    def answerer(self, permission: Policy | None = None) -> Answerer:
        """Who answers a turn's requests here."""
        from ..notebook.answerer import Answerer, can_ask

        return Answerer(permission or self.permission, self.noninteractive, can_ask(self.shell))

    @property
    def limits(self) -> Limits:
        """What stops a turn here."""
        from ..core.limits import Limits

        return Limits.of(self.max_cost, self.max_session_cost, loop_guard=self.loop_guard)

    def remember_turn(self, turn: Turn, name: str | None) -> None:
        """Keep a turn as the last one, and in a variable if it has a name."""
        self.turn = turn
        if name:
            self.shell.user_ns[name] = turn
        if self.recording is not None and turn.local.capture is not None:
            self._record(turn, self.recording)

    def _record(self, turn: Turn, recording: RecordingTarget) -> None:
        """Add a turn to what is recorded; that it can't be is said, and doesn't fail the turn."""
        from ..recording.files import save

        if turn.outcome == "running":
            print("This turn still runs, so it is not recorded yet; %oc_attach records it.")
            return
        if turn.prompt in recording.turns:
            return
        try:
            save(turn, recording.path, raw=recording.raw, append=True)
        except RecordingError as error:
            recording.failed = error.what
            print(f"The turn is not recorded. {error}")
        else:
            recording.turns[turn.prompt], recording.failed = None, ""

    @property
    def tracked(self) -> dict[str, TrackedSession]:
        """Sessions that this notebook made, chose or prompted on the server in use, by id.

        Asks nobody: without a server in use there are none.
        """
        return self._tracked.setdefault(self._client.url, {}) if self._client else {}

    def track(self, session: Session, how: TrackReason) -> Session:
        """Remember a session as one that this notebook has to do with; the first `how` stays."""
        known = self.tracked.get(session.id)
        self.tracked[session.id] = (
            replace(known, session=session) if known else TrackedSession(session, how)
        )
        return session

    def mark_ending(self, session: Session, action: Action | None) -> EndAttempt:
        """Note that a session is to be ended: until that is done it counts as `ending`.

        Without an action it is that with which it was begun, else the configured one.
        """
        known = self.tracked.get(session.id) or TrackedSession(session, "chosen")
        chosen = action or known.ending or self.end_action
        self.tracked[session.id] = replace(known, ending=chosen)
        return EndAttempt(chosen, resumed=known.ending is not None)

    def forget(self, session: str) -> None:
        """A session is gone, or none of ours any more."""
        self.tracked.pop(session, None)
        if self.session is not None and self.session.id == session:
            self.session = None

    def resolve_session(self, named: str) -> Session:
        """The session of an id, the beginning of one, or a title; of nothing, the current one.

        Raises:
            UsageError: There is no current session.
            UnknownNameError: No session fits, or more than one does.
        """
        from ..sessions.lookup import find_session

        return find_session(self.client, named) if named else self.require_session()

    def require_session(self) -> Session:
        """The current session.

        Raises:
            UsageError: There is none.
        """
        if self.session is None:
            raise UsageError(
                "There is no current session. Choose one: %oc_session TITLE. Or make one: "
                "%oc_new TITLE"
            )
        return self.session


def _typed_password() -> str:
    from getpass import getpass

    from ..client.password import Secret

    return Secret(getpass("Password of the OpenCode server: "))
