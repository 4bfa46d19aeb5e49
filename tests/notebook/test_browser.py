"""Buttons, output and safety in a real browser: JupyterLab and Notebook 7, two kernels each.

A page is opened once for each combination; every test puts its own cells into it and runs them.
The effect of a click is checked on the server and in its workspace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from support import browser, hostile_payloads, kernels
from support.browser import Jupyter, Notebook, PageLog

from opencode_magics.client.client import Client
from opencode_magics.dialects.base import Request
from opencode_magics.practice.simulator.server import Simulator
from opencode_magics.practice.workspace import FILES
from opencode_magics.practice.world import Practice

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())

OLD, NEW = "6.31.0", kernels.OURS
MAIN = ("lab", NEW)
COMBINATIONS = [MAIN, ("lab", OLD), ("notebook", NEW), ("notebook", OLD)]
# What "always" allows stays allowed on the server, so each combination has its own command.
ALWAYS = dict(zip(COMBINATIONS, ("expr 1 + 1", "factor 12", "seq 3", "basename a/b"), strict=True))

NEW_PROMPT = "%%oc_prompt --new\n"
ONCE, REJECT = "Allow once", "Reject"
MESSAGE = "Message with a rejection"


def expect(what: Any) -> Any:
    from playwright.sync_api import expect

    return expect(what)


# -- the pages -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(practice: Practice, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    home = tmp_path_factory.mktemp("jupyter")
    with browser.jupyter(home, (OLD, NEW), practice.access) as server:
        yield server


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser.chromium() as chrome:
        yield chrome


@dataclass(frozen=True)
class Window:
    """A page with a notebook, and a log of its unwanted requests and scripts."""

    combination: tuple[str, str]
    notebook: Notebook
    watch: PageLog


@pytest.fixture(scope="module", params=COMBINATIONS, ids="-".join)
def window(
    request: pytest.FixtureRequest, chrome: Browser, server: Jupyter, practice: Practice
) -> Iterator[Window]:
    """A notebook that is connected to the practice server, for each app and kernel."""
    app, kernel = request.param
    page = chrome.new_context(viewport={"width": 1100, "height": 1400}).new_page()
    watch = browser.watch(page, server.url)
    notebook = Notebook.open(page, server, app, kernel)
    notebook.run_through(
        "%load_ext opencode_magics\n"
        f"%oc_connect -d {practice.directory}\n"
        "from opencode_magics.notebook import prompter\n"
        "prompter.READY_TIMEOUT = 60.0  # the machine may be busy",
        "import ipykernel; ipykernel.__version__",
    )
    expect(notebook.outputs(1)).to_contain_text(kernel)
    yield Window(request.param, notebook, watch)
    page.context.close()


@pytest.fixture
def notebook(window: Window, workspace: Path) -> Iterator[Notebook]:
    """The notebook of a page, idle and ready for cells."""
    yield window.notebook
    window.notebook.settle()
    assert window.watch.seen == []


only_main = pytest.mark.parametrize("window", [MAIN], indirect=True, ids="-".join)
both_apps = pytest.mark.parametrize(
    "window", [MAIN, ("notebook", NEW)], indirect=True, ids="-".join
)


# -- actions and checks ----------------------------------------------------------------------------


def press(notebook: Notebook, name: str) -> None:
    notebook.form.get_by_role("button", name=name).click()


def asks(notebook: Notebook, *texts: str) -> None:
    """Wait until the form contains these texts."""
    for text in texts:
        expect(notebook.form).to_contain_text(text)


def ends(notebook: Notebook, cell: int, outcome: str) -> None:
    """Wait until a cell is done, and its output contains the outcome."""
    notebook.done(cell)
    expect(notebook.outputs(cell).filter(has_text=outcome).first).to_be_visible()
    expect(notebook.form).to_have_count(0)


def shows(notebook: Notebook, cell: int) -> list[str]:
    """Return the visible texts of a cell's outputs."""
    return [text for text in notebook.outputs(cell).all_inner_texts() if text.strip()]


def waits(notebook: Notebook, *cells: int) -> None:
    """Check that these cells are queued and have not started."""
    for cell in cells:
        expect(notebook.prompt(cell)).to_have_text("[*]:")
        expect(notebook.outputs(cell)).to_have_count(0)


# -- permissions -----------------------------------------------------------------------------------


def test_run_all_keeps_its_order_while_cells_wait_for_clicks(
    notebook: Notebook, workspace: Path
) -> None:
    """Allow once, reject, and reject with a message, in one Run All."""
    notebook.run(
        f"{NEW_PROMPT}#bash touch allowed",
        f"{NEW_PROMPT}#bash touch rejected",
        f"{NEW_PROMPT}#bash touch reconsidered",
        "print('the last cell')",
    )
    asks(notebook, "touch allowed")
    waits(notebook, 1, 2, 3)
    assert not (workspace / "allowed").exists()
    press(notebook, ONCE)

    asks(notebook, "touch rejected")
    ends_with = shows(notebook, 0)[-1]
    assert "Permission: bash 'touch allowed' → once" in ends_with
    assert "succeeded" in ends_with
    waits(notebook, 2, 3)
    press(notebook, REJECT)

    asks(notebook, "touch reconsidered")
    expect(notebook.outputs(1).first).to_contain_text("→ reject")
    expect(notebook.outputs(1).first).to_contain_text("rejected · build")
    waits(notebook, 3)
    notebook.form.get_by_label(MESSAGE).fill("Use a branch")
    asks(notebook, "Reject with this message: the agent reads it and continues.")
    press(notebook, REJECT)

    ends(notebook, 3, "the last cell")
    assert "→ reject (Use a branch)" in shows(notebook, 2)[-1]
    assert "succeeded" in shows(notebook, 2)[-1]
    made = sorted(p.name for p in workspace.iterdir() if "e" in p.name and p.name not in FILES)
    assert "allowed" in made
    assert not {"rejected", "reconsidered"} & set(made)


