"""What `%load_ext opencode_magics` costs, as a multiple of `import httpx`, which it includes.

    python tests/benchmarks/load.py [rounds]

Each figure is the median of fresh processes that have an IPython shell already; the two kinds take
turns, so that a noisy machine disturbs both alike. CPU time is compared, not the clock.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

ARMS = {
    "import httpx": "import httpx",
    "%load_ext opencode_magics": "ip.run_line_magic('load_ext', 'opencode_magics')",
}
PROGRAM = """
from time import process_time
from IPython.core.interactiveshell import InteractiveShell
ip = InteractiveShell.instance()
began = process_time()
{act}
print(process_time() - began)
"""


def cost(act: str) -> float:
    """CPU seconds of one fresh process."""
    program = [sys.executable, "-c", PROGRAM.format(act=act)]
    # As an installed package runs: from compiled files.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    for act in ARMS.values():
        cost(act)  # compiles
    for _ in range(rounds):
        for name, act in ARMS.items():
            times[name].append(cost(act))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:28} {median * 1000:7.1f} ms")
    base, ours = medians.values()
    print(f"ratio {ours / base:.2f} (at most 1.30)")
    sys.exit(ours / base > 1.3)


if __name__ == "__main__":
    main()
