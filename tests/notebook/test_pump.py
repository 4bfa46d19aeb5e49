"""Clicks reach a cell that blocks its kernel; other requests stay in order, and none is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median
from types import SimpleNamespace

import pytest
from support.kernels import VERSIONS, Cell, KernelClient, StartKernel

from opencode_magics.notebook.pump import NoPump, Pump, PumpUnavailable, pump_for

INTERRUPTS = 50

# (version, subshells): ipykernel 7 has subshells; a kernel can be started without them.
SEVEN = [version for version in VERSIONS if int(version.split(".")[0]) >= 7]
WITH_SUBSHELLS = [(version, True) for version in SEVEN]
KERNELS = [(v, False) for v in VERSIONS if v not in SEVEN] + WITH_SUBSHELLS
KERNELS += [(version, False) for version in SEVEN]

PRELUDE = """
import threading, time
from types import SimpleNamespace
from opencode_magics.notebook.pump import Pump, pump_for

kernel = get_ipython().kernel
clicks, ran, callbacks, comms = [], [], {}, []

def opened(comm, message):
    comms.append(comm)
    @comm.on_msg
    def clicked(message):
        word = message["content"]["data"]["word"]
        clicks.append(word)
        callbacks.get(word, print)(word)

def pumped(*words, tick=0.02):
    "Pump until all these words have been clicked."
    with Pump(kernel) as pump:
        while not set(words) <= set(clicks):
            pump.poll(tick)

