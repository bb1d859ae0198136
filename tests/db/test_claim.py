"""Claims: never more than asked, in order, each job once, nothing lost behind a mark, and always a HOT update."""

import asyncio
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import supervisor.db.tend as tend
from supervisor.db.jobs import Answer, ClaimedJob, Lane, Mark
from supervisor.db.statements import statement
from supervisor.worker.marks import LOOKBACK_S, Marks
from tests.support.database import Database
from tests.support.queue import (
    Claim,
    Held,
    Holder,
    close_session,
    enqueue,
    expire,
    move_session,
    new_session_id,
    reap,
    renew,
    stored,
    sweep,
    work,
)
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

A, B = Lane("a", 0), Lane("b", 0)
STATISTICS = ("absent", "fresh", "misleading")


def fill(db: Database, count: int, queue: str = "default", priority: int = 0) -> None:
    db.execute(
        "insert into supervisor.job (kind, queue, priority, run_at)"
        " select 'k', %s, %s, clock_timestamp() - interval '1 h' from generate_series(1, %s)",
        [queue, priority, count],
    )


def mark_text(db: Database, time: str, *params: object) -> str:
    """An SQL timestamptz as the text of a mark."""
    return str(db.value(f"""select to_char(({time}) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"')""", params))


def set_statistics(db: Database, state: str, fill_it: Any) -> None:
    """Fill the job table so that its statistics are absent, fresh, or those of the time when it was empty."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    if state == "misleading":
        db.execute("vacuum analyze supervisor.job")
    fill_it()
    if state == "fresh":
        db.execute("analyze supervisor.job")


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("planner", ["as it is", "no hash, merge, material"])
@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_claim_never_takes_more_than_its_limit(db: Database, statistics: str, planner: str) -> None:
    """B12: 5,000 jobs, limit 7, 4 claimers, 200 rounds each at full size."""
    rounds = 200 if FULL else 60
    if planner != "as it is":
        for name in ("enable_hashjoin", "enable_mergejoin", "enable_material"):
            db.execute(f"alter role current_user in database {db.name} set {name} = off")
    set_statistics(db, statistics, lambda: fill(db, 5000))
    sizes: Counter[int] = Counter()
    lock = threading.Lock()

    def claimer(_: int) -> None:
        holder = Holder(db)
        held: list[Held] = []
        for _ in range(rounds):
            claim = holder.claim(7, acks=held[:5])
            holder.settle(held[5:], "released")
            held = claim.jobs
            with lock:
                sizes[len(held)] += 1
            assert holder.conn.execute(
                "select count(*)::int from supervisor.job where lease = %s", [holder.session]
            ).fetchone() == (len(held),)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(claimer, range(4)))
    assert max(sizes) == 7
    assert sizes[7] > 3 * rounds  # most were full: the limit was what bounded them


@pytest.mark.pg("15", "16", "18")
def test_eight_claimers_of_a_thousand_jobs_claim_each_exactly_once(db: Database) -> None:
    fill(db, 1000)
    claimed: list[int] = []
    lock = threading.Lock()
    start = threading.Barrier(8)

    def claimer(_: int) -> None:
        holder = Holder(db)
        start.wait()
        marks: dict[Lane, Mark] = {}
        held: list[Held] = []
        while True:
            claim = holder.claim(5, acks=held, marks=marks)
            assert claim.lost == []
            marks.update(claim.marks)
            held = claim.jobs
            with lock:
                claimed.extend(claim.ids)
            if not held:
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claimer, range(8)))
    # A claim that came back empty while others held the last rows may have ended early; nothing was lost.
    assert sorted(claimed) == sorted(row[0] for row in db.rows("select id from supervisor.history"))
    assert len(claimed) == len(set(claimed)) == 1000
    assert db.value("select count(*)::int from supervisor.job") == 0


def test_a_limit_of_zero_claims_nothing_and_no_lanes_claim_nothing(db: Database) -> None:
    fill(db, 1)
    holder = Holder(db)
    assert holder.claim(0).jobs == []
    assert holder.claim(5, lanes=()).jobs == []
    assert len(holder.claim(5).jobs) == 1


# -- order --------------------------------------------------------------------------------------


def test_jobs_of_a_lane_come_by_due_time_then_by_id(db: Database) -> None:
    conn = db.connect()
    for seconds in (3, 1, 2, 1):
        conn.execute(
            "insert into supervisor.job (kind, run_at) values ('k', timestamptz '2026-01-01 00:00:00+00'"
            " + make_interval(secs => %s))",
            [seconds],
        )
    first, second, third, fourth = (row[0] for row in db.rows("select id from supervisor.job order by id"))
    holder = Holder(db)
    assert holder.claim(3).ids == [second, fourth, third]
    assert holder.claim(3).ids == [first]


def test_lanes_are_emptied_in_the_order_asked_and_lower_priorities_first(db: Database) -> None:
    conn = db.connect()
    lanes = [Lane("b", -5), Lane("b", 3), Lane("a", 0)]
    by_lane = {lane: enqueue(conn, 3, queue=lane.queue, priority=lane.priority) for lane in reversed(lanes)}
    unserved = enqueue(conn, 1, queue="c")
    holder = Holder(db)
    claim = holder.claim(5, lanes=lanes)
    assert claim.ids == by_lane[lanes[0]] + by_lane[lanes[1]][:2]
    assert not claim.short
    claim = holder.claim(9, lanes=lanes)
    assert claim.ids == by_lane[lanes[1]][2:] + by_lane[lanes[2]]
    assert claim.short
    assert stored(db, unserved[0])["status"] == "queued"


def test_a_job_is_not_claimed_before_it_is_due_and_the_answer_says_when(db: Database) -> None:
    conn = db.connect()
    enqueue(conn, delay="1 hour")
    enqueue(conn, delay="2 hours")
    claim = Holder(db).claim(5)
    assert claim.jobs == []
    assert claim.next_s is not None
    assert 3500 < claim.next_s <= 3600


# -- marks --------------------------------------------------------------------------------------


def test_a_mark_never_passes_a_row_that_was_visible_and_is_still_queued(db: Database) -> None:
    """Two claimers with marks of their own; one rolls its claim back."""
    fill(db, 20)
    one, other = Holder(db), Holder(db)
    other.conn.autocommit = False
    taken = other.claim(5).ids
    claim = one.claim(5)
    assert set(claim.ids).isdisjoint(taken)
    other.conn.rollback()
    # Locked by another, but visible as queued: the mark lies at or below it.
    assert one.claim(5, marks=claim.marks).ids == taken


@pytest.mark.parametrize("looks_back", [True, False])
def test_a_row_of_a_late_commit_is_seen_by_a_look_back_or_a_mark_set_back(db: Database, looks_back: bool) -> None:
    late = db.connect(autocommit=False)
    [behind] = enqueue(late)
    [ahead] = enqueue(db.connect())
    holder = Holder(db)
    first = holder.claim(1)
    assert first.ids == [ahead]
    late.commit()
    if looks_back:
        assert holder.claim(1, marks=first.marks, lookback_s=60).ids == [behind]
        return
    assert holder.claim(1, marks=first.marks).ids == []
    at = mark_text(db, "(select run_at from supervisor.job where id = %s)", behind)
    assert holder.claim(1, marks={Lane("default", 0): Mark(at, 0)}).ids == [behind]


def test_a_released_job_keeps_its_place_and_a_mark_set_back_by_its_wake_finds_it(db: Database) -> None:
    fill(db, 3)
    holder, other = Holder(db), Holder(db)
    first = holder.claim(1)
    second = other.claim(1)
    assert first.jobs[0].id < second.jobs[0].id
    db.execute("insert into supervisor.waiting values (1)")
    listener = db.connect()
    listener.execute("listen supervisor")
    assert holder.settle(first.jobs, "released")[first.jobs[0].id][0] == "queued"
    [notice] = listener.notifies(timeout=10, stop_after=1)
    at = json.loads(notice.payload)["at"]
    assert other.claim(1, marks=second.marks).ids != first.ids
    epoch = mark_text(db, "to_timestamp(%s)", at)
    assert other.claim(1, marks={Lane("default", 0): Mark(epoch, 0)}).ids == first.ids


def test_marks_ahead_of_the_clock_hide_nothing_that_is_looked_for(db: Database) -> None:
    """B33: the database's clock was set back: marks made before lie in its future."""
    future = mark_text(db, "now() + make_interval(hours => %s)", 1)
    holder = Holder(db)
    [job] = enqueue(db.connect())
    claim = holder.claim(1, marks={Lane("default", 0): Mark(future, 5)}, lookback_s=LOOKBACK_S * 40)
    assert claim.ids == [job]
    assert claim.marks[Lane("default", 0)] < Mark(future, 5)


