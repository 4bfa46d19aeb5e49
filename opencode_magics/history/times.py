"""Parse times and time zones, and compute the calendar periods of a time zone."""

from __future__ import annotations

import re
import time
from datetime import date, datetime
from datetime import time as clock
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from ..errors import UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MILLISECOND = 1000
PERIODS = ("day", "week", "month")


def zone(name: str | None) -> ZoneInfo:
    """Return a time zone by name (`Europe/Berlin`); None means this machine's zone.

    Raises:
        UnknownNameError: There is no zone of that name.
    """
    if name is None:
        return _local_zone()
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise UnknownNameError(
            f"Unknown time zone {name!r}.", "Use a name such as UTC or Europe/Berlin."
        ) from error


def _local_zone() -> ZoneInfo:
    import tzlocal

    try:
        return tzlocal.reload_localzone()  # TZ may have changed
    except (KeyError, ValueError, OSError) as error:  # such as TZ=UTC+3, not a zone name
        raise UnknownNameError(
            "The time zone of this machine is unknown.",
            "Name one: --tz Europe/Berlin, tz='UTC', or set TZ to such a name.",
        ) from error


def parse_time(value: str | date, tz: ZoneInfo) -> int:
    """Parse `7d` (ago), a date, or a time in a zone; return milliseconds since the epoch.

    Raises:
        ValueError: The value is not a time.
    """
    try:
        if isinstance(value, str) and (age := re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", value)):
            return round((time.time() - float(age[1]) * _UNITS[age[2]]) * _MILLISECOND)
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        moment = parsed if isinstance(parsed, datetime) else datetime.combine(parsed, clock())
        aware = moment if moment.tzinfo else moment.replace(tzinfo=tz)
        return round(aware.timestamp() * _MILLISECOND)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"{value!r} is not a time: write 7d, 12h, 30m (ago) or a date like 2026-11-29"
        ) from None


def period(times: pd.Series, name: str, tz: ZoneInfo) -> pd.Series:
    """Return the first day of each time's day, week (a Monday) or month, in a time zone.

    The dates have no zone; they are local dates.
    """
    import pandas as pd

    days = times.dt.tz_convert(tz).dt.tz_localize(None).dt.normalize()
    match name:
        case "week":
            days = days - pd.to_timedelta(days.dt.day_of_week, unit="D")
        case "month":
            days = days - pd.to_timedelta(days.dt.day - 1, unit="D")
    return days.astype("datetime64[ms]")
