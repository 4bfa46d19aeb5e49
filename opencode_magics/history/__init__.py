"""What agents did, as pandas DataFrames.

Columns and dtypes are the same whatever the data: nullable counts, times with a zone, `NA` where
nothing is known.
"""

from .frames import agents, models, requests, sessions

__all__ = ["agents", "models", "requests", "sessions"]
