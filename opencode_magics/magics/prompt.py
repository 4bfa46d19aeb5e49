"""The magics that talk to an agent: %%oc_prompt and %oc_turn."""

from __future__ import annotations

import mimetypes
import os
import re
from argparse import Namespace
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument

from ..errors import TurnInterrupted
from .context import attach_variables, check_schema_options, follow_up_options
from .options import (
    documented_arguments,
    no_wait_option,
    parse,
    queue_option,
    split,
    target_options,
    turn_options,
    variant_option,
    with_parsed_options,
)
from .turns import TurnMagics, check_prompt_options

if TYPE_CHECKING:
    from ..core.limits import Limits
    from ..core.model import Attachment
    from ..core.turn import Turn
    from ..notebook.live import View
    from ..prompts.answered import PromptKey
    from ..prompts.schema import Schema

# What a model can take. 1.18.33 accepts any file and then fails for good: the attachment is sent
# again with every later prompt of the session.
_BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")
_LARGEST = 20_000_000


@magics_class
class PromptMagics(TurnMagics):
    """Talk to an agent"""

    @no_var_expand
    @documented_arguments
    @target_options
    @argument("-m", "--model", help="provider/model; default: the session's.")
    @argument("--agent", help="Who answers; default: the session's agent.")
    @variant_option
    @argument("--file", action="append", default=[], help="File to attach; may be repeated.")
    @argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME",
        help="Variable to tell of: a DataFrame, an array, a figure, text; may be repeated.",
    )
    @argument(
        "--schema",
        metavar="MODEL",
        help="Variable or .json file with what the answer has to look like: a JSON Schema, a "
        "dataclass, an example.",
    )
    @argument(
        "--retries",
        type=int,
        default=2,
        help="With --schema: how often to ask again for an answer that fits; default 2.",
    )
    @turn_options
    @queue_option
    @argument(
        "--steer", action="store_true", help="Join the turn that runs, at its next step (2.x)."
    )
    @no_wait_option
    @argument("--expand", action="store_true", help="Fill in {{name}} from the notebook.")
    @argument(
        "--once",
        action="store_true",
        help="If this very prompt was answered before, show that and send nothing.",
    )
    @line_cell_magic
    def oc_prompt(self, line: str, cell: str | None = None) -> Any:
        """An agent's answer to a prompt, live: text, reasoning, tool calls, diffs, questions, cost.

        The body is sent exactly as typed. What the agent asks is answered here. The cell shows
        text, reasoning, tool calls, diffs, tokens and cost, and returns nothing: keep the turn
        with -o NAME, or take it from %oc_turn. Nothing may stand above %%oc_prompt in its cell,
        not even a comment. Interrupting the cell stops the agent.

        With --once a prompt that has a successful answer in the session already (same text,
        files, model and agent), or with -n in a session of this directory, isn't sent: the answer
        is shown from history, and what it did is not done again.

        With --schema the cell returns the answer as a value: an instance of a dataclass, a dict, or
        a DataFrame where the schema is an array of objects. An answer that doesn't fit is asked for
        again with the reason. `turn.value` is the value, `turn.earlier` the turns that didn't fit.
        With --var what goes along of a variable is said in the cell, at most 8,000 characters.

        The turn is stopped when it passes `OpenCodeMagics.max_cost`, or repeats itself
        (`loop_guard`): the cell fails, and `turn.stopped` says why.

        Example::

            %%oc_prompt --agent plan -o turn
            Explain how the tests in this project are organised.

            review = {"file": "greet.py", "bugs": ["what is wrong"]}
            %oc_prompt --schema review Review greet.py
        """
        from ..prompts import schema as schemas

        options, text = self._read(line, cell)
        if options is None:
            return None
        text, images = attach_variables(self.state, options, text)
        schema = (
            schemas.schema_by_name(options.schema, self.shell.user_ns) if options.schema else None
        )
        return self.run_prompt(options, text, schema, images).value

    def run_prompt(
        self,
        options: Namespace,
        text: str,
        schema: Schema | None,
        images: tuple[Attachment, ...] = (),
        *,
        limits: Limits | None = None,
        shown: View | None = None,
        sent: list[Turn] | None = None,
    ) -> Turn:
        """Have a prompt answered, and again until the answer fits the schema; `ask` has the rest.

        Raises:
            UnfitAnswer: No answer fits.
        """
        from ..core.limits import total_cost
        from ..prompts import schema as schemas

        sent = [] if sent is None else sent
        limits, before = limits or self.state.limits, len(sent)
        if schema is None:
            return self.ask(options, text, images, limits=limits, shown=shown, sent=sent)
        again = options

        def send(prompt: str) -> Turn:
            nonlocal again, images
            left = limits.after(total_cost(sent[before:]).known)
            turn = self.ask(again, prompt, images, limits=left, shown=shown, sent=sent)
            again, images = follow_up_options(options, turn.session), ()
            return turn

        told = print if shown is None else None
        turn = schemas.ask_for_schema(send, text, schema, options.retries, told)
        self.state.remember_turn(turn, options.out)
        return turn

    @documented_arguments
    @line_magic
    @with_parsed_options
    def oc_turn(self, options: Namespace) -> Turn:
        """The last turn of this notebook, as an object: text, outcome, tools, diffs, usage, cost.

        One that was left running is read again from the server; %oc_attach follows it live. It
        fails as long as no prompt was sent.

        Example::

            turn = %oc_turn
            turn.outcome, turn.cost
        """
        from ..sessions.store import refresh

        if self.state.turn is None:
            raise UsageError("No prompt was sent yet. Send one: %oc_prompt Explain this project")
        if not self.state.turn.replayed:  # else no server has it
            self.state.turn = refresh(self.state.client, self.state.turn)
        return self.state.turn

    def _read(self, line: str, cell: str | None) -> tuple[Namespace | None, str]:
        """The options and the text to send, checked as far as that goes without a server."""
        if cell is None:
            options, text = split(self.oc_prompt, line, verbatim=True)
        else:
            options, text = parse(self.oc_prompt, line), cell.removesuffix("\n")
        if options is None:
            return None, ""
        if text.lstrip().startswith("%%oc_prompt"):
            raise UsageError(
                "%%oc_prompt has to be the first line of its cell, above all comments."
            )
        if not text.strip():
            raise UsageError("The prompt is empty. For example: %oc_prompt Explain this project")
        check_prompt_options(options)
        if options.queue and options.steer:
            raise UsageError("--queue comes after the turn that runs, --steer joins it: give one.")
        check_schema_options(options)
        if options.schema and options.no_wait:
            raise UsageError("--schema reads the answer, --no-wait doesn't wait for it: give one.")
        return options, expand(text, self.shell.user_ns) if options.expand else text

    def ask(
        self,
        options: Namespace,
        text: str,
        images: tuple[Attachment, ...] = (),
        *,
        limits: Limits | None = None,
        shown: View | None = None,
        sent: list[Turn] | None = None,
    ) -> Turn:
        """Have a prompt answered as a line says, or find the answer that it has.

        Args:
            options: The line's.
            text: What to send.
            images: What goes along besides the files of the line.
            limits: What stops the turn; else what is configured.
            shown: What shows it; else the cell.
            sent: Where the turn is noted if it was sent for it now, however it ends.
        """
        from ..prompts import answered
        from ..sessions.run import prepare

        files = (*(attachment(name) for name in options.file), *images)
        names = self._names(options)
        try:
            wanted = self._wanted(options, text, files, names) if options.once else None
            found = self._recalled(wanted, options, shown) if wanted else None
            if found:
                return found
            session = self._session(options, names)
            run = prepare(
                self.state.client,
                session,
                text,
                files=files,
                queue=options.queue,
                steer=options.steer,
                limits=limits or self.state.limits,
                **names,
            )
            if wanted:
                answered.save_prompt(self.state.client, session, wanted, run.prompt.id)
        except KeyboardInterrupt:
            raise TurnInterrupted("Stopped; the prompt had not been sent.") from None
        return self._play(run, options, shown, sent)

    def _wanted(
        self,
        options: Namespace,
        text: str,
        files: tuple[Attachment, ...],
        names: dict[str, str | None],
    ) -> PromptKey:
        """The prompt of a line with --once, as it would be sent now."""
        from ..prompts import answered

        session = self._old_session(options) or self._no_session()
        return answered.prompt_key(self.state.client, session, text, files, **names)

    def _recalled(self, wanted: PromptKey, options: Namespace, shown: View | None) -> Turn | None:
        """Show the answer that a prompt has already; None if it has none."""
        from ..notebook.cell import show_recalled
        from ..prompts import answered

        client, session = self.state.client, self._old_session(options)
        if session is not None:
            found = answered.find_in_session(client, session, wanted)
        else:
            found = answered.find_in_directory(client, client.directory, wanted)
        if found is None:
            return None
        if session is None:
            self.state.session = found.session
        self.state.track(found.session, "chosen")
        show_recalled(found.turn, self.shell, shown)
        self.state.remember_turn(found.turn, options.out)
        return found.turn


