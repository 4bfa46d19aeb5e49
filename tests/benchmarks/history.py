"""Benchmark of loading a long history, compared with a plain download of the same data.

A real server's database is filled with a thousand sessions. The floor is a raw-socket download of
the same bodies by four threads. Downloads and frames are measured in turn, and their medians are
compared. Memory is the peak above the process's memory before loading, in a separate process, after
all imports and after listing the sessions. Finally, sums of the frames are compared with sums of
the database.

    python tests/benchmarks/history.py [--sessions 1000] [--messages 33] [--rounds 3]
"""

from __future__ import annotations

import argparse
import base64
import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import synthetic_history

from opencode_magics import history
from opencode_magics.client import server
from opencode_magics.client.client import Client
from opencode_magics.history import Cache
from opencode_magics.practice.install import opencode
from opencode_magics.practice.world import Practice

LIMITS = {
    "messages / floor": 1.10,
    "parts / floor": 1.15,
    "usage by session / raw list": 2.0,
    "cached messages / raw list": 8.0,
    "memory of messages / bytes": 0.6,
    "memory of parts / bytes": 1.5,
}
WORKERS = 4
ZONE = "Europe/Berlin"


class Raw:
    """Downloads over plain sockets.

    Args:
        url: URL of the server.
        password: Password of the server.
    """

    def __init__(self, url: str, password: str) -> None:
        self._host = urlsplit(url).hostname or ""
        self._port = urlsplit(url).port or 0
        token = base64.b64encode(f"opencode:{password}".encode()).decode()
        self._headers = f"Host: {self._host}:{self._port}\r\nAuthorization: Basic {token}\r\n"

    def get(self, paths: Sequence[str]) -> int:
        """Download bodies one after another over one connection; return their bytes."""
        size = 0
        address = (self._host, self._port)
        with socket.create_connection(address) as sock, sock.makefile("rb", 1 << 20) as reader:
            for path in paths:
                sock.sendall(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode())
                size += self._body(reader)
        return size

    def get_all(self, paths: Sequence[str]) -> int:
        """Download bodies in four threads; return their bytes."""
        with ThreadPoolExecutor(WORKERS) as pool:
            return sum(pool.map(self.get, [paths[n::WORKERS] for n in range(WORKERS)]))

    @staticmethod
    def _body(reader: Any) -> int:
        length, chunked = 0, False
        while (line := reader.readline().strip().lower()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
            chunked = chunked or (name == b"transfer-encoding" and b"chunked" in value)
        if not chunked:
            return len(reader.read(length))
        size = 0
        while (chunk := int(reader.readline(), 16)) > 0:
            size += len(reader.read(chunk))
            reader.readline()
        reader.readline()
        return size


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a function takes."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak(url: str, directory: str, password: str, kind: str) -> int:
    """Return the peak memory growth, in bytes, of a new process that loads a frame."""
    command = [sys.executable, __file__, "--peak", kind, "--url", url, "--directory", directory]
    env = os.environ | {"OPENCODE_SERVER_PASSWORD": password}
    process = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return int(process.stdout)


def own_peak(url: str, directory: str, kind: str) -> int:
    """Load a frame and return this process's peak memory growth; `peak` runs this."""
    process, done = psutil.Process(), threading.Event()
    with Client(
        url, directory=directory, password=os.environ["OPENCODE_SERVER_PASSWORD"]
    ) as client:
        sessions = client.sessions()
        load = getattr(history, kind)
        load(client, sessions[:2], cache=False, progress=False)  # for the imports
        gc.collect()
        before = highest = process.memory_info().rss

        def watch() -> None:
            nonlocal highest
            while not done.wait(0.005):
                highest = max(highest, process.memory_info().rss)

        watcher = threading.Thread(target=watch)
        watcher.start()
        frame = load(client, sessions, cache=False, progress=False)
        highest = max(highest, process.memory_info().rss)
        done.set()
        watcher.join()
        assert len(frame)
    return highest - before


def main() -> int:
    """Measure, and print the results and those over their limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=3)
    for name in ("--peak", "--url", "--directory"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(own_peak(options.url, options.directory, options.peak))
        return 0
    with ExitStack() as closing:
        world = closing.enter_context(Practice())
        with Client(world.url, directory=str(world.directory), password=world.password) as first:
            first.create("The first of many")
        world.server.stop()
        database = world.root / "home/.local/share/opencode/opencode.db"
        filled = synthetic_history.fill_database(database, options.sessions, options.messages)
        running = server.start(directory=world.directory, command=opencode(), env=world.env)
        closing.callback(running.stop)
        client = closing.enter_context(
            Client(running.url, directory=str(world.directory), password=running.password)
        )
        raw = Raw(running.url, running.password)
        results = measure(client, raw, running.password, options.rounds)
        over = [name for name, limit in LIMITS.items() if results[name] > limit]
        print(f"{filled.sessions} sessions, {filled.messages} messages, {filled.parts} parts")
        for name, value in results.items():
            print(
                f"  {name:32} {value:10.3f}"
                + (f"   (limit {LIMITS[name]})" if name in LIMITS else "")
            )
        fork_some(client, running.password)
        wrong = compare(client, database)
        print(
            "  sums by session, model and day   " + ("; ".join(wrong) or "equal to the database's")
        )
    print("over the limit: " + ", ".join(over) if over else "all within limits")
    return len(over) + len(wrong)


def measure(client: Client, raw: Raw, password: str, rounds: int) -> dict[str, float]:
    """Measure times (medians of interleaved rounds) and memory."""
    sessions = client.sessions()
    query = urlencode({"directory": client.directory})
    paths = [f"/session/{s.id}/message?{query}" for s in sessions]
    list_path = [f"/session?{query}&limit=1000000&scope=project"]
    size = raw.get_all(paths)

    def load(kind: str) -> Callable[[], Any]:
        return lambda: getattr(history, kind)(client, sessions, cache=False, progress=False)

    def usage() -> Any:
        return history.usage(client, cache=False, progress=False)

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "history.db")
        history.messages(client, sessions, cache=cache, progress=False)
        works: dict[str, Callable[[], Any]] = {
            "floor": lambda: raw.get_all(paths),
            "messages": load("messages"),
            "floor again": lambda: raw.get_all(paths),
            "parts": load("parts"),
            "raw list": lambda: raw.get(list_path),
            "usage": usage,
            "raw list again": lambda: raw.get(list_path),
            "cached": lambda: history.messages(client, cache=cache, progress=False),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                times[name].append(timed(work))
    floor = median(times["floor"] + times["floor again"])
    raw_list = median(times["raw list"] + times["raw list again"])
    growth = {
        kind: peak(client.url, client.directory, password, kind) for kind in ("messages", "parts")
    }
    return {
        "MB of bodies": size / 1e6,
        "floor s": floor,
        "raw list s": raw_list,
        "messages / floor": median(times["messages"]) / floor,
        "parts / floor": median(times["parts"]) / floor,
        "usage by session / raw list": median(times["usage"]) / raw_list,
        "cached messages / raw list": median(times["cached"]) / raw_list,
        "memory of messages / bytes": growth["messages"] / size,
        "memory of parts / bytes": growth["parts"] / size,
    }


def fork_some(client: Client, password: str) -> None:
    """Fork 20 sessions, and one of the forks, on the server."""
    with httpx.Client(base_url=client.url, auth=("opencode", password), timeout=60) as http:
        for session in client.sessions()[:20]:
            fork = http.post(f"/session/{session.id}/fork", json={}).raise_for_status().json()
        http.post(f"/session/{fork['id']}/fork", json={}).raise_for_status()


def compare(client: Client, database: Path) -> list[str]:
    """Describe usage that differs from the database's sums, with and without forks' copies."""
    wrong: list[str] = []
    for copies in (False, True):
        for by in ("session", "model", "day"):
            frame = history.usage(
                client, by, tz=ZONE, keep_duplicates=copies, cache=False, progress=False
            )
            keys = frame[by].dt.strftime("%Y-%m-%d") if by == "day" else frame[by]
            costs = zip(keys, frame["cost"], strict=True)
            expected = synthetic_history.spent(database, by, ZONE, copies)
            if differences := synthetic_history.differences(costs, expected):
                wrong.append(f"by {by}, copies {copies}: {len(differences)} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