def test_a_claim_that_waited_for_its_acks_does_not_call_what_came_meanwhile_seen(db: Database) -> None:
    """The clock that marks are made from is the one the lanes were read by.

    It was the clock at the end once: what was enqueued while the acks waited for a lock lay below the mark.
    """
    holder, marks = Holder(db), Marks({"*": 1})
    marks.publish([(Lane("default", 0), Mark())])
    fill(db, 1)
    [held] = holder.claim(1).jobs
    blocker = db.connect(autocommit=False)
    blocker.execute("select from supervisor.job where id = %s for update", [held.id])
    lanes, from_marks, lookback_s = marks.plan()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            holder.claim, 5, acks=[held], lanes=lanes, marks=dict(zip(lanes, from_marks, strict=True)),
            lookback_s=lookback_s,
        )  # fmt: skip
        db.wait_for(
            "select wait_event_type from pg_stat_activity where pid = %s", "Lock", params=[holder.conn.info.backend_pid]
        )
        [meanwhile] = enqueue(db.connect())
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2 * LOOKBACK_S, 10, "the look-back is behind it")
        blocker.rollback()
        claim = waiting.result(10)
    marks.learn(lanes, _answer(claim, lanes), lookback_s)
    seen = claim.ids
    if not seen:
        seen = holder.claim(1, marks=dict(zip(lanes, marks.plan()[1], strict=True))).ids
    assert seen == [meanwhile]


