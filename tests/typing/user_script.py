"""A program of a user, which uses every public name; it is type-checked, and never run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import opencode_magics as oc


def decide(permission: oc.Permission) -> Literal["once", "reject"] | tuple[Literal["reject"], str]:
    """Allow edits, and commands that only look."""
    if permission.action == "edit":
        return "once"
    if permission.subject.startswith("git status"):
        return "once"
    return ("reject", "Only edit files, please.") if permission.patterns else "reject"


def choose(question: oc.Question) -> list[str | list[str]] | None:
    """Take the first option of each item; leave questions without options alone."""
    if not all(item.options for item in question.items):
        return None
    return [item.options[0].label for item in question.items]


def progress(turn: oc.Turn) -> None:
    """Print how far a turn is."""
    print(turn.outcome, turn.steps, turn.cost)


def main() -> None:
    """Ask, follow, save and replay."""
    client: oc.Client = oc.connect("http://127.0.0.1:4096", directory="/work", password=None)
    turn: oc.Turn = oc.ask(client, "Explain greet.py")
    turn = oc.ask(
        client,
        "Fix the bug in greet.py",
        title="The bug",
        directory="/work/party",
        model="anthropic/claude-sonnet-4-5",
        agent="build",
        variant="high",
        files=["greet.py", Path("notes.txt")],
        limits=oc.Limits.of(max_cost=0.50, max_session_cost=2),
        timeout=600,
        on_permission=decide,
        on_question=choose,
        on_update=progress,
    )
    cost: float | None = turn.cost
    print(cost, turn.text, [diff.file for diff in turn.diffs])
    session: oc.Session = client.session(turn.session)
    reviewed = oc.ask(
        client,
        "Review greet.py",
        session=session,
        schema={"bugs": ["what is wrong"]},
        retries=1,
        delivery="queue",
        once=True,
        on_permission="error",
    )
    print(reviewed.value["bugs"], len(reviewed.earlier))
    followed: oc.Turn = oc.follow(
        client, turn.session, limits=oc.Limits(), timeout=60, on_permission="once"
    )
    saved: Path = oc.save(followed, "lesson.jsonl", raw=False, append=True)
    recordings: tuple[oc.Recording, ...] = oc.load(saved)
    oc.replay(recordings[0], speed=4, on_update=progress)
    oc.replay("lesson.jsonl")
    print(oc.history.sessions(client), oc.__version__)
    shell: object = None
    oc.load_ipython_extension(shell)
    oc.unload_ipython_extension(shell)


def reasons(client: oc.Client) -> str:
    """Tell what went wrong, by the kind of error."""
    try:
        oc.ask(client, "Explain greet.py", session="The bug")
    except (oc.UnfitAnswer, oc.TurnError) as error:
        turn: oc.Turn = error.turn
        return f"{turn.outcome}: {error.what} {error.todo}"
    except (oc.AuthenticationError, oc.NotFoundError, oc.SessionBusyError) as error:
        return f"HTTP {error.status}: {error.reason}"
    except oc.StatusError as error:
        return error.name
    except oc.ServerConnectionError as error:
        return "It arrived, perhaps." if error.sent else "It was not sent."
    except (
        oc.UnknownNameError,
        oc.CostLimitError,
        oc.AnswerNeeded,
        oc.InvalidAnswer,
        oc.InsecureError,
    ) as error:
        return error.what
    except (oc.ServerStartError, oc.StreamError, oc.MissingPackageError) as error:
        return error.what
    except (oc.UnsupportedOperation, oc.UnsupportedServerError, oc.RecordingError) as error:
        return error.what
    except oc.OpenCodeError as error:
        return f"{error} {error.resend.resend_safety if error.resend else ''}"
    except oc.TurnInterrupted as stopped:
        return stopped.turn.outcome if stopped.turn else "nothing was sent"
    return "succeeded"
