"""How the time to read an answer grows with its length: a ratio within one run.

    python tests/benchmarks/answers.py

An answer that is twice as long must take about twice as long, however it is made.
"""

from __future__ import annotations

import time

from opencode_magics.prompts.schema import _values

SHAPES = {"fences": "```x\n", "open arrays": "[", "open objects": '{"a": ', "prose": "a [b] c\n"}


def seconds(answer: str) -> float:
    """The shortest time of three readings."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        list(_values(answer))
        times.append(time.perf_counter() - began)
    return min(times)


def growth(piece: str, size: int = 40_000) -> float:
    """Return how much longer a text of twice the size takes."""
    once, twice = (seconds(piece * (n * size // len(piece))) for n in (1, 2))
    return twice / max(once, 1e-4)


if __name__ == "__main__":
    for name, piece in SHAPES.items():
        print(f"{name}: twice the length takes {growth(piece):.1f} times as long")