def _answer(claim: Claim, lanes: list[Lane]) -> Answer:
    by_position = {lanes.index(lane): mark for lane, mark in claim.marks.items()}
    jobs = [
        ClaimedJob(
            job.id, job.token, job.kind, job.queue, job.priority, job.payload, job.headers, job.attempt, 20, 0, False,
            None, job.run_at.timestamp(), job.run_at.timestamp(), job.tid,
        )
        for job in claim.jobs
    ]  # fmt: skip
    return Answer(jobs, by_position, claim.acked, claim.lost, claim.short, claim.next_s, claim.now)


@pytest.mark.parametrize(
    "way", ["late commit", "rolled-back claim", "rolled-back claim, full claim", "raw insert in the past"]
)
def test_a_worker_that_nobody_tells_finds_what_appeared_below_its_marks(db: Database, way: str) -> None:
    """Within the stated second: it starts again from the published marks."""
    lane = Lane("default", 0)
    holder, other = Holder(db), Holder(db)
    other.conn.autocommit = False
    marks = Marks({"*": 1})
    marks.publish([(lane, Mark())])

    def claim(limit: int = 5) -> list[int]:
        lanes, from_marks, lookback_s = marks.plan()
        found = holder.claim(limit, lanes=lanes, marks=dict(zip(lanes, from_marks, strict=True)), lookback_s=lookback_s)
        marks.learn(lanes, _answer(found, lanes), lookback_s)
        return found.ids

    if way == "late commit":
        hidden = enqueue(other.conn)
    elif way.startswith("rolled-back claim"):
        fill(db, 1)
        hidden = other.claim(1).ids
    enqueue(db.connect())
    assert len(claim(1 if way.endswith("full claim") else 5)) == 1
    assert claim() == []
    if way == "late commit":
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2 * LOOKBACK_S, 10, "the look-back is behind it")
        assert claim() == []
        other.conn.commit()
    elif way.startswith("rolled-back claim"):
        other.conn.rollback()
    else:
        fill(db, 1)
        hidden = [db.value("select max(id) from supervisor.job")]
    began = time.monotonic()
    assert wait_until(claim, 10, "the worker found it") == hidden
    assert time.monotonic() - began < within(3, busy_s=8)


def test_the_low_water_mark_of_a_lane_is_its_lowest_queued_row(db: Database) -> None:
    async def look(lanes: list[tuple[Lane, Mark]]) -> list[tend.LowWater]:
        async with await db.aconnect() as conn:
            return await tend.low_water(conn, db.schema, lanes, lookback_s=1.0)

    fill(db, 3, "a")
    Holder(db).claim(1, lanes=[A])
    enqueue(db.connect(), queue="b", delay="1 hour")
    first, second = asyncio.run(look([(A, Mark()), (B, Mark())]))
    lowest = db.value("select min(id) from supervisor.job where queue = 'a' and lease is null")
    assert (first.mark.id, first.due, first.next_s) == (lowest, True, None)
    assert (second.mark.id, second.due) == (0, False)
    assert second.next_s is not None
    assert 3500 < second.next_s <= 3600
    # Nothing is due: all that is known is that nothing is older than the look-back.
    age = db.value("select extract(epoch from clock_timestamp() - %s::timestamptz)::float8", [second.mark.at])
    assert age >= 1


