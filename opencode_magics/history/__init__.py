"""What agents did and what it cost, as pandas DataFrames.

Columns and dtypes are the same whatever the data: nullable counts, times with a zone, `NA` where
nothing is known.
"""

from . import frames
from .cache import Cache
from .tables import forks, known_status, messages, parts, sessions, steps, tools
from .usage import usage

__all__ = [
    "Cache",
    "forks",
    "frames",
    "known_status",
    "messages",
    "parts",
    "sessions",
    "steps",
    "tools",
    "usage",
]