def expand(text: str, names: dict[str, Any]) -> str:
    """A text with every {{name}} filled in.

    Raises:
        UsageError: A name that the notebook doesn't have.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in names:
            raise UsageError(f"--expand: the notebook has no variable {name!r}")
        return str(names[name])

    return re.sub(r"\{\{\s*(\w+)\s*\}\}", value, text)


def attachment(name: str) -> Attachment:
    """A file, ready to be sent: its bytes go along, so that the server need not see it.

    Raises:
        UsageError: It can't be read, or no model could.
    """
    from ..core.model import Attachment

    path = Path(os.path.expanduser(name))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--file {name}: {error.strerror or error}") from None
    if len(content) > _LARGEST:
        raise UsageError(f"--file {name}: {len(content):,} bytes; at most {_LARGEST:,} go along")
    mime = _mime(name, content)
    return Attachment("", mime, path.name, f"data:{mime};base64,{b64encode(content).decode()}")


def _mime(name: str, content: bytes) -> str:
    kind = mimetypes.guess_type(name)[0] or ""
    if kind in _BINARY:
        return kind
    try:
        if "\0" not in content.decode():
            return "text/plain"
    except UnicodeDecodeError:
        pass
    what = f"{kind} that is not UTF-8" if kind.startswith("text/") else kind or "a binary file"
    raise UsageError(
        f"--file {name}: {what} can't be read by a model, and OpenCode 1.x "
        "would send it again with every later prompt. Attach text, an image or a PDF."
    )
