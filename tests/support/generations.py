"""Run tests on both generations, and translate tool names."""

import pytest

from opencode_magics.practice.simulator.agent import V2_TOOLS

both_generations = pytest.mark.parametrize("generation", ["1.x", "2.x"])


def tool_names(generation: str, *names: str) -> list[str]:
    """Translate tool names of 1.x to those of a generation."""
    return [V2_TOOLS[n][0] if generation == "2.x" and n in V2_TOOLS else n for n in names]