kernel.comm_manager.register_target("probe", opened)
"""


def named(kernel: tuple[str, bool]) -> str:
    version, subshells = kernel
    return version if subshells or version not in SEVEN else f"{version}-plain"


@pytest.fixture(scope="module", params=KERNELS, ids=named)
def running(request: pytest.FixtureRequest, start_kernel: StartKernel) -> Iterator[KernelClient]:
    """One kernel of each kind, for all tests of this module."""
    version, subshells = request.param
    with start_kernel(version, subshells=subshells) as front:
        front.run(f"import ipykernel; assert ipykernel.__version__ == {version!r}")
        yield front


@pytest.fixture
def front(running: KernelClient) -> KernelClient:
    """A fresh front-end, with a comm open to its kernel."""
    running.forget()
    prepare(running)
    return running


# Only for kernels with subshells.
subshells_only = pytest.mark.parametrize("running", WITH_SUBSHELLS, ids=named, indirect=True)


def prepare(front: KernelClient) -> None:
    front.run(PRELUDE)
    front.send("comm_open", {"comm_id": "c", "target_name": "probe", "data": {}})
    front.forget()


def click(front: KernelClient, word: str, subshell: str | None = None) -> str:
    return front.send("comm_msg", {"comm_id": "c", "data": {"word": word}}, subshell)


def begin(front: KernelClient, code: str) -> Cell:
    """Start a cell and wait until it runs."""
    cell = front.start(f"print('begun', flush=True)\n{code}")
    front.until(lambda: cell.text or cell.done, cell)
    # A cell sent soon after an interrupt may be aborted.
    return begin(front, code) if cell.status == "aborted" else cell


def after_begun(cell: Cell) -> list[str]:
    """Return the lines that a cell printed after "begun"."""
    first, *lines = cell.text.splitlines()
    assert first == "begun"
    return lines


# -- clicks ----------------------------------------------------------------------------------------


def test_a_click_is_served_in_the_running_cell(front: KernelClient) -> None:
    """In the main thread, and the output of its callback belongs to the cell."""
    code = "callbacks['where'] = lambda _: print(threading.current_thread().name)"
    cell = begin(front, f"{code}\npumped('where', 'go'); print('went on')")
    click(front, "where")
    click(front, "go")
    front.finish(cell)
    assert after_begun(cell) == ["MainThread", "go", "went on"]
    assert front.strays == ""


def test_a_button_of_ipywidgets_works(front: KernelClient) -> None:
    code = """
    import ipywidgets
    slider, button = ipywidgets.IntSlider(), ipywidgets.Button()
    button.on_click(lambda _: (clicks.append("button"), print("slider at", slider.value)))
    print(slider.comm.comm_id, button.comm.comm_id, flush=True)
    pumped("button")
    """
    cell = begin(front, f"if True:{code}")
    front.until(lambda: after_begun(cell), cell)
    slider, button = after_begun(cell)[0].split()
    moved = {"method": "update", "state": {"value": 7}, "buffer_paths": []}
    front.send("comm_msg", {"comm_id": slider, "data": moved})
    pressed = {"method": "custom", "content": {"event": "click"}}
    front.send("comm_msg", {"comm_id": button, "data": pressed})
    front.finish(cell)
    assert after_begun(cell)[-1] == "slider at 7"


def test_a_click_is_served_within_50_ms(front: KernelClient) -> None:
    """The median of 20 clicks, from sending to the kernel's "idle" for it.

    On a busy machine, the best of five medians counts.
    """
    cell = begin(front, "pumped('stop', tick=1.0)")
    medians: list[float] = []
    while len(medians) < 5 and min(medians, default=1.0) >= 0.05:
        durations = []
        for n in range(20):
            start = time.monotonic()
            front.serve(click(front, f"click {n}"))
            durations.append(time.monotonic() - start)
        medians.append(median(durations))
    click(front, "stop")
    front.finish(cell)
    print(*(f"median {m * 1000:.1f} ms" for m in medians))
    assert min(medians) < 0.05


def test_after_a_click_the_kernel_status_is_busy_again(front: KernelClient) -> None:
    cell = begin(front, "pumped('stop')")
    front.serve(click(front, "go"))
    front.until(lambda: front.state == ("busy", cell.id), front.state)
    click(front, "stop")
    front.finish(cell)
    assert front.state == ("idle", cell.id)


def test_a_callback_that_fails_harms_nothing(front: KernelClient) -> None:
    cell = begin(front, "callbacks['bad'] = lambda _: 1 / 0\npumped('go'); print('went on')")
    bad = click(front, "bad")
    click(front, "go")
    front.finish(cell)
    front.serve(bad)
    assert cell.status == "ok"
    assert after_begun(cell)[-1] == "went on"


def test_other_failures_are_in_the_kernels_log(front: KernelClient) -> None:
    code = """
    import logging
    class PrintHandler(logging.Handler):
        def emit(self, record):
            print(record.getMessage(), record.exc_info[0].__name__)
    handler = PrintHandler(logging.ERROR)
    kernel.log.addHandler(handler)
    original = kernel.shell_handlers["comm_close"]
    kernel.shell_handlers["comm_close"] = None
    try:
        pumped("go")
    finally:
        kernel.shell_handlers["comm_close"] = original
        kernel.log.removeHandler(handler)
    """
    cell = begin(front, f"if True:{code}")
    bad = front.send("comm_close", {"comm_id": "unknown", "data": {}})
    click(front, "go")
    front.finish(cell)
    front.serve(bad)
    assert "Exception while a running cell served a message TypeError" in after_begun(cell)


def test_a_callback_can_not_start_another_pump(front: KernelClient) -> None:
    code = "callbacks['nest'] = lambda _: print(pump_for(get_ipython()).reason)"
    cell = begin(front, f"{code}\npumped('nest')")
    click(front, "nest")
    front.finish(cell)
    assert "this code runs in the callback of another button" in cell.text


@subshells_only
def test_a_subshell_serves_its_clicks_itself(front: KernelClient) -> None:
    subshell = front.control("create_subshell_request")["subshell_id"]
    code = "callbacks['sub'] = lambda _: where.append(threading.current_thread().name)"
    cell = begin(front, f"where = []; {code}\npumped('mine'); print(where)")
    front.serve(click(front, "sub", subshell))
    click(front, "mine")
    front.finish(cell)
    assert f"['subshell-{subshell}']" in cell.text
    assert front.control("delete_subshell_request", {"subshell_id": subshell})["status"] == "ok"


@subshells_only
def test_a_click_reaches_the_cell_wherever_the_kernel_sends_it(front: KernelClient) -> None:
    """JupyterLab requests a subshell; 7.4 ignores that for a comm that the main shell has used."""
    subshell = front.control("create_subshell_request")["subshell_id"]
    cell = begin(front, "comms[-1].send({}); pumped('go')")
    click(front, "go", subshell)
    assert front.finish(cell).status == "ok"
    assert front.control("delete_subshell_request", {"subshell_id": subshell})["status"] == "ok"


# -- other requests wait ---------------------------------------------------------------------------


def test_queued_cells_run_in_order_with_their_own_output(front: KernelClient) -> None:
    """They are sent before, during, between and after two pumps of one cell."""
    code = """
    pumped("one")
    print("between", flush=True); time.sleep(0.2)
    pumped("two")
    print("after", flush=True); time.sleep(0.2)
    """
    cell = front.start(f"print('begun', flush=True)\nif True:{code}")
    queued: list[Cell] = []

    def queue(count: int) -> None:
        for _ in range(count):
            queued.append(front.start(f"print({len(queued)}); ran.append({len(queued)})"))

    queue(10)
    front.until(lambda: "begun" in cell.text, cell)
    queue(30)
    click(front, "one")
    front.until(lambda: "between" in cell.text, cell)
    queue(5)
    click(front, "two")
    queue(5)
    front.until(lambda: "after" in cell.text, cell)
    queue(5)
    front.finish(cell, *queued)
    assert front.order == [cell, *queued]
    assert [c.text for c in queued] == [f"{n}\n" for n in range(len(queued))]
    assert front.run("print(ran == list(range(55)))").text == "True\n"


def test_a_reloaded_page_gets_replies_while_the_cell_runs(front: KernelClient) -> None:
    cell = begin(front, "pumped('stop')")
    waits = front.send("complete_request", {"code": "pri", "cursor_pos": 3})
    info = front.send("kernel_info_request", {})
    comms = front.send("comm_info_request", {})
    front.until(lambda: {info, comms} <= front.answers.keys())
    assert front.answers == {info: "kernel_info_reply", comms: "comm_info_reply"}
    click(front, "stop")
    front.finish(cell)
    front.until(lambda: waits in front.answers)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shutdown_request_on_the_shell_channel_waits_and_is_not_lost(
    version: str, start_kernel: StartKernel
) -> None:
    with start_kernel(version) as front:
        prepare(front)
        cell = begin(front, "pumped('stop'); print('went on')")
        bye = front.send("shutdown_request", {"restart": False})
        click(front, "stop")
        front.finish(cell)
        front.until(lambda: front.answers.get(bye) == "shutdown_reply")
        front.until(lambda: not front.manager.is_alive())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kernel_with_an_active_pump_can_be_shut_down(
    version: str, start_kernel: StartKernel
) -> None:
    """On the control channel, as Jupyter does; after a timeout it would kill the kernel."""
    with start_kernel(version) as front:
        prepare(front)
        begin(front, "pumped('never')")
        front.manager.shutdown_wait_time = 120.0
        start = time.monotonic()
        front.manager.shutdown_kernel()
        assert time.monotonic() - start < 50  # the manager would terminate it after 60 s


# -- interrupts ------------------------------------------------------------------------------------


def test_no_request_is_lost_by_an_interrupt(front: KernelClient, thorough: bool) -> None:
    """Every cell gets one reply, executed or aborted, in order; every message is served."""
    rng = random.Random(5)
    statuses: Counter[str | None] = Counter()
    for round in range(INTERRUPTS if thorough else INTERRUPTS // 5):
        cell = begin(front, f"pumped('never', tick={rng.choice([0.0, 0.001, 0.02])})")
        queued, messages, hit = [], [], rng.randrange(12)
        for n in range(12):
            time.sleep(rng.choice([0.0, 0.0, 0.001, 0.003]))
            if n == hit:
                front.manager.interrupt_kernel()
            elif n % 3 == 0:
                messages.append(click(front, "click"))
            elif n in (7, 10):
                messages.append(front.send("kernel_info_request", {}))
            else:
                queued.append(front.start(f"ran.append(({round}, {n}))"))
        front.finish(cell, *queued)
        front.serve(*messages)
        assert cell.status == "error"
        assert [c for c in front.order if c in (cell, *queued)] == [cell, *queued]
        statuses.update(c.status for c in queued)
        front.forget()
    after = front.run("print(len(ran), ran == sorted(ran))")
    print(dict(statuses))
    assert statuses.keys() <= {"ok", "aborted"}
    assert after.text == f"{statuses['ok']} True\n"


def test_a_callback_that_takes_long_can_be_interrupted(front: KernelClient) -> None:
    """The cell stops even if the callback swallows the interrupt."""
    code = """
    def slow(_):
        print("slow", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("swallowed")
    callbacks["slow"] = slow
    pumped("never")
    """
    cell = begin(front, f"if True:{code}")
    id = click(front, "slow")
    front.until(lambda: "slow" in cell.text)
    time.sleep(1.1)  # an interrupt in the callback's first second is deferred to its end
    front.manager.interrupt_kernel()
    front.finish(cell)
    front.serve(id)
    assert after_begun(cell)[:2] == ["slow", "swallowed"]
    assert cell.status == "error"


@pytest.mark.parametrize(("leave", "raised"), [("", "KeyboardInterrupt"), ("raise Stop", "Stop")])
def test_an_interrupt_while_closing_is_deferred(
    front: KernelClient, leave: str, raised: str
) -> None:
    """It doesn't replace an interrupt that is already being raised."""
    code = f"""
    import signal
    class Hit(Pump):
        def _close(self):
            signal.raise_signal(signal.SIGINT)
            super()._close()
    class Stop(KeyboardInterrupt):
        pass
    try:
        with Hit(kernel) as pump:
            while not clicks:
                pump.poll(0.02)
            {leave}
    except KeyboardInterrupt as interrupt:
        print(type(interrupt).__name__, Pump._active)
    """
    cell = begin(front, f"if True:{code}")
    queued = [front.start(f"ran.append({n})") for n in range(5)]
    click(front, "go")
    front.finish(cell, *queued)
    assert after_begun(cell) == ["go", f"{raised} None"]
    assert front.order == [cell, *queued]


def test_a_pump_left_open_is_closed_before_anything_else(front: KernelClient) -> None:
    """As after an interrupt in the first line of its `__exit__`."""
    code = """
    class Torn(Pump):
        def __exit__(self, *_):
            raise KeyboardInterrupt
    with Torn(kernel) as pump:
        while not clicks:
            pump.poll(0.02)
    """
    cell = begin(front, f"if True:{code}")
    queued = [front.start(f"ran.append({n})") for n in range(5)]
    click(front, "go")
    front.finish(cell, *queued)
    assert front.order == [cell, *queued]
    front.run("with Pump(kernel) as pump: pump.poll()")


# -- where there is no pump ------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["session", "shell_handlers", "_publish_status", "log"])
def test_a_kernel_with_unknown_internals_is_refused_with_a_reason(
    front: KernelClient, gone: str
) -> None:
    """The cell works anyway."""
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
    cell = front.run(f"if True:{code}")
    assert cell.text.startswith("Buttons can't work while a cell runs in this kernel (ipykernel ")
    assert cell.text.endswith(f"(no {gone}).\n")


@subshells_only
def test_a_stream_read_by_another_thread_is_refused(front: KernelClient) -> None:
    code = "known = ('shell_stream', 'shell_handlers', '_publish_status', 'log', 'session')"
    other = "SimpleNamespace(**{name: getattr(kernel, name) for name in known})"
    cell = front.run(f"{code}\nprint(pump_for(SimpleNamespace(kernel={other})).reason)")
    assert "not read by the loop that runs the cell" in cell.text


def test_a_cell_in_another_thread_has_no_pump(front: KernelClient) -> None:
    code = "thread = threading.Thread(target=lambda: out.append(pump_for(get_ipython()).reason))"
    cell = front.run(f"out = []; {code}; thread.start(); thread.join(); print(out)")
    assert "the cell doesn't run in the main thread" in cell.text


def test_an_object_without_kernel_internals_has_no_pump() -> None:
    with pytest.raises(PumpUnavailable, match=r"Buttons can't work .* \(.*\)\.$"):
        Pump(SimpleNamespace())


def test_a_shell_without_a_kernel_has_no_pump() -> None:
    with pump_for(SimpleNamespace()) as pump:
        assert isinstance(pump, NoPump)
        assert pump.reason.endswith(".")
        assert pump.poll() is False


def test_polling_outside_the_with_block_is_an_error(front: KernelClient) -> None:
    cell = front.finish(front.start("Pump(kernel).poll()"))
    assert cell.status == "error"


def test_importing_the_pump_imports_no_kernel() -> None:
    code = (
        "import sys, opencode_magics.notebook.pump; "
        "assert not {'zmq', 'tornado', 'ipykernel', 'jupyter_client'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
