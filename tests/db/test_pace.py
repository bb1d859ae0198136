"""Rates of queues in the database: by count of started_at no period has more starts than the rate allows.

    replayed   the rule at chosen times, thousands of starts in a second: pace_of, note_starts
    claimed    work() as workers send it, by the server's clock

Elsewhere: max_running and pauses (test_queues.py); services (tests/process/test_pace.py).
"""

import math
import random
import threading
import time

import psycopg
import pytest

from supervisor.db.jobs import Lane
from tests.support.database import Database
from tests.support.pace import most_in_a_period, starts_of
from tests.support.queue import Claim, Conn, Holder, enqueue, new_session_id, open_session, work
from tests.support.queues import count, limit, settings

Q = (Lane("q", 0),)
BOTH = (Lane("q", 0), Lane("other", 0))
T0 = 1_800_000_000_000_000
SLACK_S = 0.05


def rate(db: Database, most: int, period_s: float = 1.0, queue: str = "q") -> None:
    db.rows(
        "select supervisor.set_queue(%s, rate_limit => %s, rate_period => make_interval(secs => %s))",
        [queue, most, period_s],
    )


def in_a_minute(claim: Claim) -> bool:
    """Whether its rate of one per minute is what is to be waited for."""
    return claim.next_s is not None and 55 < claim.next_s < 60.1


class Clockwork:
    """The rule at chosen times, in microseconds; the starts that it let through."""

    def __init__(self, conn: Conn) -> None:
        self._conn = conn
        self.starts: list[int] = []

    def ask(self, at: int) -> tuple[int, int]:
        """How many may start at that time, and when more may."""
        row = self._conn.execute(
            "select free, (extract(epoch from again) * 1000000)::bigint from supervisor.pace_of('q', "
            " 'epoch'::timestamptz + %s * interval '1 microsecond')",
            [at],
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def start(self, at: int, many: int) -> None:
        self._conn.execute(
            "select supervisor.note_starts('q', %s, 'epoch'::timestamptz + %s * interval '1 microsecond')", [many, at]
        )
        self.starts += [at] * many


# -- orders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("set_queue('q', rate_limit => 0)", "rate_limit is 0, must be 1 to 1000000"),
        ("set_queue('q', rate_limit => -1)", "rate_limit is -1, must be 1 to 1000000"),
        ("set_queue('q', rate_limit => 1000001)", "rate_limit is 1000001, must be 1 to 1000000"),
        (
            "set_queue('q', rate_limit => 1, rate_period => '0.9 s')",
            "rate_period is 00:00:00.9, must be 1 second to 366 days",
        ),
        (
            "set_queue('q', rate_limit => 1, rate_period => '367 d')",
            "rate_period is 367 days, must be 1 second to 366 days",
        ),
        ("set_queue('q', rate_period => '1 min')", "rate_period needs rate_limit: the queue has no rate"),
        ("unset_queue('q', what => 'pause')", "what is 'pause', must be max_running or rate"),
    ],
)
def test_bad_rates_are_refused_before_any_write(db: Database, call: str, text: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        db.execute(f"select supervisor.{call}")
    assert refused.value.diag.message_primary == text
    assert settings(db) == []


def test_each_limit_is_set_and_taken_away_without_the_other(db: Database) -> None:
    def now() -> tuple[int | None, int | None, float | None, bool]:
        [one] = settings(db)
        return one.max_running, one.rate_limit, one.rate_period_s, one.counted

    rate(db, 5)
    assert now() == (None, 5, 1.0, False)
    limit(db, 3)
    assert now() == (3, 5, 1.0, True)
    db.rows("select supervisor.set_queue('q', rate_period => '1 min')")
    assert now() == (3, 5, 60.0, True)
    db.rows("select supervisor.set_queue('q', rate_limit => 6)")
    assert now() == (3, 6, 60.0, True)
    assert db.value("select supervisor.unset_queue('q', what => 'max_running')") is True
    assert now() == (None, 6, 60.0, False)
    assert db.value("select supervisor.unset_queue('q', what => 'max_running')") is False
    limit(db, 2)
    assert db.value("select supervisor.unset_queue('q', what => 'rate')") is True
    assert now() == (2, None, None, True)
    rate(db, 5)
    assert db.value("select supervisor.unset_queue('q')") is True
    assert settings(db) == []
    assert db.value("select count(*)::int from supervisor.pace") == 0


# -- the rule, replayed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "period_s"), [(1, 1), (3, 1), (10, 1), (50, 1), (51, 1), (400, 1), (3000, 10), (7, 3600)]
)
def test_under_saturation_no_period_has_more_and_each_has_nearly_all(db: Database, most: int, period_s: int) -> None:
    """Whoever starts comes late, by up to 20 ms, and takes as many as it may or fewer."""
    rate(db, most, period_s)
    clockwork, rng = Clockwork(db.connect()), random.Random(most)
    at, until = T0, T0 + int(2.5 * period_s * 1e6)
    step_s = period_s / most
    while at < until:
        free, again = clockwork.ask(at)
        if free:
            clockwork.start(at, rng.randint(math.ceil(free / 2), free))
            at += rng.randint(1, 500)
        else:
            assert again > at, "whoever waits for that time must not come again at once"
            at = again + rng.randint(0, 20_000)
    period = period_s * 1_000_000
    assert most_in_a_period(clockwork.starts, period) <= most
    whole = sum(T0 <= start < T0 + 2 * period for start in clockwork.starts) / 2
    assert whole >= 0.95 * most, f"{whole:g} of {most}"
    # Evenly: in no 200 ms more than what is due in them, what may be made up for, and one.
    assert most_in_a_period(clockwork.starts, 200_000) <= 0.2 / step_s + SLACK_S / step_s + 2


