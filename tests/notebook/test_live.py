"""A live turn in a cell: the outputs, how often they are sent, and the saved notebook."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from support.recorded_flows import V1_FLOWS, flow
from support.sample_turns import EDIT, answer, permission, running, says, tool, turn
from traitlets.config import Config

from opencode_magics.core.events import PartDelta
from opencode_magics.core.fold import advance, advance_all
from opencode_magics.core.model import Reasoning, Text
from opencode_magics.core.turn import SettledRequest, Turn
from opencode_magics.notebook import live, text
from opencode_magics.notebook.live import LiveCell, view

LONG = "\n\n".join(f"Paragraph {n}. " + "word " * 60 for n in range(600))


class Screen:
    """A front-end that records the outputs of a cell and every message."""

    def __init__(self) -> None:
        self.outputs: dict[str, dict[str, str]] = {}
        self.messages: list[tuple[str, dict[str, str]]] = []

    def __call__(self, bundle: dict[str, str], display_id: str, update: bool) -> None:
        assert update == (display_id in self.outputs)
        self.outputs[display_id] = bundle
        self.messages.append((display_id, bundle))

    @property
    def sent(self) -> int:
        return sum(len(v.encode()) for _, bundle in self.messages for v in bundle.values())

    def all(self, mime: str) -> str:
        return "\n".join(bundle[mime] for bundle in self.outputs.values())


def cell(**options: float) -> tuple[LiveCell, Screen]:
    """Return a cell, which draws every state by default, and its screen."""
    screen = Screen()
    return LiveCell(screen, **{"min_interval": 0.0, **options}), screen


def growing(text: str, steps: int) -> list[Turn]:
    """Return states of a turn whose text grows."""
    ends = [len(text) * n // steps for n in range(1, steps + 1)]
    return [running(Text("t", text[:end], 0)) for end in ends]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that advances the clock, which otherwise stands still."""
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


# -- one output, updated in place ------------------------------------------------------------------


def test_a_short_turn_is_one_output() -> None:
    live_cell, screen = cell()
    for state in growing("Hello you", 3):
        live_cell.show(state)
    live_cell.close(says("Hello you"))
    (output,) = screen.outputs.values()
    assert set(output) == {"text/html", "text/plain"}
    assert "<p>Hello you</p>" in output["text/html"]
    assert output["text/plain"] == text.render(says("Hello you"))


def test_an_unchanged_state_is_not_sent() -> None:
    live_cell, screen = cell()
    live_cell.show(running(Text("a", "Hi")))
    live_cell.show(running(Text("a", "Hi")))
    assert len(screen.messages) == 1


def test_an_open_output_has_short_plain_text_and_a_closed_one_all() -> None:
    live_cell, screen = cell()
    live_cell.show(running(Text("a", "Hello")))
    assert screen.all("text/plain").startswith("running · build")
    live_cell.close(says("Hello"))
    assert screen.all("text/plain").startswith("Hello")


def test_a_saved_notebook_has_answer_cost_and_changes_in_both_formats() -> None:
    """Case G4-10."""
    live_cell, screen = cell()
    done = turn(answer(tool("edit", diffs=(EDIT,)), Text("z", "All done.", 0, 1)))
    live_cell.show(running(tool("edit", status="running"), permissions=(permission(),)))
    live_cell.close(done)
    (output,) = screen.outputs.values()
    for content in output.values():
        for part in ("All done.", "$0.0027", "Changed 1 file", "succeeded"):
            assert part in content
        assert "Waiting for" not in content
        assert "button" not in content


