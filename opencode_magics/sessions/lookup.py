"""What a person calls a thing, and which one that is.

A session goes by its id, the beginning of it, or its title; models, variants, agents and commands
by their names. What fits nothing, or more than one, is told with what it could have been.
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
    """The session of an id, the beginning of an id, or a title.

    Args:
        client: Where to look; sessions of all directories count.
        reference: The id or its unique beginning, else the title in full or a unique part of it,
            in any case of letters.

    Raises:
        UnknownNameError: None fits, or more than one does.
    """
    with suppress(StatusError):
        if reference.startswith("ses"):
            return client.session(reference)
    sessions = client.sessions(everywhere=True)
    if found := pick_session(reference, sessions):
        return found
    titles = [s.title for s in sessions if s.title]
    raise UnknownNameError(
        f"No session {reference!r} on this server.{_did_you_mean(reference, titles)}",
        "%oc_sessions --all lists them.",
    )


def pick_session(
    reference: str, sessions: Iterable[Session], *, parts: bool = True
) -> Session | None:
    """The session of an id, the beginning of an id, or a title, among some; None if none fits.

    Args:
        reference: What it is called.
        sessions: Which can be meant.
        parts: A part of a title will do.

    Raises:
        UnknownNameError: More than one fits.
    """
    sessions, wanted = list(sessions), reference.casefold()
    tests: tuple[Callable[[Session], bool], ...] = (
        lambda s: s.id == reference,
        lambda s: (parts or len(reference) > len("ses_")) and s.id.startswith(reference),
        lambda s: s.title.casefold() == wanted,
        lambda s: parts and wanted in s.title.casefold(),
    )
    for test in tests:
        if found := [s for s in sessions if test(s)]:
            return _the_one(reference, found)
    return None


def _the_one(reference: str, found: list[Session]) -> Session:
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{s.id} ({s.title})" for s in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise UnknownNameError(
        f"{reference!r} could be {len(found)} sessions: {listed}{more}.",
        "Give more of the id or of the title.",
    )


def create_session(
    client: Client, title: str | None = None, directory: str | None = None
) -> Session:
    """A new session, in the directory that was asked for and no other.

    Raises:
        UnknownNameError: The server made it elsewhere; nothing was sent to it.
    """
    wanted = directory or client.directory
    session = client.create(title, wanted)
    if not same_directory(session.directory, wanted):
        raise UnknownNameError(
            f"The server made session {session.id} in {session.directory} instead of {wanted}.",
            "It may be too old to work in several directories; start one in the directory.",
        )
    return session


def same_directory(one: str, other: str) -> bool:
    """Whether two spellings name one directory, Windows drives and slashes included."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(directory: str) -> str:
    path = directory.rstrip("/\\") or "/"
    if path[1:2] == ":" or path.startswith("\\\\"):
        return path.replace("\\", "/").casefold()
    return path


# -- models, agents, commands ----------------------------------------------------------------------


def choose_model(models: Sequence[Model], name: str) -> Model:
    """The model of a name: `provider/model`, or a model id that only one provider has."""
    exact = [m for m in models if str(m.ref) == name]
    found = exact or [m for m in models if m.id == name]
    if len(found) == 1:
        return found[0]
    known = [str(m.ref) for m in found or models]
    hint = f" It could be {' or '.join(known)}." if found else _did_you_mean(name, known)
    raise UnknownNameError(
        f"No model {name!r} on this server.{hint}", "%oc_models lists them; write provider/model."
    )


def default_model(models: Iterable[Model]) -> Model | None:
    """The model that the server takes for a session that names none, if it tells."""
    return next((m for m in models if m.default), None)


def choose_variant(model: Model, name: str) -> str:
    """A variant of a model, by its name."""
    if name in model.variants:
        return name
    known = ", ".join(model.variants) or "none"
    raise UnknownNameError(f"Model {model.ref} has no variant {name!r}. It has: {known}.")


def choose_agent(agents: Sequence[Agent], name: str) -> Agent:
    """An agent by its name."""
    found = next((a for a in agents if a.name == name), None)
    if found:
        return found
    hint = _did_you_mean(name, (a.name for a in agents))
    raise UnknownNameError(f"No agent {name!r} on this server.{hint}", "%oc_agents lists them.")


def choose_command(commands: Sequence[Command], name: str) -> Command:
    """A command by its name, with or without the slash before it."""
    found = next((c for c in commands if c.name == name.removeprefix("/")), None)
    if found:
        return found
    known = ", ".join(c.name for c in commands) or "none"
    hint = _did_you_mean(name, (c.name for c in commands))
    raise UnknownNameError(f"No command {name!r} on this server.{hint} It has: {known}.")


# -- what a prompt names ---------------------------------------------------------------------------


def resolve_model_and_agent(
    client: Client,
    session: Session,
    model: str | None,
    agent: str | None,
    variant: str | None,
) -> tuple[ModelRef | None, str | None]:
    """The model and the agent that a prompt to a session would be sent with.

    Raises:
        UnknownNameError: The server has no such model, agent or variant.
    """
    return _model(client, session, model, variant), _agent(client, session, agent)


def _model(
    client: Client, session: Session, name: str | None, variant: str | None
) -> ModelRef | None:
    # Asked for every prompt: it also warms the directory, which a restarted server needs again.
    if name is None and variant is None:
        optional(lambda: client.models(session.directory), ())
        return None
    models = client.models(session.directory)
    if name is None and session.model is None:
        default = default_model(models)
        if default is None:
            raise UnknownNameError(
                f"Variant {variant!r} of which model? The server names no default.",
                "Add --model provider/model.",
            )
        name = str(default.ref)
    model = choose_model(models, name or str(session.model))
    chosen = choose_variant(model, variant) if variant else None
    return ModelRef(model.provider, model.id, chosen)


def _agent(client: Client, session: Session, name: str | None) -> str | None:
    # Left out, 1.x takes "build" and not the session's own agent.
    if name is not None:
        return choose_agent(client.agents(session.directory), name).name
    agents = optional(lambda: client.agents(session.directory), None)
    known = agents is None or any(a.name == session.agent for a in agents)
    return session.agent if known else None


def answering_model(client: Client, session: Session | None, name: str | None) -> Model | None:
    """The model that would answer a prompt, None if the server doesn't tell.

    Args:
        client: The server.
        session: Where the prompt goes; None is a session that is still to be made.
        name: The model that the prompt names.

    Raises:
        UnknownNameError: No such model.
    """
    models = client.models(session.directory if session else client.directory)
    if name is not None:
        return choose_model(models, name)
    own = session.model if session else None
    if own is None:
        return default_model(models)
    return next((m for m in models if (m.provider, m.id) == (own.provider, own.id)), None)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