def test_after_a_pause_no_more_start_at_once_than_the_slack_allows(db: Database) -> None:
    rate(db, 100)
    clockwork = Clockwork(db.connect())
    assert clockwork.ask(T0)[0] == 6  # 50 ms are 5 of them, and the one that is due
    clockwork.start(T0, 6)
    assert clockwork.ask(T0)[0] == 0
    assert clockwork.ask(T0 + 3_600_000_000)[0] == 6


def test_starts_at_random_never_exceed_any_rate(db: Database) -> None:
    """Bursts, pauses, changes of the rate, a clock that is read before another's start and used after it."""
    conn, rng = db.connect(), random.Random(7)
    for most in (2, 60, 137):
        rate(db, most)
        clockwork, at = Clockwork(conn), T0 + most * 10_000_000_000
        for _ in range(600):
            at += rng.choice([0, 1, 300, 7_000, 30_000, rng.randint(0, 400_000)])
            read = at - rng.randint(0, 3_000)
            free, _ = clockwork.ask(read)
            if free:
                clockwork.start(read, rng.randint(1, free))
        assert len(clockwork.starts) > most
        assert most_in_a_period(clockwork.starts, 1_000_000) <= most


def test_a_clock_that_was_set_back_stops_no_queue(db: Database) -> None:
    """What lies in its future is forgotten; from then on all is as ever."""
    rate(db, 2)
    clockwork = Clockwork(db.connect())
    clockwork.start(T0, 2)
    before = T0 - 3_600_000_000
    assert clockwork.ask(before)[0] == 1
    clockwork.start(before, 1)
    free, again = clockwork.ask(before)
    assert free == 0
    assert again == pytest.approx(before + 450_000, abs=1)
    clockwork.start(again, 1)
    assert clockwork.ask(before + 999_999)[0] == 0
    assert clockwork.ask(before + 1_000_001)[0] == 1


def test_a_lower_rate_holds_at_once_and_a_higher_one_too(db: Database) -> None:
    rate(db, 10)
    clockwork = Clockwork(db.connect())
    at = T0
    for _ in range(10):
        clockwork.start(at, 1)
        at += 100_000
    rate(db, 4)
    assert clockwork.ask(at)[0] == 0, "ten of the last second count"
    rate(db, 40)
    assert clockwork.ask(at)[0] >= 1
    rate(db, 1, 3600.0)
    clockwork.start(at, 1)
    rate(db, 40)
    assert clockwork.ask(at + 1)[0] >= 1, "the turn of an hour's rate is not waited for"


# -- claims -------------------------------------------------------------------------------------


def test_a_claim_takes_what_the_rate_allows_and_says_when_to_look_again(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 5, queue="q")
    plain = enqueue(worker.conn, 5, queue="other")
    rate(db, 1, 60.0)
    claim = worker.claim(20, lanes=BOTH)
    assert (len(claim.jobs), set(plain) < set(claim.ids), claim.short) == (6, True, True)
    assert (claim.blocked, claim.left, claim.unread, set(claim.limited)) == (False, False, (Lane("q", 0),), {"q"})
    assert in_a_minute(claim)
    # Its end frees nothing: what counts is the start.
    worker.ack(*claim.jobs)
    again = Holder(db).claim(20, lanes=BOTH)
    assert (again.jobs, again.blocked, in_a_minute(again)) == ([], False, True)
    no_hands = worker.claim(20, lanes=BOTH, hands=0)
    assert (no_hands.jobs, no_hands.left, in_a_minute(no_hands)) == ([], False, True)