def test_an_interrupt_is_deferred_until_a_drawing_is_sent() -> None:
    """An interrupted one would count as sent, and later updates would have no output."""
    sent: list[bool] = []

    def display(bundle: dict[str, str], display_id: str, update: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        sent.append(update)

    drawn = LiveCell(display)
    with pytest.raises(KeyboardInterrupt):
        drawn.show(running(Text("t1", "Hello")))
    with pytest.raises(KeyboardInterrupt):
        drawn.close(says("Hello"))
    assert sent == [False, True]


def test_after_closing_nothing_more_is_shown() -> None:
    live_cell, screen = cell()
    live_cell.close(says("Hi"))
    live_cell.show(says("Hi and more"))
    live_cell.close(says("Hi and more"))
    assert len(screen.messages) == 1


# -- how often -------------------------------------------------------------------------------------


def test_a_fast_stream_is_drawn_at_most_ten_times_a_second(
    clock: Callable[[float], None],
) -> None:
    """Case G3-10."""
    live_cell, screen = cell(min_interval=0.1)
    states = growing(LONG[:30_000], 5_000)
    for state in states:
        live_cell.show(state)
        clock(0.001)
    live_cell.close(says(LONG[:30_000]))
    assert len(screen.messages) <= 20 * 5
    assert text.render(says(LONG[:30_000])).split() == screen.all("text/plain").split()


def test_requests_and_notes_are_drawn_at_once(clock: Callable[[float], None]) -> None:
    live_cell, screen = cell(min_interval=0.1)
    live_cell.show(running(tool(status="running")))
    live_cell.show(running(tool(status="running"), permissions=(permission(),)))
    assert "Waiting for permission" in screen.all("text/html")
    live_cell.show(running(tool(status="running"), permissions=(permission(),)), "Stopping.")
    assert "Stopping." in screen.all("text/html")


def test_a_large_output_is_drawn_less_often(clock: Callable[[float], None]) -> None:
    """However long the answer, about 150 kB per second go to the browser."""
    live_cell, screen = cell(min_interval=0.1)
    long_line = "word " * 100_000
    for state in growing(long_line, 1_000):
        live_cell.show(state)
        clock(0.01)
    assert screen.sent < 10 * live.RATE * 1.5


# -- many outputs ----------------------------------------------------------------------------------


def test_a_long_answer_is_split_and_only_the_last_output_is_resent() -> None:
    live_cell, screen = cell()
    for state in growing(LONG[:60_000], 300):
        live_cell.show(state)
    live_cell.close(says(LONG[:60_000]))
    order = [display_id for display_id, _ in screen.messages]
    assert 7 <= len(screen.outputs) <= 9
    assert order == sorted(order), "a full output was sent again"
    html = re.sub(r"<[^>]+>", " ", screen.all("text/html"))
    assert LONG[:60_000].split() == html.split("●")[0].split("✓")[0].split()


def test_outputs_hold_8_kb_and_double_every_three_after_the_eighth() -> None:
    live_cell, screen = cell()
    live_cell.close(says(LONG))
    sizes = [len(bundle["text/plain"]) for bundle in screen.outputs.values()]
    assert all(5_000 < size <= 8_000 for size in sizes[:8])
    assert all(10_000 < size <= 16_000 for size in sizes[8:11])
    assert all(20_000 < size <= 32_000 for size in sizes[11:13])


@pytest.mark.parametrize("unit", ["word " * 20 + "\n\n", "word " * 20, "- item " * 20 + "\n", "x"])
def test_the_longest_turn_stays_below_45_outputs(unit: str) -> None:
    live_cell, screen = cell()
    live_cell.close(says(unit * (2_000_000 // len(unit))))
    assert 10 < len(screen.outputs) < 45


def test_very_many_tool_calls_stay_below_45_outputs() -> None:
    live_cell, screen = cell()
    parts = [tool(call=f"c{n:05}", output="x" * 4_000) for n in range(3_000)]
    live_cell.close(turn(answer(*parts)))
    assert 10 < len(screen.outputs) < 45


def test_a_megabyte_in_20000_deltas_is_cheap_to_send_and_compute(
    clock: Callable[[float], None],
) -> None:
    """Case G4-16."""
    full_text = "\n\n".join("word " * 40 for _ in range(5_000))
    step = len(full_text) // 20_000
    live_cell, screen = cell(min_interval=0.1)
    start = running(Text("t", "", 0))
    started = time.process_time()
    state = start
    for n in range(0, len(full_text), step * 100):
        deltas = [
            PartDelta("ses_1", "msg_1", "t", full_text[i : i + step])
            for i in range(n, min(n + step * 100, len(full_text)), step)
        ]
        state = advance_all(state, deltas)
        live_cell.show(state)
        clock(0.06)
    live_cell.close(says(full_text))
    assert time.process_time() - started < 10
    assert screen.sent < 10_000_000
    assert len(screen.outputs) < 45


def test_a_split_fence_is_code_on_both_sides() -> None:
    code = "".join(f"line {n} <tag>\n" for n in range(2_000))
    live_cell, screen = cell()
    for state in growing(f"```python\n{code}```\n\nDone.", 50):
        live_cell.show(state)
    live_cell.close(says(f"```python\n{code}```\n\nDone."))
    blocks = re.findall(r"<pre[^>]*><code[^>]*>(.*?)</code>", screen.all("text/html"), re.DOTALL)
    assert len(blocks) >= 3
    assert "".join(blocks) == code.replace("<", "&lt;").replace(">", "&gt;")
    plain_texts = [bundle["text/plain"] for bundle in screen.outputs.values()]
    assert all(plain.count("```") == 2 for plain in plain_texts[:-1])


def test_long_reasoning_continues_folded() -> None:
    live_cell, screen = cell()
    live_cell.close(turn(answer(Reasoning("a", LONG[:20_000], 0, 1), Text("b", "Hi", 1, 2))))
    assert screen.all("text/html").count(">Reasoning</i>") == len(screen.outputs)
    assert "· continued" in screen.all("text/html")


# -- later changes ---------------------------------------------------------------------------------


def test_a_tool_that_ends_late_updates_only_its_output(
    clock: Callable[[float], None],
) -> None:
    live_cell, screen = cell()
    live_cell.show(running(tool(status="running", end=None), Text("t", LONG[:20_000], 0)))
    before = len(screen.messages)
    clock(1)
    live_cell.show(running(tool(), Text("t", LONG[:20_000], 0)))
    assert [display_id[-2:] for display_id, _ in screen.messages[before:]] == ["-0"]


def test_a_permission_line_stays_with_its_tool(clock: Callable[[float], None]) -> None:
    live_cell, screen = cell()
    full = tool(output="x" * 9_000)
    settled = (SettledRequest(permission(), "once"),)
    live_cell.show(running(full))
    clock(1)
    live_cell.show(running(full, Text("t", "Next"), settled_requests=settled))
    first, second = (bundle["text/html"] for bundle in screen.outputs.values())
    assert "→ once" in first
    assert "Next" in second


def test_after_step_aside_new_blocks_are_below(clock: Callable[[float], None]) -> None:
    """A prompt that was answered by typing is between them."""
    live_cell, screen = cell()
    live_cell.show(running(tool(status="running"), permissions=(permission(),)))
    live_cell.step_aside()
    live_cell.step_aside()
    settled = (SettledRequest(permission(), "once"),)
    for end in ("Nex", "Next"):
        clock(1)
        live_cell.show(running(tool(), Text("t", end), settled_requests=settled))
    first, second = (bundle["text/html"] for bundle in screen.outputs.values())
    assert "→ once" in first
    assert "Next" in second
    assert "running" in second
    assert "running" not in first


def test_an_abandoned_attempt_disappears() -> None:
    live_cell, screen = cell()
    live_cell.show(running(Text("a", LONG[:20_000], 0)))
    live_cell.close(turn(answer(Text("a", "", 0), Text("b", "Again, shorter.", 1, 2))))
    assert "Paragraph" not in screen.all("text/html")
    assert "Again, shorter." in screen.all("text/html")


def test_the_final_text_replaces_a_different_streamed_one() -> None:
    live_cell, screen = cell()
    live_cell.show(running(Text("a", LONG[:20_000], 0)))
    live_cell.close(says("Other " + LONG[:20_000]))
    assert ("Other " + LONG[:20_000]).split() == (
        screen.all("text/plain").partition("succeeded")[0].split()
    )


@pytest.mark.parametrize("name", V1_FLOWS)
def test_a_recorded_turn_drawn_by_states_equals_one_drawn_once(name: str) -> None:
    recorded = flow(name)
    live_cell, screen = cell()
    state = recorded.start
    for event in (*recorded.events, recorded.stored):
        state = advance(state, event)
        live_cell.show(state)
    live_cell.close(state)
    at_once, other = cell()
    at_once.close(state)
    assert screen.all("text/html") == other.all("text/html")
    assert screen.all("text/plain") == other.all("text/plain") == text.render(state)


# -- which view ------------------------------------------------------------------------------------


def test_a_kernel_gets_live_outputs_and_a_terminal_gets_text() -> None:
    class Terminal:
        pass

    class Notebook:
        kernel = object()

    assert isinstance(view(Notebook()), LiveCell)
    assert isinstance(view(Terminal()), text.TextView)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """The shell that `display` uses."""
    yield InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    InteractiveShell.clear_instance()


def test_by_default_ipython_displays_the_outputs(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raw bundles under one display id, without text/markdown, whose raw HTML would be active."""
    published: list[tuple[dict[str, str], dict[str, object]]] = []
    monkeypatch.setattr(
        shell.display_pub, "publish", lambda data, **options: published.append((data, options))
    )
    live_cell = LiveCell(min_interval=0)
    live_cell.show(running(Text("a", "Hel")))
    live_cell.close(says("Hello"))
    assert [sorted(data) for data, _ in published] == [["text/html", "text/plain"]] * 2
    assert published[0][1]["transient"] == published[1][1]["transient"]
    assert [bool(options.get("update")) for _, options in published] == [False, True]
