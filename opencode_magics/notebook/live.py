"""A live turn in a notebook cell, drawn with ordinary display outputs.

An output holds consecutive blocks. When it is full, the next one begins, so only the last output
is sent repeatedly. Outputs hold about 8 kB; after the first eight, the size doubles every three
outputs, which keeps the longest turn below the 50 outputs that JupyterLab shows. An output is
static HTML with a plain-text twin, so a saved notebook reads the same without a kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from ..core.model import Reasoning, Text
from ..core.turn import Turn
from . import html, markdown, text, wording
from .blocks import Block, Recap, RequestState, blocks
from .interrupts import DeferredInterrupt

Display = Callable[[dict[str, str], str, bool], None]
MAX_OUTPUTS = 44
OUTPUT_SIZE = 8_000  # characters in each of the first eight outputs
RATE = 120_000  # characters sent per second, approximately


class View(Protocol):
    """Shows a turn: pass each later state to `show`, and the last one to `close`."""

    def show(self, turn: Turn, note: str = "") -> None:
        """Show a later state of the turn, with a note that is not part of the turn."""

    @property
    def outputs(self) -> int | None:
        """Number of outputs made so far in the cell; None if the view makes none."""

    def lend_output(self) -> str:
        """Return a display id for something else below; the view's next output replaces it."""

    def step_aside(self) -> None:
        """Let something else be shown; later output of the view comes below it."""

    def close(self, turn: Turn, note: str = "") -> None:
        """Show the last state. Later calls do nothing."""


def view(shell: Any) -> View:
    """Return the view for a shell: live outputs if it has a kernel, else plain text."""
    return LiveCell() if getattr(shell, "kernel", None) is not None else text.TextView()


class LiveCell:
    """Draws a turn in the running cell.

    Args:
        display: Shows or updates a bundle under a display id; None uses IPython's `display`.
        min_interval: Minimum seconds between two drawings.
    """

    def __init__(self, display: Display | None = None, min_interval: float = 0.1) -> None:
        self._display = display or _display
        self._min_interval = min_interval
        self._next = 0.0
        self._shown: tuple[Turn | None, str] = (None, "")
        self._drawn = 0
        self._closed = False
        self._has_text = False
        self._layout = _Layout()
        self._sent: list[tuple[str, bool]] = []
        self._ids: list[str] = []
        self._lent = ""
        self._id, self._id_count = f"opencode-{uuid4().hex[:12]}", 0

    def show(self, turn: Turn, note: str = "") -> None:
        """Draw a later state, unless it is unchanged or the last drawing is too recent."""
        now = time.monotonic()
        previous, previous_note = self._shown
        if self._closed or (turn is previous and note == previous_note):
            return
        # The first text, requests and notes are drawn without delay.
        first = previous is None or (not self._has_text and _has_text(turn))
        urgent = first or turn.waiting != getattr(previous, "waiting", ()) or note != previous_note
        if now < self._next and not urgent:
            return
        with DeferredInterrupt():  # an interrupted send would count as sent
            self._draw(turn, note, final=False)
        self._has_text = self._has_text or _has_text(turn)
        # Large or slow drawings are made less often.
        duration = time.monotonic() - now
        self._next = now + max(self._min_interval, self._drawn / RATE, 3 * duration)

    @property
    def outputs(self) -> int:
        """Number of outputs made so far."""
        return len(self._sent)

    def lend_output(self) -> str:
        """Return the display id of an output below all others, to show something else there.

        The view's next output replaces it, so that no empty output remains.
        """
        self._lent = self._lent or self._new_id()
        return self._lent

    def step_aside(self) -> None:
        """Let something else be shown in the cell; later blocks go to an output below it."""
        self._lent = ""
        self._layout.end_output()

    def close(self, turn: Turn, note: str = "") -> None:
        """Draw the last state, with the plain-text twins of all outputs."""
        if not self._closed:
            with DeferredInterrupt():
                self._closed = True
                self._draw(turn, note, final=True)

    def _draw(self, turn: Turn, note: str, final: bool) -> None:
        self._shown, self._drawn = (turn, note), 0
        *full, last = self._layout.arrange(blocks(turn))
        for n, pieces in enumerate(full):
            self._send(n, [p.html for p in pieces], pieces, ())
        end = [line for line in (wording.clean(note), wording.summary(turn)) if line]
        fragments = [*(p.html for p in last), html.last_line(turn, note)]
        self._send(len(full), fragments, last if final else (), end)

    def _send(
        self, n: int, fragments: Iterable[str], pieces: Sequence[_Piece], end: Sequence[str]
    ) -> None:
        """Send an output if it changed. Its text/plain is the text of `pieces` and `end`."""
        content = (html.page(fragments), bool(pieces))
        new = n == len(self._sent)
        if not new and content == self._sent[n]:
            return
        update = not new or bool(self._lent)
        if new:
            self._ids.append(self._lent or self._new_id())
            self._lent = ""
        self._sent[n : n + 1] = [content]
        self._drawn += len(content[0])
        plain = "\n\n".join(t for t in (text.join(p.block for p in pieces), *end) if t)
        self._display({"text/html": content[0], "text/plain": plain}, self._ids[n], update)

    def _new_id(self) -> str:
        self._id_count += 1
        return f"{self._id}-{self._id_count - 1}"


