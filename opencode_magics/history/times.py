"""Points in time as people write them, and the calendar of a time zone."""

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
    """A time zone by its name (`Europe/Berlin`); None is this machine's own.

    Raises:
        UnknownNameError: There is no zone of that name.
    """
    if name is None:
        return _here()
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise UnknownNameError(
            f"There is no time zone {name!r}.", "Write it like UTC or Europe/Berlin."
        ) from error


def _here() -> ZoneInfo:
    import tzlocal

    try:
        return tzlocal.reload_localzone()  # TZ may be another one than before
    except (KeyError, ValueError, OSError) as error:  # TZ=UTC+3 is none that has a calendar
        raise UnknownNameError(
            "The time zone of this machine can't be told.",
            "Say which to count in: --tz Europe/Berlin, tz='UTC', or set TZ to such a name.",
        ) from error


def parse_time(given: str | date, where: ZoneInfo) -> int:
    """Milliseconds since the epoch of `7d` (ago), of a date or a time in a zone.

    Raises:
        ValueError: It is neither.
    """
    try:
        if isinstance(given, str) and (found := re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", given)):
            return round((time.time() - float(found[1]) * _UNITS[found[2]]) * _MILLISECOND)
        told = datetime.fromisoformat(given) if isinstance(given, str) else given
        whole = told if isinstance(told, datetime) else datetime.combine(told, clock())
        aware = whole if whole.tzinfo else whole.replace(tzinfo=where)
        return round(aware.timestamp() * _MILLISECOND)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"{given!r} is no point in time: write 7d, 12h, 30m (ago) or a date like 2026-11-29"
        ) from None


def period(times: pd.Series, name: str, where: ZoneInfo) -> pd.Series:
    """The day, week (its Monday) or month (its first) of times, by the clocks of a zone.

    A date has no zone: it is what the calendar on the wall there says.
    """
    import pandas as pd

    days = times.dt.tz_convert(where).dt.tz_localize(None).dt.normalize()
    match name:
        case "week":
            days = days - pd.to_timedelta(days.dt.day_of_week, unit="D")
        case "month":
            days = days - pd.to_timedelta(days.dt.day - 1, unit="D")
    return days.astype("datetime64[ms]")