def test_an_empty_queue_writes_nothing_and_waits_for_nothing(db: Database) -> None:
    worker = Holder(db)
    rate(db, 1, 60.0)
    claim = worker.claim(5, lanes=Q)
    assert (claim.jobs, claim.next_s, claim.unread) == ([], None, ())
    assert db.value("select count(*)::int from supervisor.pace") == 0


def test_a_rate_and_places_hold_together(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 20, queue="q")
    rate(db, 1000)  # fifty and one at once
    limit(db, 2)
    first = worker.claim(20, lanes=Q)
    assert (len(first.jobs), first.blocked) == (2, True)
    rate(db, 1, 60.0)
    second = work(worker.conn, worker.session, 20, lanes=Q, acks=first.jobs)
    assert (second.jobs, second.blocked, in_a_minute(second)) == ([], False, True)
    db.rows("select supervisor.unset_queue('q', what => 'rate')")
    assert len(worker.claim(20, lanes=Q).jobs) == 2


def test_a_paused_queue_with_a_rate_gives_nothing(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 2, queue="q")
    rate(db, 1, 60.0)
    db.rows("select supervisor.pause_queue('q')")
    claim = worker.claim(5, lanes=Q)
    assert (claim.jobs, claim.next_s) == ([], None)
    db.rows("select supervisor.resume_queue('q')")
    assert len(worker.claim(5, lanes=Q).jobs) == 1


def test_a_claim_that_is_undone_has_started_nothing(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 1, queue="q")
    rate(db, 1, 60.0)
    with pytest.raises(ZeroDivisionError), worker.conn.transaction():
        assert len(worker.claim(5, lanes=Q).jobs) == 1
        raise ZeroDivisionError
    assert len(worker.claim(5, lanes=Q).jobs) == 1


def test_whoever_finds_another_claim_in_the_queue_looks_again_soon(db: Database) -> None:
    one, two = Holder(db), Holder(db)
    enqueue(one.conn, 9, queue="q")
    rate(db, 100)
    with one.conn.transaction():
        assert len(one.claim(1, lanes=Q).jobs) == 1
        claim = two.claim(5, lanes=Q)
        assert (claim.jobs, claim.blocked) == ([], False)
        assert (claim.next_s or 9.0) < 0.1


def test_an_old_snapshot_elsewhere_slows_no_claim_of_a_queue_with_a_rate(db: Database) -> None:
    """Each claim writes a row; the dead ones pile up behind the one that counts."""
    from tests.db.test_plans import buffers

    worker = Holder(db)
    enqueue(worker.conn, 900, queue="q")
    rate(db, 1_000_000)

    def pages() -> int:
        return max(buffers(worker.conn, lambda to: work(to, worker.session, 1, lanes=Q)) for _ in range(3))

    for _ in range(6):
        worker.claim(1, lanes=Q)
    before = pages()
    with db.connect(autocommit=False) as pin:
        pin.execute("select count(*) from supervisor.pace")
        for _ in range(600):
            worker.ack(*worker.claim(1, lanes=Q).jobs)
        assert pages() <= before + 15


@pytest.mark.pg("15", "18")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("most", [20, 200])
def test_eight_claimers_never_exceed_a_rate_and_reach_it(db: Database, most: int) -> None:
    """By started_at of all that was claimed in some seconds; nobody sleeps for longer than it was told."""
    seconds = 3.0
    with starts_of(db) as starts:
        admin = db.connect()
        rate(db, most)
        db.execute(
            "insert into supervisor.job (kind, queue) select 'k', 'q' from generate_series(1, %s)", [int(most * 10)]
        )
        until = time.monotonic() + seconds
        faults: list[BaseException] = []

        def claimer() -> None:
            try:
                conn = db.connect()
                session = new_session_id()
                open_session(conn, session)
                while time.monotonic() < until:
                    claim = work(conn, session, 5, lanes=Q)
                    work(conn, session, 0, acks=claim.jobs)
                    if not claim.jobs and claim.next_s is not None:
                        time.sleep(min(max(claim.next_s, 0.0), 1.0))
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=claimer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert faults == []
        times = starts.times()
        assert most_in_a_period(times, 1_000_000) <= most
        assert len(times) >= 0.95 * most * (seconds - 0.2), f"{len(times)} starts of {most * seconds:g}"
        assert admin.execute("select count(*) from supervisor.job where lease is not null").fetchone() == (0,)


def test_counting_what_runs_does_not_hold_up_a_queue_that_has_a_rate_only(db: Database) -> None:
    worker = Holder(db)
    enqueue(worker.conn, 1, queue="q")
    rate(db, 5)
    assert count(db) == []
    assert len(worker.claim(5, lanes=Q).jobs) == 1
