"""Find the earlier answer to a prompt, so that running a notebook again sends nothing.

Prompts are the same if the same text, files, model and agent were asked for; an answer is a turn
that succeeded. A digest of each prompt is saved in its session's metadata before the prompt is
sent. Without a digest, a prompt without files is recognized by its text, and by the model and agent
that answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..client.client import Client, optional
from ..core.model import Attachment, Message, ModelRef, Session
from ..core.turn import Turn
from ..sessions.lookup import default_model, resolve_model_and_agent
from ..sessions.metadata import load_records, save_record
from ..sessions.transcript import read_transcript

_MAX_DIGESTS = 200  # in a session's metadata


@dataclass(frozen=True, slots=True)
class PromptKey:
    """A prompt as it would be sent now, with the model and agent that would answer it."""

    text: str
    files: tuple[Attachment, ...]
    digest: str
    model: ModelRef | None
    agent: str | None


@dataclass(frozen=True, slots=True, repr=False)
class CachedAnswer:
    """An earlier answer to a prompt: its turn and session."""

    session: Session
    turn: Turn


def prompt_key(
    client: Client,
    session: Session,
    text: str,
    files: Sequence[Attachment],
    *,
    model: str | None,
    agent: str | None,
    variant: str | None,
) -> PromptKey:
    """Make the key of a prompt to a session.

    Raises:
        UnknownNameError: The server has no such model, agent or variant.
    """
    chosen, named = resolve_model_and_agent(client, session, model, agent, variant)
    models = optional(lambda: client.models(session.directory), ())
    default = default_model(models)
    asked = chosen or session.model or (default.ref if default else None)
    key = digest(text, files, model, agent, variant)
    return PromptKey(text, tuple(files), key, asked, named)


def digest(
    text: str,
    files: Sequence[Attachment],
    model: str | None,
    agent: str | None,
    variant: str | None,
) -> str:
    """A digest of a prompt: its text, the given names, and its files with their contents."""
    asked = [text, model, agent, variant, [[f.mime, f.filename, f.url] for f in files]]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def save_prompt(client: Client, session: Session, prompt: PromptKey, message: str) -> None:
    """Save the id of a prompt's message with the session; call this before sending the prompt."""
    save_record(client, session, "prompts", prompt.digest, message, _MAX_DIGESTS)


def find_in_session(client: Client, session: Session, prompt: PromptKey) -> CachedAnswer | None:
    """Find the answer to a prompt in a session, if there is one."""
    now = client.session(session.id)
    message_id = _prompts(now).get(prompt.digest)
    messages = {m.id: m for m in client.readable_messages(now)}
    if message_id not in messages and not any(_same_text(m, prompt) for m in messages.values()):
        return None
    for turn in _answered(client, now):
        stored = messages.get(turn.prompt)
        if stored is None:
            continue
        # What was asked decides, not the session's model of now: that is in the digest.
        if turn.prompt == message_id:
            return CachedAnswer(now, turn)
        if _same_text(stored, prompt) and _same_names(stored, turn, prompt):
            return CachedAnswer(now, turn)
    return None


def find_in_directory(client: Client, directory: str, prompt: PromptKey) -> CachedAnswer | None:
    """Find the answer to a prompt in the sessions of a directory that have saved it."""
    sessions = client.sessions(directory, project=False)
    for session in (s for s in sessions if prompt.digest in _prompts(s)):
        if found := find_in_session(client, session, prompt):
            return found
    return None


def _prompts(session: Session) -> dict[str, str]:
    """Message ids by digest, from the session's metadata; unreadable entries are left out."""
    return {
        k: v for k, v in load_records(session.metadata, "prompts").items() if isinstance(v, str)
    }


def _answered(client: Client, session: Session) -> Iterator[Turn]:
    """Yield the session's succeeded turns, the latest first, without reverted ones."""
    turns = read_transcript(client, session).turns
    reverted = next((n for n, t in enumerate(turns) if t.prompt == session.revert), len(turns))
    for turn in reversed(turns[:reverted]):
        if turn.outcome == "succeeded" and not turn.merged:
            yield turn


def _same_text(stored: Message, prompt: PromptKey) -> bool:
    """Return whether a stored prompt without files has the same text; files aren't comparable."""
    plain = stored.role == "user" and not stored.synthetic and not prompt.files
    with_files = any(isinstance(p, Attachment) for p in stored.parts)
    return plain and not with_files and stored.text == prompt.text


def _same_names(stored: Message, turn: Turn, prompt: PromptKey) -> bool:
    """Return whether the same model and agent answered; on 2.x only the answer names them."""
    model, agent = stored.model or turn.model, stored.agent or turn.agent
    same_agent = prompt.agent is None or agent == prompt.agent
    return same_agent and model is not None and model == prompt.model