def test_always_is_not_asked_again(notebook: Notebook, window: Window) -> None:
    command = ALWAYS[window.combination]
    notebook.run(f"{NEW_PROMPT}#bash {command}", f"{NEW_PROMPT}#bash {command} ")
    asks(notebook, command, f"Always allow: {command.split()[0]} * for every session")
    press(notebook, "Always allow")
    ends(notebook, 1, "succeeded")
    assert "→ always" in shows(notebook, 0)[-1]
    assert "Permission" not in shows(notebook, 1)[-1]


def test_both_requests_of_a_subagent_can_be_answered(notebook: Notebook, client: Client) -> None:
    notebook.run(f"{NEW_PROMPT}#task #two")
    asks(
        notebook,
        "echo one",
        "for subagent 'do sub work'",
        "1 other waiting permission of this session",
    )
    press(notebook, ONCE)
    asks(notebook, "echo two", "that subagent's task fails, and the parent continues")
    press(notebook, REJECT)
    ends(notebook, 0, "succeeded")
    (text,) = shows(notebook, 0)
    assert "bash 'echo one' → once" in text
    assert "bash 'echo two' → reject" in text
    assert not [p for p in client.permissions() if p.subject.startswith("echo ")]


AT_ONCE = """(form) => new MutationObserver(() => {
  if (form.textContent.includes("echo two")) form.querySelector("button").click();
}).observe(form, { childList: true, subtree: true })"""


@only_main
def test_a_click_does_not_answer_an_unread_request(notebook: Notebook) -> None:
    """The second click of a double click hits the next request at the same place."""
    notebook.run(f"{NEW_PROMPT}#two")
    asks(notebook, "echo one")
    notebook.form.evaluate(AT_ONCE)
    press(notebook, ONCE)
    asks(notebook, "echo two")
    press(notebook, REJECT)
    ends(notebook, 0, "rejected")
    (text,) = shows(notebook, 0)
    assert "bash 'echo one' → once" in text
    assert "bash 'echo two' → reject" in text


@only_main
def test_an_edit_permission_shows_all_lines(notebook: Notebook, workspace: Path) -> None:
    """Consecutive lines of one kind share an element: a browser is slow with one per line."""
    lines = [f"line {n}" for n in range(3_000)]
    call = ["write", {"filePath": "long.txt", "content": "\n".join([*lines, ""])}]
    notebook.run(f"{NEW_PROMPT}#plan {json.dumps([{'calls': [call]}, {'text': 'Done.'}])}")
    asks(notebook, "long.txt")
    shown = notebook.form.locator(".oc-ask-diff")
    texts = shown.inner_text().splitlines()
    assert [line for line in texts if line.startswith("+")] == [f"+{line}" for line in lines]
    assert shown.locator("span").count() < 10
    press(notebook, REJECT)
    ends(notebook, 0, "rejected")


# -- questions -------------------------------------------------------------------------------------


def test_a_question_is_answered_with_options_and_free_text(notebook: Notebook) -> None:
    notebook.run(f"{NEW_PROMPT}#question")
    asks(notebook, "Which colour?", "Which sizes?")
    colour, sizes = (notebook.form.get_by_role("group", name=n) for n in ("Colour", "Sizes"))
    press(notebook, "Answer")
    asks(notebook, "Colour: an answer is needed", "Sizes: an answer is needed")
    colour.get_by_label("Red").check()
    colour.get_by_label("Or in your own words").fill("A warm green")
    expect(colour.get_by_label("Red")).not_to_be_checked()
    for size in ("S", "L"):
        sizes.get_by_label(size, exact=True).check()
    press(notebook, "Answer")
    ends(notebook, 0, "succeeded")
    assert "→ answered (A warm green; S, L)" in shows(notebook, 0)[-1]


NAMED = [{"value": "a", "label": "Apples"}, {"value": "b", "label": "Bread"}]
FIELDS: list[dict[str, Any]] = [
    {"key": "name", "title": "Name", "type": "string", "required": True, "minLength": 2},
    {"key": "age", "title": "Age", "type": "integer", "minimum": 18},
    {"key": "food", "title": "Food", "type": "multiselect", "options": NAMED, "custom": True},
    {"key": "sure", "title": "Sure", "type": "boolean", "required": True},
    {
        "key": "why",
        "title": "Why not",
        "type": "string",
        "required": True,
        "when": [{"key": "sure", "op": "eq", "value": False}],
    },
]