# -- acknowledgements ---------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("keep", [0, 1])
def test_an_ack_finds_its_row_wherever_it_lies_by_now(db: Database, keep: int) -> None:
    """A claim says where; a row that was changed since lies elsewhere, and in its old place may lie another job's."""
    holder = Holder(db)
    stays, moves, other, replaced = enqueue(db.connect(), 4)
    held = {job.id: job for job in holder.claim(4).jobs}
    db.execute("update supervisor.job set cancel_at = now() where id = %s", [moves])
    acks = [held[stays], held[moves], held[replaced]._replace(tid=held[other].tid)]
    answer = holder.ack(*acks, keep=keep)
    assert (answer.acked, answer.lost) == (3, [])
    assert db.rows("select id from supervisor.job") == [(other,)]
    assert db.value("select count(*) from supervisor.history") == 3 * keep
    again = holder.ack(*acks)
    assert (again.acked, again.lost) == (0, [stays, moves, replaced])


@pytest.mark.pg("15", "16", "18")
def test_an_ack_counts_that_waited_for_somebody_who_changed_its_row(db: Database) -> None:
    holder, blocker = Holder(db), db.connect(autocommit=False)
    enqueue(db.connect(), 2)
    held = holder.claim(2).jobs
    blocker.execute("update supervisor.job set cancel_at = now() where id = %s", [held[0].id])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(holder.ack, *held)
        db.wait_for(
            "select wait_event_type from pg_stat_activity where pid = %s", "Lock", params=[holder.conn.info.backend_pid]
        )
        blocker.commit()
        assert (waiting.result(10).acked, db.value("select count(*) from supervisor.job")) == (2, 0)


# -- the schema's promise -----------------------------------------------------------------------


def _updates(conn: psycopg.Connection[Any]) -> tuple[int, int]:
    conn.execute("select pg_stat_force_next_flush()")
    conn.execute("select 1")
    row = conn.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'supervisor.job'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


@pytest.mark.pg("15", "16", "18")
def test_a_claim_writes_no_index_entry(db: Database) -> None:
    """Every claim is a HOT update, with an old snapshot held elsewhere too."""
    pin = db.connect(autocommit=False)
    pin.execute("set transaction isolation level repeatable read")
    pin.execute("select count(*) from supervisor.job")
    fill(db, 300)
    holder = Holder(db)
    before = _updates(holder.conn)
    for _ in range(30):
        assert len(holder.claim(10).jobs) == 10
    after = _updates(holder.conn)
    assert after[0] - before[0] == 300
    assert after[1] - before[1] == 300


def test_no_index_knows_what_a_claim_writes(db: Database) -> None:
    definitions = [row[0] for row in db.rows("select indexdef from pg_indexes where tablename = 'job'")]
    assert len(definitions) == 3
    for definition in definitions:
        for column in ("lease", "claims", "attempts", "started_at"):
            assert column not in definition, definition


