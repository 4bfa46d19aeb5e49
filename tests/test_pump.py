"""Clicks reach a cell that blocks its kernel, and nothing else gets out of order or lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median
from types import SimpleNamespace

import kernels
import pytest
from kernels import NEWEST, VERSIONS, Cell, FrontEnd

from opencode_magics.notebook.pump import NoPump, Pump, PumpUnavailable, pump_for

INTERRUPTS = int(os.environ.get("PUMP_INTERRUPTS", "50"))

KERNELS = [(version, "subshells" if version >= "7" else "") for version in VERSIONS]
KERNELS += [(version, "plain") for version in VERSIONS if version >= "7"]

PRELUDE = """
import os, threading, time
from types import SimpleNamespace
from opencode_magics.notebook.pump import NoPump, Pump, PumpUnavailable, pump_for

kernel = get_ipython().kernel
clicks, ran, deeds = [], [], {}

def opened(comm, message):
    @comm.on_msg
    def clicked(message):
        word = message["content"]["data"]["word"]
        deeds.get(word, print)(word)
        clicks.append(word)

kernel.comm_manager.register_target("probe", opened)

def pumped(*words, tick=0.02):
    "Pump until all these words have been clicked."
    with Pump(kernel) as pump:
        while not set(words) <= set(clicks):
            pump.poll(tick)
