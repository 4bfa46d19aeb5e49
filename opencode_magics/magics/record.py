"""Magics that record turns to a file and replay them without a server."""

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
    from ..recording.format import Recording


@magics_class
class RecordMagics(Topic):
    """Record and replay"""

    @no_var_expand
    @documented_arguments
    @argument("--raw", action="store_true", help="Don't redact secrets, home paths and your name.")
    @argument("--stop", action="store_true", help="Stop recording.")
    @argument("path", nargs="*", help="The file; turns are appended to an existing recording.")
    @line_magic
    @with_parsed_options
    def oc_record(self, options: Namespace) -> None:
        """A recording of every turn of this notebook from now on, for %oc_replay.

        A turn is added when it ends, with everything the agent did and everything you answered.
        Passwords, tokens and keys are redacted where they can be recognized; your home directory
        becomes ~, and your user name is removed. Check a recording before you share it. Without a
        path, the magic shows what is being recorded. `opencode_magics.save(turn, PATH)` saves a
        turn that has already ended.

        Example::

            %oc_record lesson.jsonl
            %oc_record --stop
        """
        from ..recording import files

        path_name = " ".join(options.path)
        if options.stop and (path_name or options.raw):
            raise UsageError("--stop takes no path and no other options.")
        if path_name:
            path = files.expand_path(path_name).absolute()
            files.check_target(path)
            self.state.recording = RecordingTarget(path, options.raw)
            print(f"{self.state.recording}\n%oc_record --stop stops the recording.")
            return
        if options.raw:
            raise UsageError("Name a file. For example: %oc_record --raw lesson.jsonl")
        print(self.state.recording or "Not recording. To start: %oc_record lesson.jsonl")
        if options.stop and self.state.recording is not None:
            self.state.recording = None
            print("The recording stopped.")

    @no_var_expand
    @documented_arguments
    @argument("--speed", default="1", help="Factor such as 4 or 0.5, or instant; default: 1.")
    @argument("--step", action="store_true", help="Wait for you before showing each event.")
    @argument(
        "--interactive", action="store_true", help="Answer permissions and questions yourself."
    )
    @argument("--turn", type=int, help="Only this turn of the recording; 1 is the first.")
    @argument(
        "-o", "--out", help="Variable to store the turn in; the last one if there are several."
    )
    @argument("path", nargs="+", help="The file of the recording.")
    @line_magic
    @with_parsed_options
    def oc_replay(self, options: Namespace) -> None:
        """A replay of recorded turns, without a server or a model.

        Permissions and questions are answered as recorded, after at most 5 s; a tool takes at most
        a minute. With --interactive you answer them yourself, and the cell shows where the
        recorded answer was different. With --step a "Next" button shows one event at a time. If
        the front end can't show buttons, you type; if nobody can answer, the replay continues.

        The turn is marked as a replay: %oc_turn returns it, and %oc_diff shows its changes.
        Nothing is sent, and your current session doesn't change. A recorded failure doesn't fail
        the cell. An interrupt stops the replay.

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
        recordings = files.load(" ".join(options.path))
        answerer = self.state.answerer("ask")
        interactive = options.interactive and answerer.can_ask
        if options.interactive and not answerer.can_ask:
            print("Nobody can answer here. Using the recorded answers.")
        for recording in _select(recordings, options.turn):
            run = Replay(recording, speed, interactive=interactive)
            try:
                replay(run, self.shell, answerer, self.state.ui, by_steps=options.step)
            finally:
                self.state.remember_turn(run.turn, options.out)


def _speed(text: str) -> float:
    """Parse a speed: 4, 0.5, 4x, instant.

    Raises:
        UsageError: The text is not a speed.
    """
    if text == "instant":
        return math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < math.inf:
        raise UsageError(f"--speed takes a number above 0, such as 4, or instant, not {text!r}.")
    return speed


def _select(recordings: tuple[Recording, ...], number: int | None) -> tuple[Recording, ...]:
    if number is None:
        return recordings
    if not 1 <= number <= len(recordings):
        raise UsageError(f"--turn must be from 1 to {len(recordings)}, not {number}.")
    return recordings[number - 1 : number]
