"""OpenCode 2.x: what 2.0.16 sent, what it is asked, and how servers in between differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded import V2_FLOWS, transcript

from opencode_magics.model import Message, Text
from opencode_magics.turn import Turn, advance, advance_all

# -- the transcripts -------------------------------------------------------------------------------

# By transcript and prompt: outcome, last words, tools with their status, input tokens.
TURNS: dict[tuple[str, int], tuple[str, str, list[tuple[str, str]], int | None]] = {
    ("turn", 0): ("succeeded", "finished", [("shell", "completed")], 5712),
    ("steer", 0): ("succeeded", "finished\n\nmarble", [("shell", "completed")], 5698),
    ("steer", 1): ("succeeded", "finished\n\nmarble", [], 2888),
    ("interrupt", 0): ("aborted", "", [("shell", "error")], 2811),
    ("permission", 0): ("succeeded", "finished", [("shell", "completed")], 5689),
    ("permission", 1): ("rejected", "", [("shell", "error")], 52),
    ("question", 0): ("succeeded", "Red it is — noted 🎨", [("question", "completed")], 5741),
    ("question", 1): ("rejected", "", [("question", "error")], 121),
    ("failure", 0): ("failed", "", [], None),
}
EVERY = [(name, n) for name in V2_FLOWS for n in range(len(transcript(name).prompts))]


def whole(name: str, prompt: int) -> Turn:
    """A turn as the stream and then the store tell it."""
    recorded = transcript(name)
    start = Turn(recorded.session, recorded.prompts[prompt])
    return advance(advance_all(start, recorded.heard()), recorded.stored())


@pytest.mark.parametrize(("name", "prompt"), EVERY)
def test_every_transcript_has_its_outcome(name: str, prompt: int) -> None:
    turn = whole(name, prompt)
    tools = [(t.tool, t.status) for t in turn.tools]
    tokens = turn.usage.input if turn.usage else None
    assert (turn.outcome, turn.text, tools, tokens) == TURNS[name, prompt]


@pytest.mark.parametrize(("name", "prompt"), EVERY)
def test_a_stream_cut_at_any_frame_and_reread_ends_in_the_same_turn(name: str, prompt: int) -> None:
    recorded = transcript(name)
    turn, end, stored = (
        Turn(recorded.session, recorded.prompts[prompt]),
        whole(name, prompt),
        recorded.stored(),
    )
    for event in recorded.heard():
        assert advance(turn, stored) == end
        turn = advance(turn, event)


@pytest.mark.parametrize("name", V2_FLOWS)
def test_a_whole_stream_tells_what_the_store_holds(name: str) -> None:
    """Apart from what 2.0.16 doesn't store: the times of texts, why a turn failed."""
    recorded = transcript(name)
    turn = advance_all(Turn(recorded.session, recorded.prompts[0]), recorded.heard())
    assert comparable(turn.log) == comparable(advance(turn, recorded.stored()).log)


def comparable(log: tuple[Message, ...]) -> list[Message]:
    def bare(part: Any) -> Any:
        return replace(part, start=None, end=0) if isinstance(part, Text) else part

    def told(message: Message) -> Message:
        failure = None if message.role == "system" else message.error
        return replace(message, error=failure, parts=tuple(map(bare, message.parts)))

    return [told(m) for m in log]
