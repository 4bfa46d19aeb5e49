"""A turn in a notebook cell, drawn as it goes on with ordinary display outputs.

One output holds any consecutive blocks. One that is full is left alone and the next begins, so only
the open one is sent again and again: about 8 kB for the first eight outputs, then twice as much
every three, which keeps the longest turn below the 50 outputs that JupyterLab shows. What is sent
is static HTML with a plain-text twin, so a saved notebook reads the same without a kernel.
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
ROOM = 8_000  # characters in one of the first eight outputs
RATE = 120_000  # characters sent in a second, about


class View(Protocol):
    """What shows a turn: give it one state after another, and the last one to `close`."""

    def show(self, turn: Turn, note: str = "") -> None:
        """Show a later state of the turn; `note` tells what the turn itself can't."""

    @property
    def outputs(self) -> int | None:
        """How many outputs of a cell it has made so far; None if it can't have any."""

    def lend_output(self) -> str:
        """A display id to show something else with, below; the next output takes its place."""

    def step_aside(self) -> None:
        """Let something else be shown; what comes next stands below it."""

    def close(self, turn: Turn, note: str = "") -> None:
        """Show the last state. After that the view shows no more."""


def view(shell: Any) -> View:
    """The view that fits a shell: live outputs where there is a kernel, else plain text."""
    return LiveCell() if getattr(shell, "kernel", None) is not None else text.TextView()


class LiveCell:
    """Draws a turn in the running cell.

    Args:
        display: Shows a bundle under a display id, or updates it; IPython's own if None.
        min_interval: Seconds between two drawings, however often it is called.
    """

    def __init__(self, display: Display | None = None, min_interval: float = 0.1) -> None:
        self._display = display or _display
        self._min_interval = min_interval
        self._next = 0.0
        self._shown: tuple[Turn | None, str] = (None, "")
        self._drawn = 0
        self._closed = False
        self._spoke = False
        self._layout = _Layout()
        self._sent: list[tuple[str, bool]] = []
        self._ids: list[str] = []
        self._lent = ""
        self._id, self._made = f"opencode-{uuid4().hex[:12]}", 0

    def show(self, turn: Turn, note: str = "") -> None:
        """Draw a later state, unless nothing is new or the last drawing was only just now."""
        now = time.monotonic()
        known, known_note = self._shown
        if self._closed or (turn is known and note == known_note):
            return
        # The first words, and what a person is about to be asked or told, can't wait.
        first = known is None or (not self._spoke and _speaks(turn))
        urgent = first or turn.waiting != getattr(known, "waiting", ()) or note != known_note
        if now < self._next and not urgent:
            return
        with DeferredInterrupt():  # what is half sent would be taken for sent
            self._draw(turn, note, final=False)
        self._spoke = self._spoke or _speaks(turn)
        # What is large to send or slow to draw is drawn less often.
        took = time.monotonic() - now
        self._next = now + max(self._min_interval, self._drawn / RATE, 3 * took)

    @property
    def outputs(self) -> int:
        """How many outputs it has made so far."""
        return len(self._sent)

    def lend_output(self) -> str:
        """The display id of an output below all others, for something else to be shown there.

        The next output takes its place, so that nothing empty is left between the outputs.
        """
        self._lent = self._lent or self._new_id()
        return self._lent

    def step_aside(self) -> None:
        """Let something else be shown in the cell; what comes next goes to an output below it."""
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
        *full, last = self._layout.lay(blocks(turn))
        for n, pieces in enumerate(full):
            self._send(n, [p.html for p in pieces], pieces, ())
        end = [t for t in (wording.clean(note), wording.summary(turn)) if t]
        fragments = [*(p.html for p in last), html.last_line(turn, note)]
        self._send(len(full), fragments, last if final else (), end)

    def _send(
        self, n: int, fragments: Iterable[str], told: Sequence[_Piece], end: Sequence[str]
    ) -> None:
        """Send one output if it changed. Its text/plain tells of what is told, and the end."""
        content = (html.page(fragments), bool(told))
        new = n == len(self._sent)
        if not new and content == self._sent[n]:
            return
        update = not new or bool(self._lent)
        if new:
            self._ids.append(self._lent or self._new_id())
            self._lent = ""
        self._sent[n : n + 1] = [content]
        self._drawn += len(content[0])
        twin = "\n\n".join(t for t in (text.join(p.block for p in told), *end) if t)
        self._display({"text/html": content[0], "text/plain": twin}, self._ids[n], update)

    def _new_id(self) -> str:
        self._made += 1
        return f"{self._id}-{self._made - 1}"


def _speaks(turn: Turn) -> bool:
    """Whether the agent has said anything yet."""
    return any(getattr(p, "text", "") for m in turn.answers for p in m.parts)


