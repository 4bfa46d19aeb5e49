"""Look up sessions, models, agents and commands by the names that users give.

Sessions are found by id, by a prefix of the id, or by title; models, variants, agents and commands
by name. The error for no match or several matches suggests candidates.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ..client.client import Client, optional
from ..core.model import Agent, Command, Model, ModelRef, Session
from ..errors import StatusError, UnknownNameError

# -- sessions --------------------------------------------------------------------------------------


def find_session(client: Client, reference: str) -> Session:
    """Find a session by its id, a prefix of its id, or its title.

    Args:
        client: The server; sessions of all directories are searched.
        reference: The id or a unique prefix of it, else the title or a unique part of it,
            case-insensitively.

    Raises:
        UnknownNameError: No session matches, or several do.
    """
    with suppress(StatusError):
        if reference.startswith("ses"):
            return client.session(reference)
    sessions = client.sessions(everywhere=True)
    if match := pick_session(reference, sessions):
        return match
    titles = [s.title for s in sessions if s.title]
    raise UnknownNameError(
        f"No session {reference!r} on this server.{_did_you_mean(reference, titles)}",
        "%oc_sessions --all lists them.",
    )


def pick_session(
    reference: str, sessions: Iterable[Session], *, parts: bool = True
) -> Session | None:
    """Pick a session by its id, its title, or a prefix of its id; None if no session matches.

    An exact title wins over the beginning of an id: "s" can be a title.

    Args:
        reference: The id, prefix or title.
        sessions: The sessions to choose from.
        parts: Whether a part of a title is enough.

    Raises:
        UnknownNameError: Several sessions match.
    """
    sessions, folded = list(sessions), reference.casefold()
    tests: tuple[Callable[[Session], bool], ...] = (
        lambda s: s.id == reference,
        lambda s: s.title.casefold() == folded,
        lambda s: (parts or len(reference) > len("ses_")) and s.id.startswith(reference),
        lambda s: parts and folded in s.title.casefold(),
    )
    for test in tests:
        if matches := [s for s in sessions if test(s)]:
            return _unique(reference, matches)
    return None


def _unique(reference: str, matches: list[Session]) -> Session:
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(f"{s.id} ({s.title})" for s in matches[:5])
    more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
    raise UnknownNameError(
        f"{reference!r} matches {len(matches)} sessions: {listed}{more}.",
        "Use a longer part of the id or the title.",
    )


def create_session(
    client: Client, title: str | None = None, directory: str | None = None
) -> Session:
    """Create a session, and check that it is in the requested directory.

    Raises:
        UnknownNameError: The server created it in another directory; no prompt was sent to it.
    """
    requested = client.real(directory) or client.directory
    session = client.create(title, requested)
    if not same_directory(session.directory, requested):
        raise UnknownNameError(
            f"The server created session {session.id} in {session.directory} "
            f"instead of {requested}.",
            "It may be too old to work in several directories; start one in that directory.",
        )
    return session


def same_directory(one: str, other: str) -> bool:
    """Return whether two paths name the same directory, also with Windows drives and slashes."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(directory: str) -> str:
    path = directory.rstrip("/\\") or "/"
    if path[1:2] == ":" or path.startswith("\\\\"):
        return path.replace("\\", "/").casefold()
    return path


# -- models, agents, commands ----------------------------------------------------------------------


def choose_model(models: Sequence[Model], name: str) -> Model:
    """Choose a model by `provider/model`, or by a model id that only one provider has."""
    exact = [m for m in models if str(m.ref) == name]
    matches = exact or [m for m in models if m.id == name]
    if len(matches) == 1:
        return matches[0]
    known = [str(m.ref) for m in matches or models]
    hint = f" It could be {' or '.join(known)}." if matches else _did_you_mean(name, known)
    raise UnknownNameError(
        f"No model {name!r} on this server.{hint}", "%oc_models lists them; write provider/model."
    )


def default_model(models: Iterable[Model]) -> Model | None:
    """The server's default model; None if it doesn't report one."""
    return next((m for m in models if m.default), None)


def choose_variant(model: Model, name: str) -> str:
    """Check the name of a model's variant, and return it."""
    if name in model.variants:
        return name
    known = ", ".join(model.variants) or "none"
    raise UnknownNameError(f"Model {model.ref} has no variant {name!r}. It has: {known}.")


def choose_agent(agents: Sequence[Agent], name: str) -> Agent:
    """Choose an agent by its name."""
    agent = next((a for a in agents if a.name == name), None)
    if agent:
        return agent
    hint = _did_you_mean(name, (a.name for a in agents))
    raise UnknownNameError(f"No agent {name!r} on this server.{hint}", "%oc_agents lists them.")


def choose_command(commands: Sequence[Command], name: str) -> Command:
    """Choose a command by its name, with or without a leading slash."""
    command = next((c for c in commands if c.name == name.removeprefix("/")), None)
    if command:
        return command
    known = ", ".join(c.name for c in commands) or "none"
    hint = _did_you_mean(name, (c.name for c in commands))
    raise UnknownNameError(f"No command {name!r} on this server.{hint} It has: {known}.")


# -- the model and agent of a prompt ---------------------------------------------------------------


def resolve_model_and_agent(
    client: Client,
    session: Session,
    model: str | None,
    agent: str | None,
    variant: str | None,
) -> tuple[ModelRef | None, str | None]:
    """Resolve the model and the agent to send with a prompt; None leaves them to the server.

    Raises:
        UnknownNameError: The server has no such model, agent or variant.
    """
    return _model(client, session, model, variant), _agent(client, session, agent)


def _model(
    client: Client, session: Session, name: str | None, variant: str | None
) -> ModelRef | None:
    # Read the models for every prompt: that also warms the directory after a server restart.
    if name is None and variant is None:
        optional(lambda: client.models(session.directory), ())
        return None
    models = client.models(session.directory)
    if name is None and session.model is None:
        default = default_model(models)
        if default is None:
            raise UnknownNameError(
                f"Variant {variant!r} needs a model: the server has no default model.",
                "Add --model provider/model.",
            )
        name = str(default.ref)
    model = choose_model(models, name or str(session.model))
    chosen = choose_variant(model, variant) if variant else None
    return ModelRef(model.provider, model.id, chosen)


def _agent(client: Client, session: Session, name: str | None) -> str | None:
    # Without an agent, 1.x would use "build" instead of the session's agent.
    if name is not None:
        return choose_agent(client.agents(session.directory), name).name
    agents = optional(lambda: client.agents(session.directory), None)
    known = agents is None or any(a.name == session.agent for a in agents)
    return session.agent if known else None


def answering_model(client: Client, session: Session | None, name: str | None) -> Model | None:
    """The model that would answer a prompt; None if the server doesn't report it.

    Args:
        client: The server.
        session: The prompt's session; None if it is yet to be created.
        name: The model given with the prompt, if any.

    Raises:
        UnknownNameError: There is no such model.
    """
    models = client.models(session.directory if session else client.directory)
    if name is not None:
        return choose_model(models, name)
    own = session.model if session else None
    if own is None:
        return default_model(models)
    return next((m for m in models if (m.provider, m.id) == (own.provider, own.id)), None)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*dict.fromkeys(known)], n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
