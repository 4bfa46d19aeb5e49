"""The history of sessions as pandas DataFrames: messages, tool calls, tokens and cost.

Columns and dtypes don't depend on the data: nullable counts, times with a zone, `NA` for unknown
values. `chart`, `context` and `timeline` draw charts, `export` writes files.
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
