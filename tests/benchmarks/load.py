"""Benchmark of `%load_ext opencode_magics`, as a multiple of `import httpx`, which it includes.

    python tests/benchmarks/load.py [rounds]

The results are medians of new processes that already have an IPython shell. The two kinds of
processes alternate, so that a noisy machine affects both equally. CPU time is compared, not wall
time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

STATEMENTS = {
    "import httpx": "import httpx",
    "%load_ext opencode_magics": "ip.run_line_magic('load_ext', 'opencode_magics')",
}
PROGRAM = """
from time import process_time
from IPython.core.interactiveshell import InteractiveShell
ip = InteractiveShell.instance()
start = process_time()
{statement}
print(process_time() - start)
"""


def cpu_time(statement: str) -> float:
    """Return the CPU seconds of a statement in a new process."""
    program = [sys.executable, "-c", PROGRAM.format(statement=statement)]
    # Let Python cache bytecode, as for an installed package.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.run(program, capture_output=True, text=True, check=True, env=env)
    return float(process.stdout)


def main() -> None:
    """Measure, and print the results; exit with 1 if the ratio is over the limit."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for statement in STATEMENTS.values():
        cpu_time(statement)  # caches the bytecode
    for _ in range(rounds):
        for name, statement in STATEMENTS.items():
            times[name].append(cpu_time(statement))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:28} {median * 1000:7.1f} ms")
    httpx, extension = medians.values()
    print(f"ratio {extension / httpx:.2f} (at most 1.30)")
    sys.exit(extension / httpx > 1.3)


if __name__ == "__main__":
    main()