# -- ids ----------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize("first", [3_000_000_000, 2**63 - 200])
def test_ids_above_two_to_the_31_go_through_every_statement(db: Database, first: int) -> None:
    """B11."""
    db.execute(f"alter sequence supervisor.job_id_seq restart with {first}")
    conn, holder = db.connect(), Holder(db)
    ids = enqueue(conn, 6, max_crashes=1)
    ids += [
        row[0]
        for row in conn.execute(
            "select id from supervisor.enqueue_many(%s) order by ord",
            ['[{"kind":"k"},{"kind":"k","unique_key":"u"}]'],
        ).fetchall()
    ]
    assert ids == list(range(first, first + 8)), ids
    claim = holder.claim(8)
    assert claim.ids == ids
    assert renew(conn, [holder.session]) == {holder.session}
    held = dict(zip(ids, claim.jobs, strict=True))
    assert holder.ack(held[ids[0]]).acked == 1
    assert holder.ack(held[ids[0]]).lost == [ids[0]]
    assert set(holder.settle([held[ids[1]]], "failed", delay_s=0, error="E")) == {ids[1]}
    assert set(holder.settle([held[ids[2]]], "released")) == {ids[2]}
    assert set(holder.settle([held[ids[3]]], "dead", error="E")) == {ids[3]}
    assert db.rows("select * from supervisor.cancel_job(%s)", [ids[4:5]]) == [(ids[4], "asked")]
    moved = move_session(conn, holder.session, new := new_session_id(), [held[ids[4]], held[ids[5]]])
    assert moved == set(ids[4:6])
    expire(db, new)
    assert reap(conn) == {new}
    assert sweep(conn) == {
        ids[4]: ("crashed", "cancelled"),
        ids[5]: ("crashed", "dead"),
        ids[6]: ("released", "queued"),
        ids[7]: ("released", "queued"),
    }
    assert db.rows("select supervisor.retry_job(%s)", [[ids[3], ids[5]]]) == [(ids[3],), (ids[5],)]
    assert db.rows("select * from supervisor.cancel_job(%s)", [[ids[3]]]) == [(ids[3], "cancelled")]
    after = Holder(db).claim(10)
    assert sorted(after.ids) == sorted([ids[1], ids[2], ids[5], ids[6], ids[7]])
    low = db.rows(
        statement("low_water", db.schema).decode(),
        {
            "queues": ["default"], "priorities": [0], "mark_at": ["1970-01-01+00"], "mark_id": [ids[7]],
            "lookback_s": 0.0,
        },
    )  # fmt: skip
    assert len(low) == 1
    assert sorted(db.statuses().items()) == [("cancelled", 2), ("done", 1), ("running", 5)]


def test_a_claim_carries_the_options_of_its_job(db: Database) -> None:
    [job] = enqueue(
        db.connect(), kind="mail", payload='{"a": 1}', headers='{"h": "x"}', timeout=timedelta(seconds=2.5),
        priority=7, queue="q", max_attempts=2,
    )  # fmt: skip
    conn = db.connect()
    holder = Holder(db)
    [held] = work(conn, holder.session, lanes=[Lane("q", 7)]).jobs
    assert (held.id, held.kind, held.payload, held.headers) == (job, "mail", '{"a": 1}', '{"h": "x"}')
    assert (held.attempt, held.token, held.crashes, held.suspect) == (1, 1, 0, False)
    close_session(conn, holder.session)


def test_jobs_of_unknown_kinds_are_passed_by_unclaimed(db: Database) -> None:
    """Only those due for long enough, of no known kind, that nobody holds; nothing is charged, all others stay."""
    conn = db.connect()
    db.execute(
        "insert into supervisor.job (id, kind, queue, run_at, unknown_since) values"
        " (1, 'known', 'q', now() - interval '9 s', null), (2, 'strange', 'q', now() - interval '8 s', null),"
        " (3, 'strange', 'q', now(), null), (4, 'strange', 'other', now() - interval '9 s', null),"
        " (5, 'strange', 'q', now() - interval '7 s', now() - interval '2 h'),"
        " (6, 'strange', 'q', now() - interval '6 s', now() - interval '100 s'),"
        " (7, 'strange', 'q', now() - interval '5 s', null)"
    )
    holder = db.connect(autocommit=False)
    holder.execute("select from supervisor.job where id = 7 for update")

    def put_back(limit: int) -> Any:
        return conn.execute(
            statement("put_back", "supervisor"),
            {
                "queues": ["q"], "priorities": [0], "mark_at": [Mark().at], "mark_id": [0], "known": ["known", "too"],
                "due_s": 1.0, "limit_s": 3600.0, "limit": limit,
            },
        ).fetchone()  # fmt: skip

    assert put_back(2) == (1, True)
    assert put_back(100) == (1, False)
    rows = db.rows(
        "select id, extract(epoch from run_at - now())::float8, attempts, crashes, claims, last_error is not null"
        " from supervisor.job order by id"
    )
    later = {row[0]: row[1] for row in rows if row[1] > 0.1}
    assert later.keys() == {2, 6}
    assert 0.4 <= later[2] <= 1.5
    assert 40 <= later[6] <= 160, "the longer it is unknown, the longer it is put off"
    assert {row[2:5] for row in rows} == {(0, 0, 0)}
    assert [row[0] for row in rows if row[5]] == [2]
    assert db.value("select unknown_since is not null from supervisor.job where id = 2")
