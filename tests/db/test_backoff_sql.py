"""The delay before a job's next run, where numbers are largest, smallest and not numbers at all."""

import math
from typing import Any

import pytest

from supervisor.backoff import Backoff
from tests.support.database import Database
from tests.support.queue import Holder, enqueue, stored


def delays(db: Database, attempts: int, base: float, cap: float, times: int = 300) -> tuple[float, float]:
    """The least and the most of many, in seconds."""
    [(least, most)] = db.rows(
        "select extract(epoch from min(d))::float8, extract(epoch from max(d))::float8"
        " from (select supervisor.backoff(%s, %s, %s) as d from generate_series(1, %s)) x",
        [attempts, base, cap, times],
    )
    return least, most


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("attempts", [15, 47, 400, 4000, 2**30])
def test_a_job_that_failed_often_waits_for_the_cap_and_is_kept(db: Database, attempts: int) -> None:
    """B36: limit of attempts 5,000, cap 1 h: queued again, within the cap and its jitter, the error recorded."""
    [job] = enqueue(db.connect(), max_attempts=min(2**31 - 1, max(5000, attempts)))
    db.execute("update supervisor.job set attempts = %s", [attempts - 2])
    holder = Holder(db)
    status, due_in_s = holder.settle(holder.claim().jobs, "failed", error="E: e", base_s=5.0, cap_s=3600.0)[job]
    assert status == "queued"
    assert due_in_s is not None
    assert 1800 - 1 <= due_in_s <= 5400
    found = stored(db, job)
    assert (found["attempts"], found["last_error"]) == (attempts - 1, "E: e")
    assert db.value("select run_at between now() and now() + interval '90 min' from supervisor.job")


@pytest.mark.parametrize(
    ("base", "cap", "most"),
    [
        (0.0, 3600.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1e308, 3600.0, 3600.0), (math.inf, 3600.0, 3600.0),
        (math.nan, 3600.0, 3600.0), (-5.0, 3600.0, 0.0), (1.0, -5.0, 0.0), (1e-300, 60.0, 60.0),
        (1e308, 1e308, 2592000.0), (math.inf, math.inf, 2592000.0), (math.nan, math.nan, 2592000.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attempts", [1, 1000])
def test_no_base_and_no_cap_makes_a_delay_that_cannot_be_stored(
    db: Database, base: float, cap: float, most: float, attempts: int
) -> None:
    """B36. A base of 1e308 overflowed once: the multiplication came before the cap."""
    least, longest = delays(db, attempts, base, cap)
    assert 0 <= least <= longest <= 1.5 * most


def test_the_delay_is_spread_over_half_to_one_and_a_half_of_what_the_library_says(db: Database) -> None:
    for backoff in (Backoff(), Backoff(0.02, 10.0), Backoff(30.0, 86400.0)):
        for attempts in (1, 2, 5, 9, 100):
            least, most = delays(db, attempts, backoff.base, backoff.cap, 1000)
            middle = backoff.upper(attempts)
            # 1,000 draws come within a twentieth of both ends, but for one time in 10^21.
            assert 0.5 * middle * 0.999 <= least <= 0.55 * middle
            assert 1.45 * middle <= most <= 1.5 * middle * 1.001


@pytest.mark.parametrize(
    ("event", "delay"),
    [
        (event, delay)
        for event in ("failed", "snoozed")
        for delay in (-1.0, -1e300, 0.0, 1e300, math.inf, math.nan, 1e-9)
    ],
)
def test_a_delay_of_any_size_leaves_the_job_queued_and_its_batch_settled(
    db: Database, event: str, delay: float
) -> None:
    """B36: what a handler's own function returned. One such number refused the whole batch once."""
    job, mate = enqueue(db.connect(), 2)
    holder = Holder(db)
    jobs = holder.claim(2).jobs
    answer: dict[int, Any] = holder.settle(jobs, event, delay_s=delay)
    assert [answer[one][0] for one in (job, mate)] == ["queued", "queued"]
    now_or_later = "select bool_and(run_at between now() - interval '1 min' and now() + interval '10 years')"
    assert db.value(f"{now_or_later} from supervisor.job") is True
    assert db.value("select bool_and(run_at >= created_at) from supervisor.job") is True


def test_an_unknown_kind_comes_back_ever_more_rarely_until_its_limit(db: Database) -> None:
    """A release in between (a deploy) does not start its time anew."""
    [job] = enqueue(db.connect())
    for since, least, most in (("0 s", 0.4, 1.6), ("100 s", 49, 151), ("1 day", 149, 451)):
        db.execute(
            "update supervisor.job set run_at = now() - interval '1 s',"
            " unknown_since = clock_timestamp() - %s::interval",
            [since],
        )
        holder = Holder(db)
        holder.settle(holder.claim().jobs, "released")
        answer = holder.settle(holder.claim().jobs, "unknown", limit_s=172800)
        due_in_s = answer[job][1]
        assert due_in_s is not None
        assert least <= due_in_s <= most
    db.execute("update supervisor.job set run_at = now() - interval '1 s'")
    assert holder.settle(holder.claim().jobs, "unknown", error="no handler", limit_s=80000)[job][0] == "dead"
    assert (stored(db, job)["reason"], stored(db, job)["attempts"]) == ("unknown_kind", 0)
