"""When a cron entry is due: expressions, time zones, and what happens where clocks change.

    Timetable("30 2 * * *", "Europe/Paris").after(moment) --> the next tick, a moment in UTC
    Timetable(...).due(first, now, most)                  --> what is to be fired now, and what comes next

    five fields   minute hour day-of-month month day-of-week
    six fields    a second before them
    also          names (MON, JAN), ranges, lists, steps, L and LW (last day, last weekday), 1#2, 5L

Where clocks change. An entry with some hours only (`30 2 * * *`) goes by the wall: each of its times comes once
a day. One that the spring change leaves out comes at the change itself (02:30 in Paris: at 03:00), several such
together once; one that the autumn change repeats comes the first time. An entry for every hour (`*/15 * * * *`)
goes by elapsed time: it skips what does not exist and comes again in the hour that is repeated.

Always true: ticks are whole seconds in UTC and do not depend on where the look begins: `after` any moment between
two ticks is the later one. Walking is bounded, however long nobody looked.

Elsewhere: parsing (cronsim); zones (zoneinfo, tzdata); entries of handlers (handler.py); who fires (parent/cron.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from supervisor.errors import InvalidSchedule

__all__ = ["MAX_MISSED", "Cron", "Due", "Entry", "Timetable", "check_missed", "check_zone"]

MAX_MISSED: Final = 1000
MAX_EXPRESSION_BYTES: Final = 200
SKIP_AFTER_S: Final = 60.0
"""With missed="skip", a tick later than this is not fired any more."""

_FORM: Final = "minute hour day month weekday, optionally a second before them"
_HOURS: Final = 24
_MOST_COUNTED: Final = 10_000
_EPOCH: Final = datetime(2001, 1, 1)  # noqa: DTZ001 - only parsed with
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """One of several cron entries of a handler: `cron=[Cron("0 3 * * *", name="night"), Cron(...)]`.

    Args:
        expression: Five fields, or six with a second before them.
        tz: The name of its time zone.
        missed: How many of the ticks that nobody fired in time are fired later, the newest: "skip" none,
            "once" one, or a number up to 1,000. See docs/cron.md.
        payload: The arguments of its jobs.
        name: Its own name within the handler; never change it, what operators have set belongs to it.

    Raises:
        InvalidSchedule: with the field that cannot be used.
    """

    expression: str
    tz: str = field(default="UTC", kw_only=True)
    missed: Literal["skip", "once"] | int = field(default="once", kw_only=True)
    payload: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Timetable(self.expression, self.tz)
        check_missed(self.missed)


class Entry(NamedTuple):
    """A cron entry as a handler defines it, ready to be stored."""

    name: str  # the kind, or kind:name
    kind: str
    cron: str
    tz: str
    missed: int
    payload: str  # JSON text
    queue: str
    priority: int
    max_attempts: int
    max_crashes: int
    unique_key: str | None
    options: str = "{}"  # JSON text: what else its jobs are added with, as enqueue_many takes it


class Due(NamedTuple):
    """What a look at an entry found.

    Attributes:
        fire: The ticks to fire, oldest first.
        skipped: How many were due and are not fired; at least so many where `exact` is false.
        next: The first tick that is not due yet; None if there is none within fifty years.
        exact: Whether all that was missed was counted.
    """

    fire: tuple[datetime, ...]
    skipped: int
    next: datetime | None
    exact: bool = True


class Timetable:
    """The ticks of one expression in one time zone.

    Raises:
        InvalidSchedule: with `cron` or `tz` as the field.
    """

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        self.expression = _checked(expression)
        self._zone: tzinfo = check_zone(zone)
        self._six = self.expression if len(self.expression.split()) == 6 else f"0 {self.expression}"
        try:
            parsed = CronSim(self._six, _EPOCH)
            self._by_wall = len(parsed.hours) < _HOURS
            next(parsed)
        except (CronSimError, ValueError, AssertionError, RecursionError) as error:
            said = str(error).lower() or "cannot be read"
            raise InvalidSchedule("cron", f"is no cron expression: {said} ({_FORM})") from None
        except StopIteration:
            raise InvalidSchedule("cron", "never comes true: no such day within fifty years") from None

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than *moment* (aware), in UTC; None if there is none within fifty years."""
        return next(self.ticks(moment), None)

    def upcoming(self, moment: datetime, count: int) -> list[datetime]:
        """The next *count* ticks later than *moment*."""
        return list(islice(self.ticks(moment), count))

    def ticks(self, moment: datetime) -> Iterator[datetime]:
        """Every tick later than *moment*, in UTC, in order."""
        walk = self._by_the_wall if self._by_wall else self._by_elapsed_time
        try:
            yield from walk(moment.astimezone(UTC))
        except OverflowError:
            return  # the year 10000

    def _by_the_wall(self, last: datetime) -> Iterator[datetime]:
        for wall in CronSim(self._six, _plain(last.astimezone(self._zone))):
            tick = self._moment(wall)
            if tick > last:
                last = tick
                yield tick

    def _by_elapsed_time(self, last: datetime) -> Iterator[datetime]:
        """Between two changes of the offset, times on the wall are times; so from change to change."""
        offset: timedelta | None = self._offset(last)
        while offset is not None:
            here, offset = offset, None
            for wall in CronSim(self._six, _plain(last + here)):
                tick = wall.replace(tzinfo=UTC) - here
                if tick - last > 2 * _DAY:
                    # The offset may have changed and changed back on the way: none is due until a day before.
                    last = tick - _DAY
                    offset = self._offset(last)
                    break
                if self._offset(tick) != here:
                    change = self._change(last, tick)
                    last, offset = change - _SECOND, self._offset(change)
                    break
                last = tick
                yield tick

    def due(self, first: datetime, now: datetime, most: int) -> Due:
        """What of the ticks from *first*, itself one, to *now* is to be fired: the newest *most* of them.

        Args:
            most: 0: only a tick that is at most SKIP_AFTER_S late.
        """
        if first > now:
            return Due((), 0, first)
        keep = max(1, most)
        newest: list[datetime] = []
        count, following, exact = 0, None, True
        for tick in self.ticks(first - _SECOND):
            if tick > now:
                following = tick
                break
            count += 1
            newest.append(tick)
            if count == _MOST_COUNTED:
                exact = False
                break
            if len(newest) > 2 * keep:
                del newest[:-keep]
        if not exact:
            newest, following = self._newest(now, keep)
        newest = newest[-keep:]
        if most == 0:
            newest = [tick for tick in newest if (now - tick).total_seconds() <= SKIP_AFTER_S]
        return Due(tuple(newest), count - len(newest), following, exact)

    def _newest(self, now: datetime, keep: int) -> tuple[list[datetime], datetime | None]:
        """The newest *keep* ticks until *now*, where there are many more, and the one after."""
        back = timedelta(seconds=keep)
        while True:
            found: list[datetime] = []
            for tick in self.ticks(now - back):
                if tick > now:
                    if len(found) >= keep:
                        return found[-keep:], tick
                    break
                found.append(tick)
            back *= 2

    def _moment(self, wall: datetime) -> datetime:
        """When the clock on the wall first shows *wall*, or would have."""
        first = wall.replace(tzinfo=self._zone, fold=0)
        moment = first.astimezone(UTC)
        if moment.astimezone(self._zone).replace(tzinfo=None) == wall:
            return moment
        # In a gap: fold=1 reads it with the offset of after, which gives a moment before the change.
        return self._change(wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC), moment)

    def _change(self, early: datetime, late: datetime) -> datetime:
        """The first second whose offset is not that of *early*; at *late* it is not any more."""
        early, before = early.replace(microsecond=0), self._offset(early)
        while late - early > _SECOND:
            middle = early + (late - early) // (2 * _SECOND) * _SECOND
            if self._offset(middle) == before:
                early = middle
            else:
                late = middle
        return late

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta()