def test_a_2x_form_shows_applicable_fields_and_errors(
    chrome: Browser, server: Jupyter, simulator: Simulator
) -> None:
    """On the simulated 2.x: a permission with its saved pattern, then a form of another client."""
    page = chrome.new_context(viewport={"width": 1100, "height": 1400}).new_page()
    watch = browser.watch(page, server.url)
    notebook = Notebook.open(page, server, "lab", NEW, name="second.ipynb")
    notebook.run(
        f"import os; os.environ.update({json.dumps(simulator.access)})\n"
        f"%load_ext opencode_magics\n%oc_connect -d {simulator.directory}",
        "%oc_new A form",
        "%%oc_prompt\n#bash until [ -e filled ]; do sleep .2; done",
    )
    asks(notebook, "until [ -e filled ]", "Always allow: until * for every session of this project")
    press(notebook, ONCE)
    access = {"password": simulator.password, "directory": str(simulator.directory)}
    with Client(simulator.url, **access) as client:
        session = next(s for s in client.sessions() if s.title == "A form")
        client.run(_post_form(session.id))
        (form,) = [f for f in client.questions() if f.session == session.id]
        held = simulator.backend.forms[form.id]

    asks(notebook, "Name", "Age", "Food", "Sure")
    parts = {f["title"]: notebook.form.get_by_role("group", name=f["title"]) for f in FIELDS}
    expect(parts["Why not"]).to_be_hidden()
    parts["Age"].get_by_label("Your answer").fill("7")
    press(notebook, "Answer")
    asks(notebook, "Name: an answer is needed", "Age: Value must be greater than or equal to 18.")
    asks(notebook, "Sure: an answer is needed")
    expect(notebook.form).not_to_contain_text("Why not: an answer is needed")

    parts["Name"].get_by_label("Your answer").fill("A")
    parts["Age"].get_by_label("Your answer").fill("36")
    parts["Food"].get_by_label("Bread").check()
    parts["Food"].get_by_label("Or in your own words").fill("olives")
    parts["Sure"].get_by_label("No").check()
    expect(parts["Why not"]).to_be_visible()
    press(notebook, "Answer")
    asks(notebook, "Why not: an answer is needed")
    parts["Why not"].get_by_label("Your answer").fill("it rains")
    parts["Sure"].get_by_label("Yes").check()
    expect(parts["Why not"]).to_be_hidden()
    press(notebook, "Answer")
    asks(notebook, "Name: at least 2 characters, not 1")  # an error from the kernel
    assert not held.settled.is_set()
    parts["Name"].get_by_label("Your answer").fill("Ada")
    press(notebook, "Answer")

    expect(notebook.form).to_have_count(0)
    assert held.answer == {"name": "Ada", "age": 36, "food": ["b", "olives"], "sure": True}
    (simulator.directory / "filled").touch()
    ends(notebook, 2, "succeeded")
    assert watch.seen == []
    page.context.close()


def _post_form(session: str) -> Any:
    body = {"title": "About you", "fields": FIELDS}
    return (yield Request("POST", f"/api/session/{session}/form", {}, body))


# -- stopping, reloading ---------------------------------------------------------------------------


def test_an_interrupt_with_a_form_open_stops_the_turn_and_the_queue(
    notebook: Notebook, client: Client, workspace: Path
) -> None:
    notebook.run(f"{NEW_PROMPT}#bash touch never", "print('second')", "print('third')")
    asks(notebook, "touch never")
    waits(notebook, 1, 2)
    notebook.interrupt()
    ends(notebook, 0, "Stopped; the turn is aborted on the server.")
    assert "■ aborted" in "\n".join(shows(notebook, 0))
    for cell in (1, 2):
        expect(notebook.prompt(cell)).to_have_text("[ ]:")
        expect(notebook.outputs(cell)).to_have_count(0)
    assert not [p for p in client.permissions() if p.subject == "touch never"]
    assert client.sessions()[0].id not in client.statuses()
    assert not (workspace / "never").exists()
    saved = notebook.save()
    assert not [o for o in saved.cells[0].outputs if "widget" in json.dumps(o)]


def test_after_a_reload_the_form_is_there_and_answers(
    notebook: Notebook, window: Window, workspace: Path
) -> None:
    """If the notebook was saved meanwhile. The page misses later output, which %oc_attach shows."""
    notebook.run(f"{NEW_PROMPT}#bash touch reloaded", "done = 'the next cell ran'")
    asks(notebook, "touch reloaded")
    notebook.save()
    notebook.page.reload()
    asks(notebook, "touch reloaded")
    press(notebook, ONCE)
    expect(notebook.form).to_have_count(0)
    # A click makes the kernel publish "idle" while the cell still runs: wait for the kernel first.
    notebook.wait_for_kernel()
    notebook.run_through("print(done)", "%oc_attach")
    assert (workspace / "reloaded").exists()
    assert shows(notebook, 0) == ["the next cell ran\n"]
    assert "succeeded" in shows(notebook, 1)[-1]


@only_main
def test_a_lost_form_can_be_reopened_in_another_notebook(
    notebook: Notebook, server: Jupyter, practice: Practice, workspace: Path
) -> None:
    """The page was reloaded and the notebook had not been saved; the cell still waits."""
    notebook.run("%oc_new A lost form", "%oc_prompt #bash touch found")
    asks(notebook, "touch found")
    notebook.page.reload()
    notebook.wait_for_kernel(status="busy")
    expect(notebook.form).to_have_count(0)

    page = notebook.page.context.new_page()
    other = Notebook.open(page, server, "lab", NEW, name="other.ipynb")
    other.run(
        f"%load_ext opencode_magics\n%oc_connect -d {practice.directory}",
        "%oc_attach A lost form",
    )
    asks(other, "touch found")
    press(other, ONCE)
    ends(other, 1, "succeeded")
    page.close()
    assert (workspace / "found").exists()
    notebook.wait_for_kernel()
    notebook.run_through("turn = %oc_turn\nprint(turn.outcome)")
    assert shows(notebook, 0) == ["succeeded\n"]


@only_main
def test_a_cell_far_out_of_sight_can_be_answered(notebook: Notebook) -> None:
    """Run All scrolls to the last cell; the form is drawn anyway."""
    lines = "\n".join(f"print({n})" for n in range(12))
    notebook.run(f"{NEW_PROMPT}#bash echo far", *[lines] * 30)
    asks(notebook, "echo far")
    press(notebook, ONCE)
    ends(notebook, 0, "succeeded")


# -- replays ---------------------------------------------------------------------------------------


