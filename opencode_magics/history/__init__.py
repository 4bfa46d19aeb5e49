"""What agents did and what it cost, as pandas DataFrames.

Columns and dtypes are the same whatever the data: nullable counts, times with a zone, `NA` where
nothing is known. `chart`, `context` and `timeline` draw them, `export` writes them to files.
"""

from . import frames
from .cache import Cache
from .export import Exported, export
from .plots import chart, context
from .queries import forks, known_status, messages, parts, sessions, steps, tools
from .spans import spans
from .timeline import timeline
from .usage import usage

__all__ = [
    "Cache",
    "Exported",
    "chart",
    "context",
    "export",
    "forks",
    "frames",
    "known_status",
    "messages",
    "parts",
    "sessions",
    "spans",
    "steps",
    "timeline",
    "tools",
    "usage",
]
