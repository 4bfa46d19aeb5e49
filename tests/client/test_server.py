"""A server of our own starts, tells of trouble in sentences, and never outlives us unasked."""

import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import httpx
import pytest
from support.fake_server import FakeServer, v1_routes

from opencode_magics.client.server import connect_to, is_same_server, start
from opencode_magics.errors import ServerStartError
from opencode_magics.practice.world import Practice

HEALTHY = """
    import base64, http.server, json, os, sys

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            secret = "opencode:" + os.environ["OPENCODE_SERVER_PASSWORD"]
            wanted = "Basic " + base64.b64encode(secret.encode()).decode()
            body = json.dumps({"healthy": True, "version": "9.9"}).encode()
            self.send_response(200 if self.headers["authorization"] == wanted else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
BROKEN = """
    import os, sys
    print("Error: no disk", os.environ["OPENCODE_SERVER_PASSWORD"])
    sys.exit(3)
"""
SLOW = """
    import os, time
    open("pid", "w").write(f"{os.getpid()}\\n")
    time.sleep(60)
"""
STUBBORN = (
    """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
    + HEALTHY
)


def program(folder: Path, source: str) -> Path:
    """An `opencode` of a few lines of Python."""
    path = folder / "opencode"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(source)}")
    path.chmod(0o755)
    return path


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_real_server_starts_and_stops(opencode: Path, practice: Practice, tmp_path: Path) -> None:
    """The practice world's environment keeps the second server offline, too."""
    waited: list[float] = []
    server = start(directory=tmp_path, command=opencode, env=practice.env, progress=waited.append)
    assert server.version == "1.18.33"
    assert httpx.get(f"{server.url}/global/health", trust_env=False).status_code == 401
    assert waited == sorted(waited)
    server.stop()
    assert not alive(server.pid)


def test_a_server_is_reached_with_its_password_only(tmp_path: Path) -> None:
    server = start(command=program(tmp_path, HEALTHY))
    reply = httpx.get(server.url, auth=("opencode", server.password), trust_env=False)
    server.stop()
    assert reply.json() == {"healthy": True, "version": "9.9"}


def test_stop_can_be_repeated(tmp_path: Path) -> None:
    server = start(command=program(tmp_path, HEALTHY))
    server.stop()
    server.stop()
    assert not server.running


def test_a_server_that_ignores_a_request_to_stop_is_killed(tmp_path: Path) -> None:
    server = start(command=program(tmp_path, STUBBORN))
    server.stop(patience=0.3)
    assert not server.running


def test_the_password_is_in_no_repr_and_on_no_command_line(tmp_path: Path) -> None:
    server = start(command=program(tmp_path, HEALTHY))
    shown = repr(server) + str(server._process.args)
    server.stop()
    assert server.password not in shown


def test_a_server_listens_on_this_machine_only(tmp_path: Path) -> None:
    server = start(command=program(tmp_path, HEALTHY))
    arguments = list(server._process.args)
    server.stop()
    assert arguments[arguments.index("--hostname") + 1] == "127.0.0.1"


def test_only_its_owner_can_read_the_password_of_a_server_that_is_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = start(command=program(tmp_path, HEALTHY), keep=True)
    (file,) = (tmp_path / "state" / "opencode_magics").iterdir()
    mode, written = stat.S_IMODE(file.stat().st_mode), file.read_text()
    server.stop()
    assert mode == 0o600
    assert server.password in written
    assert server.password not in file.read_text()


def test_a_missing_program_says_how_to_install_it() -> None:
    with pytest.raises(ServerStartError, match="no program 'opencode-that-is-not-there'") as caught:
        start(command="opencode-that-is-not-there")
    assert "npm install -g opencode-ai" in caught.value.todo


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"No such directory: .*nowhere"):
        start(directory=tmp_path / "nowhere", command=program(tmp_path, HEALTHY))


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    path = program(tmp_path, "")
    path.write_text("not a program\n")
    with pytest.raises(ServerStartError, match=f"{re.escape(str(path))} could not be run"):
        start(command=path)


def test_a_server_that_ends_at_once_is_quoted_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"code 3") as caught:
        start(command=program(tmp_path, BROKEN))
    assert "Error: no disk ********" in str(caught.value)


def test_a_server_that_does_not_answer_in_time_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"did not answer within 5 s"):
        start(command=program(tmp_path, SLOW), directory=tmp_path, timeout=5)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_an_interrupt_while_waiting_leaves_no_server(tmp_path: Path) -> None:
    def interrupt(seconds: float) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(command=program(tmp_path, SLOW), directory=tmp_path, progress=interrupt)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_an_interrupt_of_a_stop_leaves_what_would_end_the_server(tmp_path: Path) -> None:
    server = start(command=program(tmp_path, STUBBORN))
    assert server._guard is not None
    interrupt = threading.Timer(
        0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
    )
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        server.stop(patience=60)
    assert server.running
    assert server._guard.poll() is None
    server.stop(patience=0)
    assert server._guard.poll() is not None


def in_another_python(code: str, *args: object) -> int:
    """Run code that prints a server's pid, and return it once that Python has ended."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


STARTS = """
    import sys
    from opencode_magics.client.server import start
    print(start(command=sys.argv[1], keep=len(sys.argv) > 2).pid)
"""


def test_a_server_ends_with_the_python_that_started_it(tmp_path: Path) -> None:
    assert not alive(in_another_python(STARTS, program(tmp_path, HEALTHY)))


def test_a_kept_server_outlives_the_python_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pid = in_another_python(STARTS, program(tmp_path, HEALTHY), "keep")
    try:
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_server_ends_with_us_although_we_are_killed(tmp_path: Path) -> None:
    """No atexit runs after a SIGKILL."""
    command = program(tmp_path, HEALTHY)
    code = f"""
        import os, signal
        from opencode_magics.client.server import start
        server = start(command={str(command)!r}, directory={str(tmp_path)!r})
        print(server.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 120
    while alive(pid):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.1)


@pytest.mark.parametrize("typed", ["127.0.0.1:5000", "http://127.0.0.1:5000/"])
def test_an_address_is_known_however_it_is_typed(typed: str) -> None:
    assert is_same_server(typed, "http://127.0.0.1:5000")
    assert not is_same_server(None, "http://127.0.0.1:5000")


def test_a_password_in_the_address_is_not_replaced_by_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is meant for that server, and the other one is none of its business."""
    monkeypatch.setenv("OPENCODE_SERVER_PASSWORD", "of-another-server")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with FakeServer(v1_routes()) as fake:
        connect_to(fake.url.replace("://", "://ana:hunter2@")).close()
    told = {s.headers["authorization"] for s in fake.seen}
    assert told == {httpx.BasicAuth("ana", "hunter2")._auth_header}
