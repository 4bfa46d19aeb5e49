"""The state that the magics of one shell share: options, server, sessions, last turn, recording."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from IPython.core.error import UsageError
from traitlets import Bool, Enum, Float, Int, TraitError, Unicode, validate
from traitlets.config import Configurable

from ..errors import AuthenticationError, InsecureError, RecordingError

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
    """A session that this notebook created, selected or prompted.

    `ending` is the action of an `%oc_end` that has not finished; None if there is none.
    """

    session: Session
    reason: TrackReason
    ending: Action | None = None


class EndAttempt(NamedTuple):
    """How to end a session, and whether an earlier attempt is resumed."""

    action: Action
    resumed: bool


@dataclass(slots=True)
class RecordingTarget:
    """The file that turns are recorded to, and the state of the recording."""

    path: Path
    raw: bool = False
    turns: dict[str, None] = field(default_factory=dict)  # ids of the prompts, in order
    failed: str = ""  # why the latest turn was not recorded

    def __str__(self) -> str:
        content = "unredacted, including secrets" if self.raw else "without secrets and home paths"
        so_far = f"\n{len(self.turns)} recorded so far." if self.turns else ""
        failed = f"\nThe latest turn was not recorded: {self.failed}" if self.failed else ""
        return f"Recording turns to {self.path}, {content}.{so_far}{failed}"


class OpenCodeMagics(Configurable):
    """Options of the magics, and their state: the server, the current session, the last turn."""

    directory = Unicode("", help="Working directory; empty: the kernel's.").tag(config=True)
    insecure_http = Bool(
        False, help="Send passwords to other machines over plain http, without asking."
    ).tag(config=True)
    max_response_mb = Float(
        200.0, min=0, help="Megabytes of a server's reply, decompressed, above which it is refused."
    ).tag(config=True)
    max_event_mb = Float(
        50.0, min=0, help="Megabytes of a line of the event stream above which it is refused."
    ).tag(config=True)
    max_pages = Int(5_000, min=1, help="Pages of a list above which it is refused.").tag(
        config=True
    )
    model = Unicode("", help="Model for prompts, provider/model; empty: the session's.").tag(
        config=True
    )
    agent = Unicode("", help="Agent for prompts; empty: the session's.").tag(config=True)
    permission = Enum(
        ["ask", "once", "reject"],
        "ask",
        help="How to answer permission requests: ask you, allow once, or reject.",
    ).tag(config=True)
    noninteractive = Enum(
        ["reject", "once", "error"],
        "reject",
        help="How to answer permission requests when nobody can answer (nbclient, papermill, "
        "scripts): reject, allow once, or error, which stops the turn and fails the cell. "
        "Questions are dismissed.",
    ).tag(config=True)

    ui = Enum(
        ["auto", "widgets", "text"],
        "auto",
        help="How to ask you: with buttons (widgets), by typing (text), or with buttons where they "
        "work and by typing elsewhere (auto).",
    ).tag(config=True)

    history_cache = Bool(
        True,
        help="Cache the messages of unchanged sessions in a file that only your user can read.",
    ).tag(config=True)

    end_action = Enum(
        ["delete", "archive"],
        "delete",
        help="What %oc_end does after it stopped a session: delete it permanently, or archive it.",
    ).tag(config=True)

    max_cost = Float(
        None,
        allow_none=True,
        min=0,
        help="Cost limit of a turn in USD: the turn is stopped when its known cost, including "
        "subagents, exceeds the limit. None: no limit.",
    ).tag(config=True)

    max_session_cost = Float(
        None,
        allow_none=True,
        min=0,
        help="Cost limit of a session in USD, including subagents: a turn that exceeds it is "
        "stopped, and nothing more is sent to the session. None: no limit.",
    ).tag(config=True)

    loop_guard = Bool(
        True,
        help="Stop a turn whose model gives the same answer six times within ten seconds.",
    ).tag(config=True)

    @validate("max_cost", "max_session_cost")
    def _reject_nan(self, proposal: Any) -> Any:
        if proposal.value is not None and math.isnan(proposal.value):
            raise TraitError(f"{proposal.trait.name} takes an amount in USD, not NaN.")
        return proposal.value

    def __init__(self, shell: Any) -> None:
        super().__init__(parent=shell)
        self.shell = shell
        self.session: Session | None = None
        self.turn: Turn | None = None
        self.own_server: ServerProcess | None = None
        self.recording: RecordingTarget | None = None
        self._client: Client | None = None
        self._tracked: dict[str, dict[str, TrackedSession]] = {}  # by server address, then by id

    @property
    def client(self) -> Client:
        """The server in use. The first access connects to one and prints its address."""
        if self._client is None:
            print(f"Connected: {self.connect()}")
        assert self._client is not None
        self._client.limit(self.max_response_mb, self.max_event_mb, self.max_pages)
        return self._client

    @property
    def connected(self) -> Client | None:
        """The server in use, or None. Never connects."""
        return self._client

    def connect(
        self,
        url: str | None = None,
        directory: str | None = None,
        password: str | None = None,
        *,
        insecure: bool = False,
    ) -> Client:
        """Connect to a server and a directory; then there is no current session.

        If that fails, the earlier connection stays.

        Args:
            url: The address of the server.
            directory: The directory.
            password: The password.
            insecure: Whether it may be sent to another machine over plain http.
        """
        from ..client.server import connect_to, is_same_server
        from ..notebook.answerer import can_ask

        directory = directory or self.directory or None
        if (
            password is None
            and self.own_server is not None
            and is_same_server(url, self.own_server.url)
        ):
            password = self.own_server.password
        insecure = insecure or self.insecure_http
        try:
            client = connect_to(url, directory=directory, password=password, insecure=insecure)
        except InsecureError as error:
            if not can_ask(self.shell) or not _agrees(f"{error.what} Send it?"):
                raise
            return self.connect(url, directory, password, insecure=True)
        except AuthenticationError:
            if password is not None or not can_ask(self.shell):
                raise
            client = self._connect_with_typed_password(url, directory, insecure)
        self.disconnect()
        self._client = client
        return client

    def _connect_with_typed_password(
        self, url: str | None, directory: str | None, insecure: bool
    ) -> Client:
        from ..client.server import connect_to

        typed = _typed_password()
        try:
            return connect_to(url, directory=directory, password=typed, insecure=insecure)
        except AuthenticationError as error:
            raise AuthenticationError(
                "The server did not accept that password.",
                "Run the cell again to type another one.",
                status=error.status,
            ) from error

    def resolve_directory(self, named: str | None) -> str | None:
        """Return a directory as an absolute path, expanding `~`, if the server runs here.

        A remote server gets the name unchanged: its paths are not the kernel's.
        """
        if named is None or not self.client.local:
            return named
        return self.client.real(os.path.abspath(os.path.expanduser(named)))

    def disconnect(self) -> None:
        """Close the connection; then there is no current session."""
        if self._client is not None:
            self._client.close()
        self._client = self.session = None

    def stop(self) -> bool:
        """Stop the server that `%oc_start` started; return False if there is none."""
        if self.own_server is None:
            return False
        if self._client is not None and self._client.url == self.own_server.url:
            self.disconnect()
        self.own_server.stop()
        self.own_server = None
        return True

    def shut_down(self) -> None:
        """Disconnect, stop this notebook's server and the recording, and print what was lost."""
        if self.session is not None:
            print(f"The current session was deselected. To return: %oc_session {self.session.id}")
        if self.own_server is not None and not self.own_server.keep:
            self.stop()
        if self.recording is not None:
            print(f"Recording to {self.recording.path} stopped.")
        self.recording = None
        self.disconnect()

    def answerer(self, permission: Policy | None = None) -> Answerer:
        """Return the answerer of a turn's permission requests and questions."""
        from ..notebook.answerer import Answerer, can_ask

        return Answerer(permission or self.permission, self.noninteractive, can_ask(self.shell))

    @property
    def limits(self) -> Limits:
        """The configured limits of a turn."""
        from ..core.limits import Limits

        return Limits.of(self.max_cost, self.max_session_cost, loop_guard=self.loop_guard)

    def remember_turn(self, turn: Turn, name: str | None) -> None:
        """Store a turn as the last one and, if `name` is given, in that variable; record it."""
        self.turn = turn
        if name:
            self.shell.user_ns[name] = turn
        if self.recording is not None and turn.local.capture is not None:
            self._record(turn, self.recording)

    def _record(self, turn: Turn, recording: RecordingTarget) -> None:
        """Add a turn to the recording. A failure is printed, so that it doesn't fail the cell."""
        from ..recording.files import save

        if turn.outcome == "running":
            print("This turn is still running and not recorded yet. %oc_attach records it.")
            return
        if turn.prompt in recording.turns:
            return
        try:
            save(turn, recording.path, raw=recording.raw, append=True)
        except RecordingError as error:
            recording.failed = error.what
            print(f"The turn was not recorded. {error}")
        else:
            recording.turns[turn.prompt], recording.failed = None, ""

    @property
    def tracked(self) -> dict[str, TrackedSession]:
        """Sessions of the server in use that this notebook created, selected or prompted, by id.

        Empty without a connection; sends no request.
        """
        return self._tracked.setdefault(self._client.url, {}) if self._client else {}

    def track(self, session: Session, reason: TrackReason) -> Session:
        """Track a session, or update a tracked one; it keeps its first reason."""
        known = self.tracked.get(session.id)
        self.tracked[session.id] = (
            replace(known, session=session) if known else TrackedSession(session, reason)
        )
        return session

    def mark_ending(self, session: Session, action: Action | None) -> EndAttempt:
        """Mark a session as `ending` until `forget` is called.

        Without an action, use that of the unfinished attempt, else the configured one.
        """
        known = self.tracked.get(session.id) or TrackedSession(session, "chosen")
        action = action or known.ending or self.end_action
        self.tracked[session.id] = replace(known, ending=action)
        return EndAttempt(action, resumed=known.ending is not None)

    def forget(self, session: str) -> None:
        """Stop tracking a session; if it is the current one, there is none afterwards."""
        self.tracked.pop(session, None)
        if self.session is not None and self.session.id == session:
            self.session = None

    def resolve_session(self, named: str) -> Session:
        """Return the session with this id, beginning of an id, or title; "": the current one.

        Raises:
            UsageError: There is no current session.
            UnknownNameError: No session matches, or several do.
        """
        from ..sessions.lookup import find_session

        return find_session(self.client, named) if named else self.require_session()

    def require_session(self) -> Session:
        """Return the current session.

        Raises:
            UsageError: There is no current session.
        """
        if self.session is None:
            raise UsageError(
                "There is no current session. Select one with %oc_session TITLE, or create one "
                "with %oc_new TITLE."
            )
        return self.session


def _agrees(question: str) -> bool:
    """Ask a person; anything but yes is no."""
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _typed_password() -> str:
    from getpass import getpass

    from ..client.password import Secret

    return Secret(getpass("Password of the OpenCode server: "))