def test_a_replay_is_answered_and_stepped_through_with_buttons(
    notebook: Notebook, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "lesson.jsonl"
    notebook.run(f"%oc_record {path}", f"{NEW_PROMPT}#bash echo lesson", "%oc_record --stop")
    asks(notebook, "echo lesson")
    press(notebook, ONCE)
    notebook.done(2)
    sessions = len(client.sessions())

    replay = f"%oc_replay {path} --speed 9"
    notebook.run(f"{replay} --interactive", f"{replay} --step", "print('the last cell')")
    asks(notebook, "echo lesson")
    waits(notebook, 1, 2)
    press(notebook, REJECT)
    expect(notebook.outputs(0).first).to_contain_text("Replay of a turn of")
    notebook.done(0)
    (text,) = shows(notebook, 0)
    assert "→ once" in text
    assert "You answered reject; in the recording it was once" in text
    assert "succeeded · replay" in text

    asks(notebook, "Replay, 0.0 of")
    press(notebook, "Next")
    expect(notebook.outputs(1).first).to_contain_text("Running it.")
    expect(notebook.outputs(1).first).not_to_contain_text("succeeded")
    expect(notebook.form.get_by_label(MESSAGE)).to_have_count(0)
    press(notebook, "Next")
    press(notebook, "Play the rest")
    ends(notebook, 2, "the last cell")
    assert "succeeded · replay" in shows(notebook, 1)[-1]
    assert len(client.sessions()) == sessions


@only_main
def test_an_interrupt_stops_a_replay_and_the_queue(notebook: Notebook, tmp_path: Path) -> None:
    path = tmp_path / "lesson.jsonl"
    notebook.run_through(f"%oc_record {path}", f"{NEW_PROMPT}#text 2", "%oc_record --stop")
    notebook.run(f"%oc_replay {path} --step", "print('second')")
    asks(notebook, "Replay, 0.0 of")
    notebook.interrupt()
    ends(notebook, 0, "The replay was stopped; no turn was running.")
    expect(notebook.prompt(1)).to_have_text("[ ]:")


# -- keys, screen readers, colors ------------------------------------------------------------------


@only_main
def test_everything_can_be_done_with_keys(notebook: Notebook) -> None:
    keys = notebook.page.keyboard
    notebook.run(f"{NEW_PROMPT}#two", f"{NEW_PROMPT}#question", "1 + 1")
    asks(notebook, "echo one")
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    tab_to(notebook, "button", ONCE)
    keys.press("Enter")
    asks(notebook, "echo two")
    tab_to(notebook, "button", REJECT, most=3)  # the form already has the focus
    keys.press("Tab")
    keys.type("Say three instead")
    keys.press("Enter")

    asks(notebook, "Which colour?")
    keys.press("ArrowDown")
    tab_to(notebook, "radio", "Red")
    keys.press("ArrowDown")
    expect(notebook.form.get_by_label("Blue")).to_be_checked()
    tab_to(notebook, "checkbox", "S")
    keys.press("Space")
    tab_to(notebook, "button", "Answer")
    keys.press("Space")
    notebook.done(2)
    assert "→ reject (Say three instead)" in shows(notebook, 0)[-1]
    assert "→ answered (Blue; S)" in shows(notebook, 1)[-1]


def tab_to(notebook: Notebook, role: Any, name: str, most: int = 12) -> None:
    """Press Tab until a control has the focus."""
    wanted = notebook.form.get_by_role(role, name=name, exact=True)
    expect(wanted).to_be_enabled()
    for _ in range(most):
        notebook.page.keyboard.press("Tab")
        if wanted.evaluate("(node) => node === document.activeElement"):
            return
    raise AssertionError(f"Tab did not reach {name} in {most} presses")


@both_apps
def test_keys_typed_into_the_form_trigger_no_notebook_shortcut(notebook: Notebook) -> None:
    notebook.run(f"{NEW_PROMPT}#bash echo typed", "1 + 1")
    asks(notebook, "echo typed")
    box = notebook.form.get_by_label(MESSAGE)
    box.focus()
    keys = notebook.page.keyboard
    keys.type("dd a b x z m 00")
    for key in ("Shift+Enter", "Control+Enter", "Alt+Enter", "Escape"):
        box.fill("")
        keys.press(key)
        keys.type("ddab")
        expect(box).to_have_value("ddab")
    expect(notebook.page.locator(".jp-Notebook .jp-Cell")).to_have_count(2)
    expect(notebook.page.locator(".jp-Dialog")).to_have_count(0)
    press(notebook, ONCE)
    ends(notebook, 1, "2")


@only_main
def test_a_screen_reader_can_read_the_request(notebook: Notebook) -> None:
    page = notebook.page
    notebook.run(f"{NEW_PROMPT}#bash echo read", f"{NEW_PROMPT}#question")
    form = page.get_by_role("group", name="Permission: bash 'echo read'")
    effects = {
        ONCE: "Allow once: only this time.",
        "Always allow": re.compile("^Always allow: echo"),
        REJECT: "Reject without a message: the turn stops.",
    }
    for name, effect in effects.items():
        button = form.get_by_role("button", name=name)
        expect(button).to_have_accessible_description(effect)
    expect(form.get_by_role("textbox", name=MESSAGE)).to_be_enabled()
    expect(form.get_by_role("status").first).to_have_text("Permission: bash 'echo read'")
    form.get_by_role("button", name=ONCE).click()

    form = page.get_by_role("group", name="Question", exact=True)
    for group, role, option, more in (
        ("Colour: Which colour?", "radio", "Red", "warm"),
        ("Sizes: Which sizes?", "checkbox", "S", "small"),
    ):
        items = form.get_by_role("group", name=group)
        choice = items.get_by_role(role, name=option, exact=True)
        expect(choice).to_have_accessible_description(more)
        expect(items.get_by_role("textbox", name="Or in your own words")).to_be_enabled()
    form.get_by_role("button", name="Dismiss").click()
    ends(notebook, 1, "dismissed")


CONTRAST = """(root) => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => {
    const alpha = top[3] ?? 1;
    return below.map((b, n) => top[n] * alpha + b * (1 - alpha));
  };
  const behind = (node) => {
    if (!node) return [255, 255, 255];
    return over(rgb(getComputedStyle(node).backgroundColor), behind(node.parentElement));
  };
  const light = (color) => {
    const [r, g, b] = color.map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opacity = (node) => node === root ? 1
    : getComputedStyle(node).opacity * opacity(node.parentElement);
  const contrast = (node) => {
    const back = behind(node);
    const ink = [...rgb(getComputedStyle(node).color).slice(0, 3), opacity(node)];
    const [a, b] = [light(over(ink, back)), light(back)].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  };
  const texts = [...root.querySelectorAll("*")].filter((node) =>
    [...node.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim()));
  return texts.map((node) => [contrast(node), node.textContent.trim()]);
}"""


@only_main
@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_the_form_can_be_read_in_both_themes(
    notebook: Notebook, theme: str, tmp_path: Path
) -> None:
    """All its texts have the contrast of 4.5 that WCAG requires. The screenshots are for people."""
    notebook.theme(f"JupyterLab {theme}")
    try:
        for name, prompt in (("edit", "#edit notes.txt hello goodbye"), ("question", "#question")):
            notebook.run(f"{NEW_PROMPT}{prompt}")
            asks(notebook, "Allow once" if name == "edit" else "Which colour?")
            expect(notebook.form.get_by_role("button").last).to_be_enabled()
            notebook.cell(0).screenshot(path=tmp_path / f"{name}-{theme}.png")
            contrasts = notebook.form.evaluate(CONTRAST)
            assert len(contrasts) > 8
            assert [text for contrast, text in contrasts if contrast < 4.5] == []
            notebook.settle()
    finally:
        notebook.theme("JupyterLab Light")


# -- the form alone --------------------------------------------------------------------------------

BY_HAND = """
from opencode_magics.notebook.form import Form
from opencode_magics.notebook.pump import Pump

def ask(form, *specs):
    "Show the specs one by one, each until there is a click."
    with Pump(get_ipython().kernel) as pump:
        for spec in specs:
            form.show(spec)
            while (click := form.next_click()) is None:
                pump.poll(0.05)
            print(click)
"""


@only_main
def test_an_answer_that_did_not_arrive_can_be_sent_again_unchanged(notebook: Notebook) -> None:
    notebook.run(
        BY_HAND,
        "from opencode_magics.notebook.form import permission_spec\n"
        "from opencode_magics.core.model import Permission\n"
        "spec = permission_spec(Permission('p', 's', 'bash', command='ls'), '', '', 0, '')\n"
        "form = Form(); form.place('here')\n"
        "ask(form, spec, spec | {'note': 'It did not arrive.'}, spec | {'note': 'Not again.'})\n"
        "form.close('here')",
    )
    box = notebook.form.get_by_label(MESSAGE)
    box.fill("not now")
    press(notebook, REJECT)
    for note in ("It did not arrive.", "Not again."):
        asks(notebook, note)
        expect(box).to_have_value("not now")
        press(notebook, REJECT)
    notebook.done(1)
    (text,) = shows(notebook, 1)
    assert text.count("reply='reject', message='not now'") == 3


@only_main
def test_every_field_has_its_own_input_and_errors(notebook: Notebook) -> None:
    notebook.run(
        BY_HAND,
        "from opencode_magics.notebook.form import question_spec\n"
        "from opencode_magics.core.model import Option, Question, QuestionItem\n"
        "yes_no = (Option('Yes', value='true'), Option('No', value='false'))\n"
        "size = QuestionItem('Size', kind='integer', least=1, most=5, required=True)\n"
        "sure = QuestionItem('Sure', options=yes_no, kind='boolean', custom=False, required=True)\n"
        "mail = QuestionItem('Mail', format='email')\n"
        "form = Form(); form.place('here')\n"
        "ask(form, question_spec(Question('q', 's', (size, sure, mail)), ''))\n"
        "form.close('here')",
    )
    size, sure, mail = (
        notebook.form.get_by_role("group", name=n) for n in ("Size", "Sure", "Mail")
    )
    expect(sure.get_by_role("textbox")).to_have_count(0)
    press(notebook, "Answer")
    asks(notebook, "Size: an answer is needed", "Sure: an answer is needed")
    size.get_by_role("spinbutton").fill("9")
    sure.get_by_label("Yes").check()
    mail.get_by_role("textbox").fill("nobody")
    press(notebook, "Answer")
    asks(notebook, "Size: Value must be less than or equal to 5", "Mail: Please include an '@'")
    size.get_by_role("spinbutton").fill("4")
    mail.get_by_role("textbox").fill("")
    press(notebook, "Answer")
    notebook.done(1)
    assert "answers=(('4',), ('Yes',), ())" in shows(notebook, 1)[-1]


@only_main
def test_typed_text_survives_when_the_form_moves(notebook: Notebook, workspace: Path) -> None:
    """While a person types, the turn shows more, and another view of the form is created below."""
    go = workspace / "go"
    notebook.run(
        BY_HAND,
        "from pathlib import Path\n"
        "from opencode_magics.notebook.form import permission_spec\n"
        "from opencode_magics.core.model import Permission\n"
        "form = Form(); form.place('here')\n"
        "form.show(permission_spec(Permission('p', 's', 'bash', command='ls'), '', '', 0, ''))\n"
        "with Pump(get_ipython().kernel) as pump:\n"
        f"    while not Path({str(go)!r}).exists(): pump.poll(0.05)\n"
        "    display({'text/plain': 'more'}, raw=True, display_id='here', update=True)\n"
        "    form.place('below')\n"
        "    while (click := form.next_click()) is None: pump.poll(0.05)\n"
        "form.close('below')\n"
        "print(click)",
    )
    box = notebook.form.get_by_label(MESSAGE)
    box.fill("not now")
    go.touch()
    expect(notebook.outputs(1).first).to_have_text("more")
    expect(box).to_have_value("not now")
    expect(box).to_be_focused()
    asks(notebook, "Reject with this message")
    notebook.page.keyboard.press("Enter")
    notebook.done(1)
    assert "reply='reject', message='not now'" in shows(notebook, 1)[-1]


@only_main
def test_after_a_click_all_buttons_are_disabled_until_it_is_received(notebook: Notebook) -> None:
    """The kernel is too busy to receive the first click, and the form doesn't send another."""
    notebook.run(
        BY_HAND,
        "import time\n"
        "from opencode_magics.notebook.form import question_spec\n"
        "from opencode_magics.core.model import Question\n"
        "form = Form(); form.place('here')\n"
        "form.show(question_spec(Question('q', 's', ()), 'Busy'))\n"
        "with Pump(get_ipython().kernel) as pump:\n"
        "    while not form.ready: pump.poll(0.05)\n"
        "    print('ready')\n"
        "while not form._clicks: time.sleep(0.1)",
    )
    asks(notebook, "Busy")
    expect(notebook.outputs(1).last).to_have_text("ready\n")
    press(notebook, "Dismiss")
    asks(notebook, "Sending the answer.")
    for name in ("Answer", "Dismiss"):
        expect(notebook.form.get_by_role("button", name=name)).to_be_disabled()
    asks(notebook, "The cell has not received the answer yet.", "%oc_attach")


@only_main
def test_with_ui_text_the_answer_is_typed_in_the_cell(notebook: Notebook) -> None:
    notebook.run(
        '%config OpenCodeMagics.ui = "text"',
        f"{NEW_PROMPT}#bash echo typed",
        '%config OpenCodeMagics.ui = "auto"',
    )
    box = notebook.page.locator("input.jp-Stdin-input")
    box.fill("1")
    box.press("Enter")
    ends(notebook, 1, "succeeded")
    notebook.done(2)


# -- lasting output --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(chrome: Browser, server: Jupyter) -> Iterator[tuple[Page, PageLog]]:
    """A page that shows notebooks without a kernel."""
    page = chrome.new_context(viewport={"width": 1100, "height": 1400}).new_page()
    yield page, browser.watch(page, server.url)
    page.context.close()


def reopen(page: Page, server: Jupyter, notebook: nbformat.NotebookNode, name: str) -> Notebook:
    """Show a notebook in JupyterLab without a kernel."""
    notebook.metadata.kernelspec.name = "gone"
    nbformat.write(notebook, server.root / name)
    page.goto(server.address("lab", name) + "?reset")
    dialog = page.locator(".jp-Dialog")
    dialog.get_by_role("button", name="No Kernel").click()
    expect(dialog).to_have_count(0)
    shown = Notebook(page, server, "lab", name)
    expect(shown.outputs(0).first).to_be_visible()
    return shown


def html(notebook: nbformat.NotebookNode, file: Path) -> str:
    """Convert a notebook like `nbconvert --to html`; return the file's URL."""
    from nbconvert import HTMLExporter

    body, _ = HTMLExporter().from_notebook_node(notebook)
    file.write_text(body, encoding="utf-8")
    return file.as_uri()


def words(texts: list[str]) -> list[str]:
    return " ".join(texts).split()


@only_main
def test_a_saved_notebook_reads_the_same_without_a_kernel_and_as_html(
    notebook: Notebook, server: Jupyter, reader: tuple[Page, PageLog], tmp_path: Path
) -> None:
    page, _ = reader
    notebook.run(f"{NEW_PROMPT}#edit notes.txt", f"{NEW_PROMPT}#task #bash echo below")
    asks(notebook, "notes.txt")
    press(notebook, ONCE)
    asks(notebook, "echo below")
    press(notebook, ONCE)
    ends(notebook, 1, "succeeded")
    live = [shows(notebook, n) for n in range(2)]
    pictures = [picture(notebook.outputs(n).first) for n in range(2)]
    saved = notebook.save()
    assert {m for c in saved.cells for o in c.outputs for m in o.data} == {
        "text/html",
        "text/plain",
    }
    assert "widgets" not in saved.metadata

    shown = reopen(page, server, saved, "reopened.ipynb")
    assert [shows(shown, n) for n in range(2)] == live
    for n, before in enumerate(pictures):
        assert difference(page, before, picture(shown.outputs(n).first)) < 0.01

    page = page.context.new_page()
    page.goto(html(saved, tmp_path / "reopened.html"), wait_until="domcontentloaded")
    outputs = page.locator(".jp-OutputArea-output")
    expect(outputs.first).to_be_visible()
    assert words(outputs.all_inner_texts()) == words([t for texts in live for t in texts])
    page.close()


def picture(locator: Locator) -> str:
    from base64 import b64encode

    locator.page.mouse.move(0, 0)
    return b64encode(locator.screenshot(animations="disabled")).decode()


DIFFERENCE = """async ([one, other]) => {
  const pixels = async (png) => {
    const image = new Image();
    image.src = `data:image/png;base64,${png}`;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.width !== b.width || a.height !== b.height) return 1;
  const differs = (n) => Math.abs(a.data[n] - b.data[n]) > 32;
  return [...a.data.keys()].filter(differs).length / a.data.length;
}"""


def difference(page: Page, one: str, other: str) -> float:
    """Return the share of color values that differ between two pictures, from 0 to 1."""
    different: float = page.evaluate(DIFFERENCE, [one, other])
    return different


@only_main
def test_a_long_turn_with_many_permissions_has_at_most_45_outputs(
    notebook: Notebook, client: Client
) -> None:
    """Twelve permissions, each after enough text to fill an output."""
    prose = "word " * 2_000
    steps: list[dict[str, Any]] = [
        {"text": prose, "calls": [["bash", {"command": f"echo {n}", "description": "x"}]]}
        for n in range(12)
    ]
    notebook.run(f"{NEW_PROMPT}#plan {json.dumps([*steps, {'text': 'Done.'}])}")
    for n in range(12):
        asks(notebook, f"bash 'echo {n}'")
        expect(notebook.form).to_have_count(1)
        press(notebook, ONCE)
    ends(notebook, 0, "succeeded")
    (cell,) = notebook.save().cells
    assert 8 < len(cell.outputs) <= 45  # the form was below this many
    assert all(output.data["text/plain"] for output in cell.outputs[:-1])


# -- safety ----------------------------------------------------------------------------------------

FORBIDDEN = """(roots) => {
  const tags = "script,img,style:not([scoped]),form,iframe,object,embed,link,meta,base,svg,math,"
    + "video,audio,source,input,button,textarea,select,marquee,picture,mjx-container,title,x-y";
  const found = [];
  for (const root of roots) {
    // Controls of the form, and formulas in DataFrames, which pandas and JupyterLab render safely.
    const fine = (node) => node.matches("input, button, form, mjx-container, mjx-container *")
      && node.closest(".oc-ask, table.dataframe");
    for (const node of root.querySelectorAll(tags)) if (!fine(node)) found.push(node.outerHTML);
    for (const node of root.querySelectorAll("*")) {
      for (const { name, value } of node.attributes) {
        const runs = name.startsWith("on") || name.startsWith("data-commandlinker");
        const leads = ["href", "src", "action"].includes(name)
          && !/^(https?:|mailto:|#)/i.test(value.trim());
        const covers = /position|z-index/i.test(value) && !fine(node);
        const loads = name === "style" && (covers || /url\\s*\\(/i.test(value));
        if (runs || leads || loads) found.push(`${name}=${value}`);
      }
    }
  }
  return found;
}"""


def shown_with(name: str) -> str:
    """Return a cell that draws a turn in which every text is one of these payloads."""
    return (
        f"texts = list(hostile_payloads.{name}.values())\n"
        "turn, cell = hostile_payloads.turn(texts), LiveCell()\n"
        "cell.show(turn, ' '.join(texts))\n"
        "cell.close(turn, ' '.join(texts))"
    )


HOSTILE = [
    "import pandas; from IPython.display import display\n"
    "from support import hostile_payloads\n"
    "from opencode_magics.errors import TurnError\n"
    "from opencode_magics.notebook.live import LiveCell\n"
    "show = pandas.options.display\n"
    "show.max_rows = show.max_columns = None; show.max_colwidth = 200\n"
    "payloads = list(hostile_payloads.ALL.values())",
    *map(shown_with, ("RUNS", "LOADS", "LINKS", "SPOOFS")),
    *[
        f"for text in payloads[{n}:{n + 40}]:\n"
        "    format = get_ipython().display_formatter.format\n"
        "    formatted = map(format, hostile_payloads.values(text))\n"
        "    display({'text/html': ''.join(data['text/html'] for data, _ in formatted)}, raw=True)"
        for n in range(0, len(hostile_payloads.ALL), 40)
    ],
    # A lone surrogate can't be sent at all.
    "sendable = [t for name, t in hostile_payloads.ALL.items() if name != 'half-pair']\n"
    "for frame in hostile_payloads.frames(sendable): display(frame)",
    "get_ipython().showtraceback((TurnError, TurnError(' '.join(payloads)), None))",
]
FORMS = (
    f"{BY_HAND}\nfrom support import hostile_payloads\n"
    "form = Form(); form.place('here')\n"
    "ask(form, *hostile_payloads.specs(hostile_payloads.ALL.values()))\n"
    "form.close('here')"
)
HOSTILE_TEXT = "\n\n".join(
    (hostile_payloads.RUNS | hostile_payloads.LOADS | hostile_payloads.LINKS).values()
).replace("\x00", "")
NAME = "<img src=x onerror=fired('name')>"


def hostile_turn() -> str:
    """Return a prompt for a turn with hostile texts and requests, through a real server."""
    item = {
        "header": NAME,
        "question": HOSTILE_TEXT,
        "options": [{"label": NAME, "description": HOSTILE_TEXT}],
    }
    steps = [
        {
            "text": HOSTILE_TEXT,
            "reasoning": HOSTILE_TEXT,
            "calls": [["bash", {"command": f"cat <<'E'\n{HOSTILE_TEXT}\nE", "description": NAME}]],
        },
        {
            "calls": [
                ["write", {"filePath": f"{NAME}.md".replace("/", ""), "content": HOSTILE_TEXT}]
            ]
        },
        {"calls": [["question", {"questions": [item]}]]},
        {
            "calls": [
                [
                    "task",
                    {"description": NAME, "prompt": "#bash echo hi", "subagent_type": "general"},
                ],
                ["task", {"description": NAME, "prompt": "#text 1", "subagent_type": NAME}],
            ]
        },
        {"text": HOSTILE_TEXT},
    ]
    return f"#plan {json.dumps(steps)}".replace("<", "\\u003c")


def forbidden(page: Page) -> list[str]:
    """Return the forbidden tags and attributes in the outputs of a page."""
    matches: list[str] = page.locator(".jp-OutputArea-output").evaluate_all(FORBIDDEN)
    return [match[:200] for match in matches]


@dataclass(frozen=True)
class Hostile:
    """A notebook full of hostile text, and the violations seen while it ran."""

    saved: nbformat.NotebookNode
    violations: list[str]
    seen: list[str]


@pytest.fixture(scope="module")
def hostile(chrome: Browser, server: Jupyter, practice: Practice) -> Iterator[Hostile]:
    """One notebook with a real turn and with values of every kind."""
    page = chrome.new_context(viewport={"width": 1100, "height": 1400}).new_page()
    watch = browser.watch(page, server.url)
    notebook = Notebook.open(page, server, "lab", NEW, name="hostile.ipynb")
    turn = f"%%oc_prompt --title {NAME!r}\n{hostile_turn()}"
    notebook.run(
        f"%load_ext opencode_magics\n%oc_connect -d {practice.directory}",
        FORMS,
        turn,
        "%oc_session",
        "%oc_sessions --limit 3",
        "%oc_diff",
    )
    violations = []
    for button in ("Reject", "Reject", "Dismiss", ONCE, ONCE, "Answer", ONCE):
        expect(notebook.form.get_by_role("button", name=button)).to_be_enabled()
        if button == "Answer":
            notebook.form.get_by_role("checkbox").or_(notebook.form.get_by_role("radio")).check()
        violations += forbidden(page)
        shown = notebook.form.get_attribute("aria-labelledby")
        press(notebook, button)
        expect(notebook.page.locator(f"[aria-labelledby='{shown}']:visible")).to_have_count(0)
    notebook.done(5)
    notebook.run_more(*HOSTILE)
    violations += forbidden(page)
    yield Hostile(notebook.save(), violations, watch.seen)
    page.context.close()


def test_the_payloads_run_without_protection(chrome: Browser) -> None:
    """Otherwise the tests below would prove nothing."""
    page = chrome.new_page()
    watch = browser.watch(page)
    page.goto("about:blank")
    fill = "(html) => document.body.appendChild(document.createElement('div')).innerHTML = html"
    for name, payload in (hostile_payloads.RUNS | hostile_payloads.LOADS).items():
        if name not in ("base", "meta-refresh"):  # they would navigate away
            page.evaluate(fill, payload)
    page.wait_for_function("() => document.readyState === 'complete'")
    run = lambda: len(set(watch.fired)) >= 15 and len(set(watch.requests)) >= 5  # noqa: E731
    until(page, run)
    page.close()


def until(page: Page, true: Callable[[], bool]) -> None:
    """Let the page run until a condition is true."""
    for _ in range(1_200):
        if true():
            return
        page.wait_for_timeout(50)
    raise AssertionError("the condition did not become true")


def test_hostile_text_does_nothing_in_a_running_notebook(hostile: Hostile) -> None:
    assert hostile.violations == []
    assert hostile.seen == []
    saved = json.dumps(hostile.saved)
    assert all(name in saved for name in hostile_payloads.RUNS)
    assert "succeeded" in "".join(o.data["text/plain"] for o in hostile.saved.cells[2].outputs)


@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
def test_hostile_text_does_nothing_in_a_reopened_notebook(
    hostile: Hostile, reader: tuple[Page, PageLog], server: Jupyter, trusted: bool
) -> None:
    """Jupyter trusts notebooks that it has signed; a changed copy isn't trusted."""
    page, watch = reader
    if trusted:
        page.goto(server.address("lab", "hostile.ipynb") + "?reset")
        page.wait_for_selector(".jp-OutputArea-output")
    else:
        copy = nbformat.from_dict(hostile.saved)
        copy.cells.append(nbformat.v4.new_code_cell("'not signed'"))
        reopen(page, server, copy, "untrusted.ipynb")
    trust = "() => window.jupyterapp.shell.currentWidget.content.model.cells.get(6).trusted"
    assert page.evaluate(trust) is trusted
    scroll_through(page, ".jp-WindowedPanel-outer")
    assert page.locator(".jp-OutputArea-output").count() > 150
    assert forbidden(page) == []
    assert watch.seen == []


def test_hostile_text_does_nothing_in_html_from_nbconvert(
    hostile: Hostile, chrome: Browser, tmp_path: Path
) -> None:
    page = chrome.new_context(viewport={"width": 1100, "height": 1400}).new_page()
    watch = browser.watch(page)
    page.goto(html(hostile.saved, tmp_path / "hostile.html"), wait_until="domcontentloaded")
    scroll_through(page, "html")
    assert page.locator(".jp-OutputArea-output").count() > 150
    assert forbidden(page) == []
    templates = re.compile(r"https://(cdnjs\.cloudflare\.com|unpkg\.com|cdn\.jsdelivr\.net)/")
    assert [s for s in watch.seen if not templates.match(s)] == []
    page.context.close()


def scroll_through(page: Page, panel: str) -> None:
    """Scroll to the end in steps of ten screens."""
    end = "node => { node.scrollTop += 10 * node.clientHeight; return node.scrollTop; }"
    before = -1
    while (now := page.locator(panel).first.evaluate(end)) != before:
        before = now
        page.evaluate("() => new Promise(requestAnimationFrame)")