"""


@pytest.fixture(scope="module", params=KERNELS, ids=lambda k: "-".join(filter(None, k)))
def _kernel(request: pytest.FixtureRequest) -> Iterator[FrontEnd]:
    version, kind = request.param
    with kernels.running(version, subshells=kind == "subshells" or version < "7") as front:
        front.run(f"import ipykernel; assert ipykernel.__version__ == {version!r}")
        yield front


@pytest.fixture
def front(_kernel: FrontEnd) -> FrontEnd:
    """A front-end to a kernel of each kind, with a comm open to it."""
    _kernel.run(PRELUDE)
    _kernel.order.clear()
    _kernel.replies.clear()
    _kernel.strays = ""
    _kernel.send("comm_open", {"comm_id": "c", "target_name": "probe", "data": {}})
    return _kernel


def click(front: FrontEnd, word: str, subshell: str | None = None) -> str:
    return front.send("comm_msg", {"comm_id": "c", "data": {"word": word}}, subshell)


def begin(front: FrontEnd, code: str) -> Cell:
    """Start a cell and wait until it runs."""
    cell = front.start(f"print('begun', flush=True)\n{code}")
    front.until(lambda: "begun" in cell.text, cell)
    return cell


def served(front: FrontEnd, id: str) -> bool:
    """Whether the kernel said of a message that it is through with it."""
    return any(
        m["msg_type"] == "status"
        and m["parent_header"]["msg_id"] == id
        and m["content"]["execution_state"] == "idle"
        for m in front.replies
    )


def answers(front: FrontEnd) -> dict[str, str]:
    """What was answered so far, by the id of the request."""
    return {
        m["parent_header"]["msg_id"]: m["msg_type"]
        for m in front.replies
        if m["msg_type"].endswith("_reply")
    }


# -- clicks ----------------------------------------------------------------------------------------


def test_a_click_is_served_in_the_running_cell(front: FrontEnd) -> None:
    cell = begin(front, "pumped('go'); print('went on')")
    click(front, "go")
    front.finish(cell)
    assert cell.text.split("\n") == ["begun", "go", "went on", ""]
    assert front.strays == ""


def test_callbacks_run_in_the_main_thread(front: FrontEnd) -> None:
    code = "deeds['go'] = lambda _: print(threading.current_thread() is threading.main_thread())"
    cell = begin(front, f"{code}\npumped('go')")
    click(front, "go")
    assert "True" in front.finish(cell).text


def test_a_click_is_served_within_50_ms(front: FrontEnd) -> None:
    """The median of 20, of the whole way through the sockets."""
    cell = begin(front, "pumped('stop', tick=1.0)")
    took = []
    for n in range(20):
        began = time.monotonic()
        id = click(front, f"click {n}")
        front.until(lambda id=id: served(front, id))
        took.append(time.monotonic() - began)
    click(front, "stop")
    front.finish(cell)
    print(f"median {median(took) * 1000:.1f} ms, longest {max(took) * 1000:.1f} ms")
    assert median(took) < 0.05


def test_after_a_click_the_kernel_says_that_it_is_still_busy(front: FrontEnd) -> None:
    cell = begin(front, "pumped('stop')")
    id = click(front, "go")
    front.until(lambda: served(front, id))
    front.until(lambda: front.state == ("busy", cell.id), front.state)
    click(front, "stop")
    front.finish(cell)
    assert front.state == ("idle", cell.id)


def test_a_callback_that_fails_harms_nothing(front: FrontEnd) -> None:
    cell = begin(front, "deeds['bad'] = lambda _: 1 / 0\npumped('go'); print('went on')")
    bad = click(front, "bad")
    click(front, "go")
    front.finish(cell)
    assert cell.status == "ok"
    assert "went on" in cell.text
    assert served(front, bad)


def test_a_handler_that_fails_is_logged(front: FrontEnd) -> None:
    code = """
    import logging
    class Notes(logging.Handler):
        def emit(self, record):
            print("noted:", record.getMessage(), record.exc_info[0].__name__)
    notes = Notes(logging.ERROR)
    kernel.log.addHandler(notes)
    kernel.shell_handlers["comm_close"], kept = None, kernel.shell_handlers["comm_close"]
    try:
        pumped("go")
    finally:
        kernel.log.removeHandler(notes)
        kernel.shell_handlers["comm_close"] = kept
    """
    cell = begin(front, "if True:" + code)
    bad = front.send("comm_close", {"comm_id": "unknown", "data": {}})
    click(front, "go")
    front.finish(cell)
    assert "noted: " in cell.text
    assert "TypeError" in cell.text
    assert served(front, bad)


def test_a_button_pressed_by_a_callback_has_no_pump_of_its_own(front: FrontEnd) -> None:
    code = "deeds['nest'] = lambda _: print(repr(pump_for(get_ipython())))\npumped('nest')"
    cell = begin(front, code)
    click(front, "nest")
    assert "NoPump(reason=\"Buttons can't work here" in front.finish(cell).text


def test_a_subshell_serves_its_clicks_itself(front: FrontEnd) -> None:
    """As JupyterLab sends them to ipykernel 7.0 to 7.3, and opens comms itself on 7.4."""
    if "kernel subshells" not in front.features:
        assert "Subshell" not in front.run("print(threading.enumerate())").text
        return
    subshell = front.control("create_subshell_request")["subshell_id"]
    code = "deeds['go'] = lambda _: print(threading.current_thread().name)\npumped('go', 'mine')"
    cell = begin(front, code)
    id = click(front, "go", subshell)
    front.until(lambda: served(front, id))
    click(front, "mine")
    front.finish(cell)
    assert f"subshell-{subshell}" in cell.text + front.strays
    assert front.control("delete_subshell_request", {"subshell_id": subshell})["status"] == "ok"


# -- everything else waits -------------------------------------------------------------------------


def test_queued_cells_run_in_order_with_their_own_output(front: FrontEnd) -> None:
    """30 in a pump, and more wherever a late one could overtake those that waited."""
    code = """
    pumped("one")
    print("asleep 1", flush=True); time.sleep(0.2)
    pumped("two")
    print("asleep 2", flush=True); time.sleep(0.2)
    """
    cell = begin(front, "if True:" + code)
    queued: list[Cell] = []

    def queue(count: int) -> None:
        for _ in range(count):
            queued.append(front.start(f"print({len(queued)}); ran.append({len(queued)})"))

    queue(30)
    click(front, "one")
    front.until(lambda: "asleep 1" in cell.text)
    queue(5)
    click(front, "two")
    queue(5)
    front.until(lambda: "asleep 2" in cell.text)
    queue(5)
    front.finish(cell, *queued)
    assert front.order == [cell, *queued]
    assert [c.text for c in queued] == [f"{n}\n" for n in range(len(queued))]
    assert front.run("print(ran == list(range(45)))").text == "True\n"


def test_a_reloaded_page_gets_its_answers_while_the_cell_runs(front: FrontEnd) -> None:
    cell = begin(front, "pumped('stop')")
    waits = front.send("complete_request", {"code": "pri", "cursor_pos": 3})
    info = front.send("kernel_info_request", {})
    comms = front.send("comm_info_request", {})
    front.until(lambda: {info, comms} <= answers(front).keys())
    assert answers(front) == {info: "kernel_info_reply", comms: "comm_info_reply"}
    click(front, "stop")
    front.finish(cell)
    front.until(lambda: waits in answers(front))


def test_a_shutdown_request_on_the_shell_channel_waits_and_is_not_lost() -> None:
    for version in VERSIONS:
        with kernels.running(version) as front:
            front.run(PRELUDE)
            front.send("comm_open", {"comm_id": "c", "target_name": "probe", "data": {}})
            cell = begin(front, "pumped('stop'); print('went on')")
            bye = front.send("shutdown_request", {"restart": False})
            click(front, "stop")
            front.finish(cell)
            front.until(lambda bye=bye: answers(front).get(bye) == "shutdown_reply")
            front.until(lambda: not front.manager.is_alive())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kernel_that_pumps_can_be_shut_down(version: str) -> None:
    with kernels.running(version) as front:
        front.run(PRELUDE)
        begin(front, "pumped('never')")
        began = time.monotonic()
        front.manager.shutdown_kernel()
        assert time.monotonic() - began < 4, "it had to be killed"


# -- interrupts ------------------------------------------------------------------------------------


def test_no_request_is_lost_by_an_interrupt(front: FrontEnd) -> None:
    """Every cell is answered once, executed or aborted, in order; every message is served."""
    rng = random.Random(5)
    told: Counter[str | None] = Counter()
    for round in range(INTERRUPTS):
        tick = rng.choice([0.0, 0.001, 0.02])
        cell = begin(front, f"pumped('never', tick={tick})")
        queued, messages = [], []
        hits = rng.sample(range(12), 2 if round % 5 == 4 else 1)  # a person may press it twice
        for n in range(12):
            time.sleep(rng.choice([0.0, 0.0, 0.001, 0.003]))
            if n in hits:
                front.manager.interrupt_kernel()
            elif n % 3 == 0:
                messages.append(click(front, "click"))
            elif n % 3 == 1 and n > 6:
                messages.append(front.send("kernel_info_request", {}))
            else:
                queued.append(front.start(f"ran.append(({round}, {n}))"))
        front.finish(cell, *queued)
        front.until(lambda m=messages: all(served(front, id) for id in m), messages)
        assert cell.status == "error"
        assert front.order == [cell, *queued]
        told.update(c.status for c in queued)
        front.order.clear()
        front.replies.clear()
    after = front.run("print(len(ran), ran == sorted(ran))")
    print(dict(told), after.text)
    assert set(told) <= {"ok", "aborted", "error"}  # error: the second hit met a queued cell
    assert after.text == f"{told['ok']} True\n"


def test_a_callback_that_takes_long_can_be_interrupted(front: FrontEnd) -> None:
    code = "deeds['slow'] = lambda _: (print('slow', flush=True), time.sleep(60))\npumped('slow')"
    cell = begin(front, code)
    id = click(front, "slow")
    front.until(lambda: "slow" in cell.text)
    front.manager.interrupt_kernel()
    front.finish(cell)
    assert cell.status == "error"
    assert served(front, id)


def test_an_interrupt_in_its_last_line_leaves_the_pump_closed(front: FrontEnd) -> None:
    """What the `with` could not do is done before the kernel goes on."""
    code = """
    class Torn(Pump):
        def __exit__(self, *_):
            raise KeyboardInterrupt
    with Torn(kernel) as pump:
        while not clicks:
            pump.poll(0.02)
    """
    cell = begin(front, "if True:" + code)
    queued = [front.start(f"ran.append({n})") for n in range(5)]
    click(front, "go")
    front.finish(cell, *queued)
    assert [c.status for c in (cell, *queued)] == ["error"] + ["aborted"] * 5
    front.finish(begin(front, "Pump(kernel)"))


# -- where there is no pump ------------------------------------------------------------------------


HOOKS = ["session", "shell_handlers", "_publish_status", "log"]


@pytest.mark.parametrize("gone", [*HOOKS, "shell_stream", "shell_channel_thread"])
def test_a_kernel_built_in_another_way_is_refused_with_a_sentence(
    front: FrontEnd, gone: str
) -> None:
    code = f"""
    class Other:
        def __getattr__(self, name):
            if name == {gone!r}:
                raise AttributeError(f"no {{name}}")
            return getattr(kernel, name)
    with pump_for(SimpleNamespace(kernel=Other())) as pump:
        pump.poll(0.01)
    print(pump.reason)
    """
    cell = front.run("if True:" + code)
    needed = gone != "shell_stream" or "kernel subshells" not in front.features
    if gone == "shell_channel_thread" and "kernel subshells" not in front.features:
        needed = False
    assert cell.text.strip().endswith(f"(no {gone}).") is needed


def test_where_nothing_is_known_nothing_is_taken() -> None:
    with pytest.raises(PumpUnavailable, match=r"Buttons can't work .* \(.*\)\.$"):
        Pump(SimpleNamespace())


def test_a_shell_without_a_kernel_has_no_pump() -> None:
    with pump_for(SimpleNamespace()) as pump:
        assert isinstance(pump, NoPump)
        assert pump.reason.endswith(".")
        assert pump.poll(0.0) is False


def test_a_cell_in_another_thread_has_no_pump(front: FrontEnd) -> None:
    code = "thread = threading.Thread(target=lambda: said.append(pump_for(get_ipython()).reason))"
    cell = front.run(f"said = []; {code}; thread.start(); thread.join(); print(said)")
    assert "main thread" in cell.text


def test_importing_the_pump_imports_no_kernel() -> None:
    code = (
        "import sys, opencode_magics.notebook.pump; "
        "assert not {'zmq', 'ipykernel', 'jupyter_client'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
