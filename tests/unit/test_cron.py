"""Cron entries by a fake clock: what a listing says comes, comes; where clocks change, exactly once.

The brute force below walks through time second by second or minute by minute and reads the wall clock: it
shares nothing with the code but the zone data.
"""

import importlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from supervisor import Cron, handler
from supervisor.cron import MAX_MISSED, SKIP_AFTER_S, Due, Timetable, check_missed
from supervisor.errors import InvalidHandler, InvalidSchedule
from supervisor.schedules import check_order, missed_word, read_missed

handler_module = importlib.import_module("supervisor.handler")

PARIS, LORD_HOWE, SYDNEY, CAIRO = "Europe/Paris", "Australia/Lord_Howe", "Australia/Sydney", "Africa/Cairo"
HAVANA, NEW_YORK, SANTIAGO, APIA = "America/Havana", "America/New_York", "America/Santiago", "Pacific/Apia"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_module, "_registry", {})


def at(text: str) -> datetime:
    """A moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(cron: str, zone: str, first: str, days: int) -> list[str]:
    """The ticks of some local days, each with its offset."""
    there = ZoneInfo(zone)
    start = datetime.fromisoformat(first).replace(tzinfo=there)
    end = (start.replace(tzinfo=None) + timedelta(days=days)).replace(tzinfo=there)
    ticks = Timetable(cron, zone).ticks(start.astimezone(UTC) - timedelta(seconds=1))
    found: list[str] = []
    for tick in ticks:
        if tick >= end.astimezone(UTC):
            return found
        found.append(tick.astimezone(there).isoformat(timespec="minutes"))
    raise AssertionError("ticks ended")


# -- where clocks change ---------------------------------------------------------------------------


def test_a_time_that_the_spring_change_leaves_out_comes_at_the_change() -> None:
    assert local("30 2 * * *", PARIS, "2026-03-28", 3) == [
        "2026-03-28T02:30+01:00",
        "2026-03-29T03:00+02:00",  # 02:30 does not exist: the moment at which clocks go from 2 to 3
        "2026-03-30T02:30+02:00",
    ]
    assert local("30 2 * * *", SYDNEY, "2026-10-03", 3) == [
        "2026-10-03T02:30+10:00",
        "2026-10-04T03:00+11:00",
        "2026-10-05T02:30+11:00",
    ]


def test_a_half_hour_change_leaves_out_half_an_hour() -> None:
    assert local("15 2 * * *", LORD_HOWE, "2026-10-03", 3) == [
        "2026-10-03T02:15+10:30",
        "2026-10-04T02:30+11:00",
        "2026-10-05T02:15+11:00",
    ]
    assert local("45 1 * * *", LORD_HOWE, "2026-04-04", 3) == [
        "2026-04-04T01:45+11:00",
        "2026-04-05T01:45+11:00",  # shown twice that night; the first one counts
        "2026-04-06T01:45+10:30",
    ]


def test_a_time_in_the_repeated_autumn_hour_comes_once() -> None:
    assert local("30 2 * * *", PARIS, "2026-10-24", 3) == [
        "2026-10-24T02:30+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]
    assert local("30 1 * * *", NEW_YORK, "2026-11-01", 1) == ["2026-11-01T01:30-04:00"]
    assert local("30 2 * * *", SYDNEY, "2026-04-05", 1) == ["2026-04-05T02:30+11:00"]


def test_midnight_that_does_not_exist_and_midnight_that_comes_twice() -> None:
    assert local("0 0 * * *", CAIRO, "2026-04-24T01:00", 1) == ["2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00"]
    assert local("0 0 * * *", SANTIAGO, "2026-09-06T01:00", 1)[0] == "2026-09-06T01:00-03:00"
    assert local("0 0 * * *", HAVANA, "2026-11-01", 1) == ["2026-11-01T00:00-04:00"]


def test_a_whole_day_that_a_zone_left_out() -> None:
    """Samoa had no 30 December 2011."""
    assert local("0 12 * * *", APIA, "2011-12-29", 3) == [
        "2011-12-29T12:00-10:00",
        "2011-12-31T00:00+14:00",
        "2011-12-31T12:00+14:00",
    ]


def test_several_times_in_the_gap_come_once_together() -> None:
    assert local("*/10 2 * * *", PARIS, "2026-03-29", 1) == ["2026-03-29T03:00+02:00"]
    assert len(local("*/10 2 * * *", PARIS, "2026-10-25", 1)) == 6
    assert local("0 */2 * * *", PARIS, "2026-03-29", 1)[:3] == [
        "2026-03-29T00:00+01:00", "2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00",
    ]  # fmt: skip


def test_entries_of_every_hour_go_by_elapsed_time() -> None:
    assert len(local("*/15 * * * *", PARIS, "2026-03-29", 1)) == 23 * 4
    assert len(local("*/15 * * * *", PARIS, "2026-10-25", 1)) == 25 * 4
    ticks = Timetable("*/15 * * * *", PARIS).upcoming(at("2026-10-24T20:00"), 60)
    assert {b - a for a, b in pairwise(ticks)} == {timedelta(minutes=15)}


@pytest.mark.parametrize(
    ("zone", "first", "days"),
    [
        (PARIS, "2026-03-28", 3), (PARIS, "2026-10-24", 3), (SYDNEY, "2026-04-04", 3), (SYDNEY, "2026-10-03", 3),
        (LORD_HOWE, "2026-04-04", 3), (LORD_HOWE, "2026-10-03", 3), (CAIRO, "2026-04-23", 3), (HAVANA, "2026-10-31", 3),
        (HAVANA, "2026-03-07", 3), ("UTC", "2026-02-27", 3), ("Asia/Kathmandu", "2026-02-27", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "cron", ["* * * * *", "7 * * * *", "*/20 * * * 0", "30 0-23 * * *", "30 2 * * *", "5,35 1-2 * * *"]
)
def test_ticks_are_those_that_a_look_at_each_minute_finds(zone: str, first: str, days: int, cron: str) -> None:
    """By elapsed time: each minute whose wall clock fits. By the wall: each that fits, at its first moment."""
    there = ZoneInfo(zone)
    start = datetime.fromisoformat(first).replace(tzinfo=there).astimezone(UTC)
    end = start + timedelta(days=days)
    minute, hour, *_, weekday = cron.split()
    by_wall = hour in ("2", "1-2")

    def fits(wall: datetime) -> bool:
        minutes = {"*": range(60), "7": [7], "*/20": [0, 20, 40], "30": [30], "5,35": [5, 35]}[minute]
        hours = {"*": range(24), "0-23": range(24), "2": [2], "1-2": [1, 2]}[hour]
        return wall.minute in minutes and wall.hour in hours and (weekday == "*" or wall.isoweekday() == 7)

    expected = []
    moment, seen = start, set()
    shown = start.astimezone(there).replace(tzinfo=None) - timedelta(minutes=1)
    while moment < end:
        wall = moment.astimezone(there).replace(tzinfo=None)
        if not by_wall:
            if fits(wall):
                expected.append(moment)
        else:
            passed = [
                shown + timedelta(minutes=n + 1) for n in range(max(0, int((wall - shown).total_seconds() // 60)))
            ]
            if any(fits(one) and one not in seen for one in passed):
                expected.append(moment)
            seen.update(passed)
            shown = max(shown, wall)
        moment += timedelta(minutes=1)
    table = Timetable(cron, zone)
    found = []
    for tick in table.ticks(start - timedelta(seconds=1)):
        if tick >= end:
            break
        found.append(tick)
    assert found == expected
    # It does not matter from where one looks.
    for tick, following in pairwise(found):
        between = tick + (following - tick) / 3
        assert table.after(tick) == table.after(between) == following


def test_an_hour_that_is_repeated_at_midnight_after_months_without_a_tick() -> None:
    assert local("30 * 1 11 *", HAVANA, "2026-01-01", 305)[:3] == [
        "2026-11-01T00:30-04:00", "2026-11-01T00:30-05:00", "2026-11-01T01:30-05:00",
    ]  # fmt: skip


def test_entries_with_seconds() -> None:
    ticks = Timetable("*/20 * * * * *").upcoming(at("2026-01-01T00:00:05.5"), 3)
    assert ticks == [at("2026-01-01T00:00:20"), at("2026-01-01T00:00:40"), at("2026-01-01T00:01:00")]
    assert Timetable("15 30 2 * * *", PARIS).after(at("2026-03-29T00:00")) == at("2026-03-29T01:00")


def test_last_days_and_leap_days() -> None:
    assert Timetable("0 0 L * *").upcoming(at("2028-02-01"), 2) == [at("2028-02-29"), at("2028-03-31")]
    assert Timetable("0 0 29 2 *").after(at("2026-01-01")) == at("2028-02-29")
    assert Timetable("0 0 1 jan mon").after(at("2026-01-02")) == at("2026-01-05")  # either day, as cron has it


# -- what was missed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "late_s", "fired", "skipped"),
    [
        (0, 0.0, 1, 0), (0, SKIP_AFTER_S, 1, 0), (0, SKIP_AFTER_S + 1, 0, 1),
        (1, 0.0, 1, 0), (1, 3599.0, 1, 0), (1, 3600.0, 1, 1), (1, 36000.0, 1, 10),
        (3, 0.0, 1, 0), (3, 7300.0, 3, 0), (3, 36000.0, 3, 8),
    ],
)  # fmt: skip
def test_of_missed_ticks_the_newest_are_fired(most: int, late_s: float, fired: int, skipped: int) -> None:
    first = at("2026-01-01T03:00")
    now = first + timedelta(seconds=late_s)
    due = Timetable("0 * * * *").due(first, now, most)
    assert (len(due.fire), due.skipped) == (fired, skipped)
    assert due.next is not None
    assert due.next > now
    newest = due.next - timedelta(hours=1)
    assert list(due.fire) == [newest - timedelta(hours=n) for n in range(fired)][::-1]


def test_ten_minutes_of_an_entry_of_each_second() -> None:
    """B32: with the default one late run, then the normal rhythm; with n at most n; skip none but the one just due."""
    first, now = at("2026-01-01T00:00"), at("2026-01-01T00:10:00.5")
    table = Timetable("* * * * * *")
    following = at("2026-01-01T00:10:01")
    assert table.due(first, now, 1) == Due((at("2026-01-01T00:10:00"),), 600, following)
    assert table.due(first, now, 0) == Due((at("2026-01-01T00:10:00"),), 600, following)
    many = table.due(first, now, 25)
    assert (len(many.fire), many.skipped, many.next) == (25, 576, following)


def test_years_of_seconds_cost_no_more_than_some_thousand_steps() -> None:
    """Counted by steps, not by a clock: the walk stops counting, and still finds the newest."""
    table = Timetable("* * * * * *", PARIS)
    now = at("2026-06-01T12:00:00.25")
    due = table.due(at("1996-01-01"), now, MAX_MISSED)
    assert not due.exact
    assert len(due.fire) == MAX_MISSED
    assert due.fire[-1] == at("2026-06-01T12:00")
    assert due.next == at("2026-06-01T12:00:01")
    assert due.skipped + len(due.fire) == 10_000


def test_nothing_is_due_before_its_time() -> None:
    first = at("2026-01-01T03:00")
    assert Timetable("0 3 * * *").due(first, first - timedelta(microseconds=1), 1) == Due((), 0, first)


# -- what is refused -------------------------------------------------------------------------------

BAD_CRON = [
    "", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8",
    "*/0 * * * *", "5-1 * * * *", "a * * * *", "@daily", "0 0 30 2 *", "0 0 31 2,4,6 *", "* * * * 1#6", "-1 * * * *",
    "1,,2 * * * *", "* * * * *; drop table job", "0 0 31 4 *", "\x00 * * * *", "1" * 300 + " * * * *", "² * * * *",
]  # fmt: skip


@pytest.mark.parametrize("cron", [*BAD_CRON, None, 5])
def test_bad_expressions_are_refused(cron: Any) -> None:
    with pytest.raises(InvalidSchedule, match="schedule refused: cron: ") as caught:
        Timetable(cron)
    assert caught.value.field == "cron"


@pytest.mark.parametrize(
    "zone", ["", "Mars/Phobos", "europe/paris", "../etc/passwd", "Europe", "localtime", "\x00", 3, None]
)
def test_unknown_zones_are_refused(zone: Any) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Timetable("* * * * *", zone)
    assert caught.value.field == "tz"


@pytest.mark.parametrize("missed", ["all", "", 0, -1, MAX_MISSED + 1, 1.5, True, None])
def test_missed_of_the_wrong_kind_is_refused(missed: Any) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        check_missed(missed)
    assert caught.value.field == "missed"


def test_skip_once_and_numbers() -> None:
    assert [check_missed(one) for one in ("skip", "once", 1, MAX_MISSED)] == [0, 1, 1, MAX_MISSED]


# -- declared with a handler -----------------------------------------------------------------------


def test_an_entry_has_what_its_handler_has() -> None:
    @handler("c.one", queue="q", priority=3, max_attempts=4, cron=" 0  3 * * *", tz=PARIS, missed=7, payload={"n": 1})
    async def one(n: int) -> None: ...

    [entry] = one.entries
    assert entry._asdict() == {
        "name": "c.one", "kind": "c.one", "cron": " 0  3 * * *", "tz": PARIS, "missed": 7, "payload": '{"n":1}',
        "queue": "q", "priority": 3, "max_attempts": 4, "max_crashes": 3, "unique_key": None, "options": "{}",
    }  # fmt: skip


def test_several_entries_have_names_of_their_own() -> None:
    @handler("c.two", cron=[Cron("0 3 * * *", name="night"), Cron("0 12 * * *", tz=PARIS, missed="skip", name="noon")])
    def two() -> None: ...

    assert [(one.name, one.tz, one.missed) for one in two.entries] == [
        ("c.two:night", "UTC", 1),
        ("c.two:noon", PARIS, 0),
    ]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cron": "61 * * * *"}, "cron: "),
        ({"cron": "0 0 30 2 *"}, "cron: "),
        ({"cron": "* * * * *", "tz": "Mars/Phobos"}, "tz: "),
        ({"cron": "* * * * *", "missed": "all"}, "missed: "),
        ({"cron": "* * * * *", "missed": 0}, "missed: "),
        ({"cron": "* * * * *", "payload": {"wrong": 1}}, "payload.wrong: "),
        ({"cron": "* * * * *", "payload": {"n": "x"}}, "payload.n: "),
        ({"cron": "* * * * *", "payload": {"n": 1, "text": "x" * 20_000}}, "payload: "),
        ({"cron": [Cron("* * * * *"), Cron("0 * * * *")]}, "name: "),
        ({"cron": [Cron("* * * * *", name="a"), Cron("0 * * * *", name="a")]}, "name: "),
        ({"cron": [Cron("* * * * *", name="")]}, "name: "),
        ({"cron": [Cron("* * * * *")], "tz": "UTC"}, "tz: "),
        ({"cron": ["* * * * *"]}, "cron: "),
        ({"cron": 5}, "cron: "),
        ({"tz": "UTC"}, "tz: cron is missing"),
        ({"missed": "skip", "payload": {}}, "missed, payload: cron is missing"),
        ({"cron": [Cron("* * * * *", name=str(n)) for n in range(101)]}, "cron: "),
    ],
)
def test_a_handler_with_a_bad_entry_is_refused_with_the_field_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidHandler) as caught:

        @handler("c.bad", **options)
        async def bad(n: int = 0, text: str = "") -> None: ...

    assert named in caught.value.reason


def test_parameters_without_a_default_must_be_given() -> None:
    with pytest.raises(InvalidHandler, match=r"payload\.n"):

        @handler("c.bad", cron="* * * * *")
        async def bad(n: int) -> None: ...


def test_two_entries_of_one_name_are_refused() -> None:
    @handler("c:a", cron="* * * * *")
    def one() -> None: ...

    with pytest.raises(InvalidHandler, match="has the name of one of"):

        @handler("c", cron=Cron("* * * * *", name="a"))
        def two() -> None: ...


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 301}, "name"),
        ({"name": "k\x00"}, "name"),
        ({"name": "k", "by": "x" * 201}, "by"),
        ({"name": "k", "cron": "0 0 30 2 *"}, "cron"),
        ({"name": "k", "tz": "Mars/Phobos"}, "tz"),
        ({"name": "k", "missed": 1001}, "missed"),
        ({"name": "k", "missed": -1}, "missed"),
    ],
)
def test_bad_orders_are_refused_with_the_field_named(order: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        check_order(**order)
    assert caught.value.field == field


def test_policies_are_read_as_they_are_written() -> None:
    assert [missed_word(read_missed(text)) for text in ("skip", "once", "1", "25")] == ["skip", "once", "once", "25"]
    for text in ("0", "1001", "-1", "all", "", "²", "9" * 30):
        with pytest.raises(InvalidSchedule, match="missed"):
            read_missed(text)