def _has_text(turn: Turn) -> bool:
    return any(getattr(p, "text", "") for m in turn.answers for p in m.parts)


class _Piece(NamedTuple):
    """A block, or a section of a long text, with its HTML."""

    block: Block
    html: str


class _Layout:
    """Distributes a turn's blocks over outputs. A block stays in its output."""

    def __init__(self) -> None:
        self._output_by_key: dict[str, int] = {}
        self._splits: dict[str, list[markdown.SplitPoint]] = {}
        self._texts: dict[str, str] = {}
        self._pieces: dict[str, _Piece] = {}
        self._renderers: dict[str, markdown.IncrementalMarkdown] = {}
        self._outputs: list[list[_Piece]] = [[]]
        self._sizes = [0]
        self._ended = 0

    def arrange(self, blocks: Iterable[Block]) -> list[list[_Piece]]:
        """Return the pieces of every output, in order."""
        self._outputs = [[] for _ in self._outputs]
        self._sizes = [0 for _ in self._outputs]
        at = 0
        for block in blocks:
            if isinstance(block.value, Text | Reasoning | Recap):
                at = self._arrange_prose(block, block.value, at)
            else:
                at = self._output_for(block.key, at, follows=isinstance(block.value, RequestState))
                piece = self._piece(block)
                self._add(piece, at, len(piece.html))
        return self._outputs

    def _arrange_prose(self, block: Block, value: Text | Reasoning | Recap, at: int) -> int:
        """Add a text, split where an output is full. Split points never move."""
        full_text = wording.clean(value.text)
        splits = self._splits_of(block.key, full_text)
        start, carry, n = 0, "", 0
        while True:
            split = splits[n] if n < len(splits) else None
            rest = full_text[start : split.at] + split.close if split else full_text[start:]
            section_text = carry + rest
            key = f"{block.key}~{n}" if n else block.key
            at = self._output_for(key, at)
            room = max(self._room_left(at), 1_000)
            if split is None and len(section_text) > room and self._can_continue(at):
                cut = markdown.cut(section_text, room)
                advance = max(cut.at - len(carry), 1)
                splits.append(cut._replace(at=start + advance))
                continue
            closed = block.closed or split is not None
            section = Block(key, replace(value, text=section_text), closed)
            self._add(self._prose(section, continued=n > 0), at, len(section_text))
            if split is None:
                return at
            start, carry, n = split.at, split.carry, n + 1

    def _splits_of(self, key: str, full_text: str) -> list[markdown.SplitPoint]:
        """The split points of a text so far; none if the text changed before the last one."""
        splits, previous = self._splits.setdefault(key, []), self._texts.get(key, "")
        if splits and full_text[: splits[-1].at] != previous[: splits[-1].at]:
            splits.clear()
        self._texts[key] = full_text
        return splits

    # -- outputs -------------------------------------------------------------------------------

    def end_output(self) -> None:
        """Treat all outputs that have content as full."""
        self._ended = len(self._outputs) if self._outputs[-1] else len(self._outputs) - 1

    def _output_for(self, key: str, at: int, follows: bool = False) -> int:
        """Return the output of a piece: its earlier one, else `at`, else the next if `at` is full.

        A piece that `follows` stays in the output of the piece before it.
        """
        if key not in self._output_by_key:
            self._output_by_key[key] = at if follows else self._output_after(at)
        return max(self._output_by_key[key], at)

    def _output_after(self, at: int) -> int:
        """Return the output for a new piece that comes after the content of output `at`."""
        full = self._sizes[at] >= _capacity(at) * 3 // 4
        if at < self._ended < len(self._outputs):
            return self._ended
        if (full or at < self._ended) and self._can_continue(at):
            self._outputs.append([])
            self._sizes.append(0)
            return at + 1
        return at

    def _can_continue(self, at: int) -> bool:
        """Return whether an output is the last one and another may follow it."""
        return at == len(self._outputs) - 1 < MAX_OUTPUTS - 1

    def _room_left(self, at: int) -> int:
        return _capacity(at) - self._sizes[at]

    def _add(self, piece: _Piece, at: int, size: int) -> None:
        self._outputs[at].append(piece)
        self._sizes[at] += size

    # -- pieces, redrawn only if they changed --------------------------------------------------

    def _piece(self, block: Block) -> _Piece:
        piece = self._pieces.get(block.key)
        if piece is None or piece.block != block:
            piece = self._pieces[block.key] = _Piece(block, html.block(block))
        return piece

    def _prose(self, section: Block, continued: bool) -> _Piece:
        previous, value = self._pieces.get(section.key), section.value
        if previous is not None and previous.block == section:
            return previous
        assert isinstance(value, Text | Reasoning | Recap)
        renderer = self._renderers.setdefault(section.key, markdown.IncrementalMarkdown())
        inner = renderer.render(value.text, section.closed)
        piece = _Piece(section, html.prose(value, inner, continued))
        self._pieces[section.key] = piece
        return piece


def _capacity(n: int) -> int:
    """Return the number of characters that output `n` holds."""
    return OUTPUT_SIZE if n < 8 else OUTPUT_SIZE << (n - 5) // 3


def _display(bundle: dict[str, str], display_id: str, update: bool) -> None:
    from IPython.display import display

    display(bundle, raw=True, display_id=display_id, update=update)