def _plain(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None, fold=0)


def check_zone(zone: object) -> tzinfo:
    """The time zone named *zone*.

    Raises:
        InvalidSchedule: it is unknown here; the field is `tz`.
    """
    if not isinstance(zone, str):
        raise InvalidSchedule("tz", f"must be the name of a time zone, not {type(zone).__name__}")
    if zone == "UTC":
        return UTC
    try:
        if zone != "localtime":  # that of one machine
            return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidSchedule("tz", f"{zone[:60]!r} is no time zone that is known here (names are as in Europe/Paris)")


def check_missed(missed: object) -> int:
    """How many missed ticks are fired at most: "skip" is 0, "once" is 1, a number is itself.

    Raises:
        InvalidSchedule: it is none of them; the field is `missed`.
    """
    if missed == "skip":
        return 0
    if missed == "once":
        return 1
    if isinstance(missed, bool) or not isinstance(missed, int) or not 1 <= missed <= MAX_MISSED:
        told = missed if isinstance(missed, int) else type(missed).__name__
        raise InvalidSchedule("missed", f'must be "skip", "once" or a number from 1 to {MAX_MISSED}, not {told}')
    return missed


def _checked(expression: object) -> str:
    if not isinstance(expression, str):
        raise InvalidSchedule("cron", f"must be a cron expression, not {type(expression).__name__}")
    if len(expression.encode("utf-8", "replace")) > MAX_EXPRESSION_BYTES:
        raise InvalidSchedule("cron", f"must be at most {MAX_EXPRESSION_BYTES} bytes long")
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise InvalidSchedule("cron", f"has {len(fields)} fields, must have 5 or 6: {_FORM}")
    return " ".join(fields).upper()