class _Piece(NamedTuple):
    """A block, or a stretch of a long text, and how it looks."""

    block: Block
    html: str


class _Layout:
    """Divides what a turn shows among outputs. Where something has been put, it stays."""

    def __init__(self) -> None:
        self._homes: dict[str, int] = {}
        self._seams: dict[str, list[markdown.SplitPoint]] = {}
        self._texts: dict[str, str] = {}
        self._pieces: dict[str, _Piece] = {}
        self._growing: dict[str, markdown.IncrementalMarkdown] = {}
        self._outputs: list[list[_Piece]] = [[]]
        self._filled = [0]
        self._ended = 0

    def lay(self, shown: Iterable[Block]) -> list[list[_Piece]]:
        """The pieces of every output, in order."""
        self._outputs = [[] for _ in self._outputs]
        self._filled = [0 for _ in self._outputs]
        at = 0
        for block in shown:
            if isinstance(block.value, Text | Reasoning | Recap):
                at = self._lay_prose(block, block.value, at)
            else:
                at = self._home(block.key, at, follows=isinstance(block.value, RequestState))
                piece = self._piece(block)
                self._put(piece, at, len(piece.html))
        return self._outputs

    def _lay_prose(self, block: Block, value: Text | Reasoning | Recap, at: int) -> int:
        """Lay a text, cut where an output is full; a cut once made stays."""
        whole = wording.clean(value.text)
        seams = self._seams_of(block.key, whole)
        start, carry, n = 0, "", 0
        while True:
            seam = seams[n] if n < len(seams) else None
            body = carry + (whole[start : seam.at] + seam.close if seam else whole[start:])
            key = f"{block.key}~{n}" if n else block.key
            at = self._home(key, at)
            room = max(self._left(at), 1_000)
            if seam is None and len(body) > room and self._open(at):
                cut = markdown.cut(body, room)
                further = max(cut.at - len(carry), 1)
                seams.append(cut._replace(at=start + further))
                continue
            stretch = Block(key, replace(value, text=body), block.closed or seam is not None)
            self._put(self._prose(stretch, continued=n > 0), at, len(body))
            if seam is None:
                return at
            start, carry, n = seam.at, seam.carry, n + 1

    def _seams_of(self, key: str, whole: str) -> list[markdown.SplitPoint]:
        seams, known = self._seams.setdefault(key, []), self._texts.get(key, "")
        if seams and whole[: seams[-1].at] != known[: seams[-1].at]:
            seams.clear()
        self._texts[key] = whole
        return seams

    # -- outputs -------------------------------------------------------------------------------

    def end_output(self) -> None:
        """Let all outputs that have something be full."""
        self._ended = len(self._outputs) if self._outputs[-1] else len(self._outputs) - 1

    def _home(self, key: str, at: int, follows: bool = False) -> int:
        """The output for a piece: where it was, else this one, else a later one if this is full.

        What `follows` stays with the piece before it.
        """
        if key not in self._homes:
            self._homes[key] = at if follows else self._free(at)
        return max(self._homes[key], at)

    def _free(self, at: int) -> int:
        """The output to put something new into, after what is in this one."""
        full = self._filled[at] >= _room(at) * 3 // 4
        if at < self._ended < len(self._outputs):
            return self._ended
        if (full or at < self._ended) and self._open(at):
            self._outputs.append([])
            self._filled.append(0)
            return at + 1
        return at

    def _open(self, at: int) -> bool:
        """Whether an output is the last, and another may follow it."""
        return at == len(self._outputs) - 1 < MAX_OUTPUTS - 1

    def _left(self, at: int) -> int:
        return _room(at) - self._filled[at]

    def _put(self, piece: _Piece, at: int, size: int) -> None:
        self._outputs[at].append(piece)
        self._filled[at] += size

    # -- pieces, drawn again only when they changed --------------------------------------------

    def _piece(self, block: Block) -> _Piece:
        known = self._pieces.get(block.key)
        if known is None or known.block != block:
            known = self._pieces[block.key] = _Piece(block, html.block(block))
        return known

    def _prose(self, stretch: Block, continued: bool) -> _Piece:
        known, value = self._pieces.get(stretch.key), stretch.value
        if known is not None and known.block == stretch:
            return known
        assert isinstance(value, Text | Reasoning | Recap)
        growing = self._growing.setdefault(stretch.key, markdown.IncrementalMarkdown())
        inner = growing.render(value.text, stretch.closed)
        piece = _Piece(stretch, html.prose(value, inner, continued))
        self._pieces[stretch.key] = piece
        return piece


def _room(n: int) -> int:
    """How much the n-th output holds."""
    return ROOM if n < 8 else ROOM << (n - 5) // 3


def _display(bundle: dict[str, str], display_id: str, update: bool) -> None:
    from IPython.display import display

    display(bundle, raw=True, display_id=display_id, update=update)
