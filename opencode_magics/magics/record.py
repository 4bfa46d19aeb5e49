"""The magics about lessons: turns kept in a file, and played again without a server."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from .options import check_out, documented_arguments, with_parsed_options
from .state import RecordingTarget
from .topic import Topic

if TYPE_CHECKING:
    from ..recording.format import Recording as Recorded


@magics_class
class RecordMagics(Topic):
    """Record and replay"""

    @no_var_expand
    @documented_arguments
    @argument("--raw", action="store_true", help="Keep secrets, home paths and your name in it.")
    @argument("--stop", action="store_true", help="Record no more.")
    @argument("path", nargs="*", help="The file; turns are added to what is in it.")
    @line_magic
    @with_parsed_options
    def oc_record(self, options: Namespace) -> None:
        """A file of every turn of this notebook from now on, for %oc_replay.

        A turn is added when it is over, with all that the agent did and all that you answered.
        Passwords, tokens and keys are hidden, as far as they can be told from other text; your
        home directory becomes ~ and your user name goes. Look at a recording before you give it
        away. Without a path the magic says what is recorded. One turn that is over already is
        kept with `opencode_magics.save(turn, PATH)`.

        Example::

            %oc_record lesson.jsonl
            %oc_record --stop
        """
        from ..recording import files

        named = " ".join(options.path)
        if options.stop and (named or options.raw):
            raise UsageError("--stop stands alone.")
        if named:
            path = files.expand_path(named).absolute()
            files.check_target(path)
            self.state.recording = RecordingTarget(path, options.raw)
            print(f"{self.state.recording}\n%oc_record --stop ends it.")
            return
        if options.raw:
            raise UsageError("Name a file. For example: %oc_record --raw lesson.jsonl")
        print(self.state.recording or "Nothing is recorded. For example: %oc_record lesson.jsonl")
        if options.stop and self.state.recording is not None:
            self.state.recording = None
            print("The recording has ended.")

    @no_var_expand
    @documented_arguments
    @argument("--speed", default="1", help="How many times as fast as it was, or instant.")
    @argument("--step", action="store_true", help="Wait for you before everything that happens.")
    @argument("--interactive", action="store_true", help="Let you answer what the agent asked.")
    @argument("--turn", type=int, help="Only this turn of the file; 1 is the first.")
    @argument("-o", "--out", help="Variable to keep the turn in; of several, the last.")
    @argument("path", nargs="+", help="The recording.")
    @line_magic
    @with_parsed_options
    def oc_replay(self, options: Namespace) -> None:
        """A recording in the cell as it was live, without a server and without a model.

        What the agent asked is answered as it was then, 5 s later at the most; a tool takes a
        minute at the most. With --interactive you are asked yourself, and told if the answer in
        the recording was another. With --step a button "Next" shows one thing after another.
        Where no buttons can be, you type; where nobody is, it plays on.

        The turn is marked as a replay: %oc_turn gives it, %oc_diff shows its changes. Nothing is
        sent, and your current session stays what it is. A turn that failed then doesn't fail the
        cell now. Interrupting stops it.

        Example::

            %oc_record lesson.jsonl
            %oc_prompt Explain greet.py
            %oc_record --stop
            %oc_replay lesson.jsonl --speed 4
        """
        from ..notebook.replay_cell import replay
        from ..recording import files
        from ..sessions.replay import Replay

        check_out(options)
        speed = _speed(options.speed)
        found = files.load(" ".join(options.path))
        answerer = self.state.answerer("ask")
        interactive = options.interactive and answerer.can_ask
        if options.interactive and not answerer.can_ask:
            print("Nobody can answer here, so it is answered as recorded.")
        for recording in _chosen(found, options.turn):
            run = Replay(recording, speed, interactive=interactive)
            try:
                replay(run, self.shell, answerer, self.state.ui, by_steps=options.step)
            finally:
                self.state.remember_turn(run.turn, options.out)


def _speed(text: str) -> float:
    """A speed as it is typed: 4, 0.5, 4x, instant.

    Raises:
        UsageError: It is none.
    """
    if text == "instant":
        return math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < math.inf:
        raise UsageError(f"--speed takes a number above 0, such as 4, or instant, not {text!r}")
    return speed


def _chosen(found: tuple[Recorded, ...], number: int | None) -> tuple[Recorded, ...]:
    if number is None:
        return found
    if not 1 <= number <= len(found):
        raise UsageError(f"--turn {number}: the recording has turns 1 to {len(found)}")
    return found[number - 1 : number]
