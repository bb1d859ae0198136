"""A job's moves: the table in supervisor/job.py, held against the database that makes them.

each move once      driven by the functions that workers, sweeps and operators call
many moves          random sequences on a few jobs, compared with a model made from the table
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from supervisor.job import SETTLE_EVENTS, TRANSITIONS, Event, Status, apply
from tests.support.database import Database
from tests.support.queue import (
    DEFAULT,
    Conn,
    Held,
    Holder,
    close_session,
    enqueue,
    expire,
    move_session,
    new_session_id,
    reap,
    settle,
    stored,
    sweep,
    work,
)

MOVES = sorted(TRANSITIONS, key=lambda move: (move[0].value, move[1].value))
#: Events that the database makes out of another when the counts say so.
REPORTED_AS = {
    Event.EXHAUSTED: "failed",
    Event.CRASHED_OUT: "crashed",
    Event.UNKNOWN_OUT: "unknown",
}


def facts(db: Database, job_id: int) -> tuple[str, int, int]:
    job = stored(db, job_id)
    return job["status"], job["attempts"], job["crashes"]


def sweep_all(conn: Conn) -> dict[int, tuple[str, str]]:
    """Sweep the lane of ordinary jobs and that of suspects."""
    return {**sweep(conn, DEFAULT[0]), **sweep(conn, DEFAULT[1])}


def suspect(db: Database, job_id: int) -> bool:
    return bool(db.value("select priority > 500 from supervisor.job where id = %s", [job_id]))


def make(db: Database, status: Status, event: Event) -> tuple[int, Holder, Held | None]:
    """A job in *status*, with counts from which *event* is the next to happen, and its holder."""
    holder = Holder(db)
    [job_id] = enqueue(db.connect(), max_attempts=5, max_crashes=4)
    crashes = 3 if event in (Event.CRASHED_OUT, Event.REAPED_OUT) else 1
    attempts = 4 if event is Event.EXHAUSTED else 2
    db.execute(
        "update supervisor.job set attempts = %s, crashes = %s, priority = case when %s then 1000 else 0 end,"
        " unknown_since = %s where id = %s",
        [
            attempts,
            crashes,
            event is not Event.SUSPECT,
            "2020-01-01+00" if event is Event.UNKNOWN_OUT else None,
            job_id,
        ],
    )
    if status is Status.QUEUED:
        return job_id, holder, None
    [held] = holder.claim().jobs
    if status is Status.DEAD:
        holder.settle(held, "dead")
    elif status is Status.CANCELLED:
        db.rows("select supervisor.cancel_job(array[%s])", [job_id])
        holder.settle(held, "failed")
    return job_id, holder, held


def drive(db: Database, job_id: int, holder: Holder, held: Held | None, event: Event) -> None:
    """Make *event* happen, by the function through which it does."""
    if event is Event.CLAIM:
        assert holder.claim().ids == [job_id]
    elif event is Event.DONE:
        assert held is not None
        assert holder.ack(held).acked == 1
    elif event in (Event.REAPED, Event.REAPED_OUT):
        expire(db, holder.session)
        assert reap(holder.conn) == {holder.session}
        assert set(sweep_all(holder.conn)) == {job_id}
    elif event is Event.CANCEL:
        db.rows("select supervisor.cancel_job(array[%s])", [job_id])
        if held is not None:
            holder.settle(held, "failed")
    elif event is Event.RETRY:
        assert db.rows("select supervisor.retry_job(array[%s])", [job_id]) == [(job_id,)]
    else:
        assert held is not None
        assert set(holder.settle(held, REPORTED_AS.get(event, event.value), error="E: e")) == {job_id}


@pytest.mark.pg("15", "16", "18")
@pytest.mark.parametrize(("status", "event"), MOVES, ids=[f"{status}-{event}" for status, event in MOVES])
def test_the_database_makes_the_move_that_the_table_says(db: Database, status: Status, event: Event) -> None:
    job_id, holder, held = make(db, status, event)
    _, attempts, crashes = facts(db, job_id)
    was_suspect = suspect(db, job_id)
    run_at = db.value("select run_at from supervisor.jobs where id = %s", [job_id])
    token = stored(db, job_id)["claims"]

    drive(db, job_id, holder, held, event)

    move = apply(status, event)
    expected = (0, 0) if move.reset else (attempts + move.attempts, crashes + move.crashes)
    assert facts(db, job_id) == (move.to.value, *expected)
    moved_by, ahead = db.rows(
        "select extract(epoch from run_at - %s)::float8, run_at > clock_timestamp() from supervisor.jobs where id = %s",
        [run_at, job_id],
    )[0]
    if move.to is Status.QUEUED:
        assert suspect(db, job_id) is (was_suspect if move.suspect is None else move.suspect)
        # What the release before reads.
        assert db.value("select suspect = (priority > 500) from supervisor.job where id = %s", [job_id])
        assert db.value("select lease is null and started_at is null from supervisor.job where id = %s", [job_id])
        if move.later:
            assert ahead
        elif not move.reset:
            assert moved_by == 0
    # The fencing token only grows, and only a claim raises it.
    assert stored(db, job_id)["claims"] == token + (event is Event.CLAIM)


def test_the_table_knows_every_event_that_a_run_may_report() -> None:
    assert {event for status, event in TRANSITIONS if status is Status.RUNNING} >= SETTLE_EVENTS


@pytest.mark.parametrize("event", sorted(SETTLE_EVENTS))
def test_a_run_that_was_cancelled_never_goes_back_to_the_queue(db: Database, event: Event) -> None:
    """An operator's cancel holds whatever the run reports; a run that succeeded is done."""
    job_id, holder, held = make(db, Status.RUNNING, event)
    assert held is not None
    assert db.rows("select what from supervisor.cancel_job(array[%s])", [job_id]) == [("asked",)]
    assert db.rows("select what from supervisor.cancel_job(array[%s])", [job_id]) == [("asked",)]
    assert set(holder.settle(held, event.value)) == {job_id}
    assert stored(db, job_id)["status"] == ("done" if event is Event.DONE else "cancelled")


@pytest.mark.parametrize("ending", ["ended", "reaped"])
def test_a_cancelled_job_of_a_lost_worker_never_goes_back_to_the_queue(db: Database, ending: str) -> None:
    job_id, holder, _ = make(db, Status.RUNNING, Event.CANCEL)
    db.rows("select supervisor.cancel_job(array[%s])", [job_id])
    if ending == "ended":
        close_session(holder.conn, holder.session)
    else:
        expire(db, holder.session)
        reap(holder.conn)
    assert sweep_all(holder.conn)[job_id][1] == "cancelled"
    assert stored(db, job_id)["status"] == "cancelled"


@pytest.mark.parametrize("event", sorted(SETTLE_EVENTS))
def test_a_stale_token_or_another_session_changes_nothing(db: Database, event: Event) -> None:
    """A result counts once: neither an earlier run of the job nor another worker may write it (B14)."""
    job_id, holder, held = make(db, Status.RUNNING, event)
    assert held is not None
    before = stored(db, job_id)
    other = Holder(db)
    for session, token in ((holder.session, held.token - 1), (other.session, held.token)):
        stale = held._replace(token=token)
        assert settle(holder.conn, session, [stale], event.value) == {}
        answer = work(holder.conn, session, 0, acks=[stale])
        assert (answer.acked, answer.lost) == (0, [job_id])
        assert move_session(holder.conn, Holder(db).session, new_session_id(), [held]) == set()
        assert stored(db, job_id) == before
    assert set(holder.settle(held, event.value)) == {job_id}
    assert holder.settle(held, event.value) == {}  # said twice, counted once


def test_a_retry_of_many_puts_all_of_them_back_or_none(db: Database) -> None:
    holder = Holder(db)
    [first] = enqueue(db.connect(), unique_key="a")
    [second] = enqueue(db.connect())
    holder.settle(holder.claim(2).jobs, "dead")
    [third] = enqueue(db.connect(), unique_key="a")
    with pytest.raises(Exception, match="unique"):
        db.rows("select supervisor.retry_job(%s)", [[first, second]])
    assert [stored(db, job)["status"] for job in (first, second, third)] == ["dead", "dead", "queued"]
    assert db.rows("select supervisor.retry_job(%s)", [[second, 10**12]]) == [(second,)]


# -- random sequences ---------------------------------------------------------------------------


@dataclass
class Model:
    """What the table says a job is."""

    status: Status = Status.QUEUED
    attempts: int = 0
    crashes: int = 0
    suspect: bool = False
    token: int = 0
    holder: int | None = None
    cancel: bool = False
    max_attempts: int = 3
    max_crashes: int = 2
    old: list[Held] = field(default_factory=list)

    def after(self, event: Event) -> "Model":
        """The job after *event*, by the table; counts decide between an event and its last time."""
        if event is Event.FAILED and self.attempts >= self.max_attempts:
            event = Event.EXHAUSTED
        if event in (Event.CRASHED, Event.REAPED) and self.crashes + 1 >= self.max_crashes:
            event = Event.CRASHED_OUT if event is Event.CRASHED else Event.REAPED_OUT
        move = apply(self.status, event)
        to = move.to
        if self.cancel and to in (Status.QUEUED, Status.DEAD) and self.status is Status.RUNNING:
            to = Status.CANCELLED  # the operator's word stands; the run's own counts are kept
        mark = self.suspect if move.suspect is None else move.suspect
        return replace(
            self,
            status=to,
            attempts=0 if move.reset else self.attempts + move.attempts,
            crashes=0 if move.reset else self.crashes + move.crashes,
            suspect=mark and to in (Status.QUEUED, Status.RUNNING),
            holder=None if self.status is Status.RUNNING else self.holder,
            cancel=self.cancel and to is Status.RUNNING,
        )


JOBS, WORKERS = 4, 2
REPORTS = [event for event in SETTLE_EVENTS if event is not Event.DONE]


class Life(RuleBasedStateMachine):
    """Jobs, workers, an operator and the sweep, in any order."""

    db: Database

    @initialize()
    def begin(self) -> None:
        self.db.execute("truncate supervisor.job, supervisor.session, supervisor.dead_letter, supervisor.history")
        self.conn = self.db.connect()
        ids = enqueue(self.conn, JOBS, max_attempts=3, max_crashes=2)
        self.jobs = {job_id: Model() for job_id in ids}
        self.held: dict[int, Held] = {}
        self.workers = [Holder(self.db) for _ in range(WORKERS)]

    def teardown(self) -> None:
        for conn in (getattr(self, "conn", None), *(worker.conn for worker in getattr(self, "workers", []))):
            if conn is not None:
                conn.close()

    def _due(self) -> None:
        """Time passes: every queued job is due."""
        self.db.execute("update supervisor.job set run_at = clock_timestamp() - interval '1 s' where lease is null")

    def _running(self, worker: int) -> list[int]:
        return [job for job, model in self.jobs.items() if model.holder == self.workers[worker].session]

    def _busy(self, worker: int) -> list[int]:
        """What the worker runs; a claim first when that is nothing, so that few steps are idle."""
        if not self._running(worker):
            self._claim(worker, 2)
        return self._running(worker)

    @rule(worker=st.integers(0, WORKERS - 1), limit=st.integers(1, 3))
    def claim(self, worker: int, limit: int) -> None:
        self._claim(worker, limit)

    @rule()
    @precondition(lambda self: all(model.status is Status.DONE for model in self.jobs.values()))
    def begin_anew(self) -> None:
        self.jobs[enqueue(self.conn, max_attempts=3, max_crashes=2)[0]] = Model()

    def _claim(self, worker: int, limit: int) -> None:
        self._due()
        holder = self.workers[worker]
        queued = [job for job, model in self.jobs.items() if model.status is Status.QUEUED]
        claim = holder.claim(limit)
        assert len(claim.jobs) == min(limit, len(queued))
        for held in claim.jobs:
            model = self.jobs[held.id].after(Event.CLAIM)
            self.jobs[held.id] = replace(model, token=model.token + 1, holder=holder.session)
            assert held.token == model.token + 1
            if held.id in self.held:
                model.old.append(self.held[held.id])
            self.held[held.id] = held

    @rule(worker=st.integers(0, WORKERS - 1), event=st.sampled_from(REPORTS), twice=st.booleans(), data=st.data())
    def report(self, worker: int, event: Event, twice: bool, data: st.DataObject) -> None:
        running = self._busy(worker)
        if not running:
            return
        chosen = data.draw(st.lists(st.sampled_from(running), unique=True, min_size=1))
        holder, held = self.workers[worker], [self.held[job] for job in chosen]
        answer = holder.settle(held, event.value, error="E")
        for job in chosen:
            self.jobs[job] = self.jobs[job].after(event)
            assert answer[job][0] == self.jobs[job].status.value
        if twice:
            assert holder.settle(held, event.value, error="E") == {}

    @rule(worker=st.integers(0, WORKERS - 1), by_settle=st.booleans(), twice=st.booleans())
    def done(self, worker: int, by_settle: bool, twice: bool) -> None:
        running = self._busy(worker)[:1]
        held = [self.held[job] for job in running]
        holder = self.workers[worker]
        if by_settle:
            assert set(holder.settle(held, "done")) == set(running)
        else:
            assert holder.ack(*held).acked == len(running)
        for job in running:
            self.jobs[job] = self.jobs[job].after(Event.DONE)
        if twice:
            again = holder.ack(*held)
            assert (again.acked, sorted(again.lost)) == (0, sorted(running))

    @rule(event=st.sampled_from(sorted(SETTLE_EVENTS)), data=st.data())
    def zombie(self, event: Event, data: st.DataObject) -> None:
        """An earlier run, or a run under another's session, reports: nothing may change (see `agrees`)."""
        old = [held for model in self.jobs.values() for held in model.old]
        stale = old + [
            held._replace(token=held.token + 1) for job, held in self.held.items() if self.jobs[job].holder is not None
        ]
        if not stale:
            return
        held = data.draw(st.sampled_from(stale))
        holder = data.draw(st.sampled_from(self.workers))
        assert holder.settle(held, event.value) == {}
        assert holder.ack(held).lost == [held.id]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        model = self.jobs[job]
        what = self.db.rows("select what from supervisor.cancel_job(array[%s])", [job])
        if model.status is Status.QUEUED:
            assert what == [("cancelled",)]
            self.jobs[job] = model.after(Event.CANCEL)
        elif model.status is Status.RUNNING:
            assert what == [("asked",)]
            self.jobs[job] = replace(model, cancel=True)
        else:
            assert what == []

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        model = self.jobs[job]
        back = self.db.rows("select supervisor.retry_job(array[%s])", [job])
        if model.status in (Status.DEAD, Status.CANCELLED):
            assert back == [(job,)]
            self.jobs[job] = model.after(Event.RETRY)
        else:
            assert back == []

    @rule(worker=st.integers(0, WORKERS - 1), way=st.sampled_from(["ended", "reaped", "missing"]))
    def lose_worker(self, worker: int, way: str) -> None:
        self._busy(worker)
        holder = self.workers[worker]
        if way == "ended":
            close_session(self.conn, holder.session)
        elif way == "reaped":
            expire(self.db, holder.session)
            assert reap(self.conn) == {holder.session}
        else:
            self.db.execute("delete from supervisor.session where id = %s", [holder.session])
        lost = self._running(worker)
        swept = sweep_all(self.conn)
        assert set(swept) == set(lost)
        for job in lost:
            self.jobs[job] = self.jobs[job].after(Event.RELEASED if way == "ended" else Event.REAPED)
            assert swept[job][1] == self.jobs[job].status.value
        holder.conn.close()
        self.workers[worker] = Holder(self.db)

    @rule(worker=st.integers(0, WORKERS - 1))
    def move(self, worker: int) -> None:
        """An answer was lost: the worker goes on under a new session."""
        running = self._busy(worker)
        holder, new = self.workers[worker], new_session_id()
        assert move_session(self.conn, holder.session, new, [self.held[job] for job in running]) == set(running)
        holder.session = new
        for job in running:
            self.jobs[job] = replace(self.jobs[job], holder=new)
        # A sweep takes nothing from living sessions.
        assert sweep_all(self.conn) == {}

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "jobs"):
            return
        rows = self.db.rows(
            "select v.id, v.status, v.attempts, v.crashes, v.suspect, v.claims, j.lease, j.cancel_at is not null"
            " from supervisor.jobs v left join supervisor.job j using (id)"
        )
        assert len(rows) == len(self.jobs)
        for job_id, *found in rows:
            model = self.jobs[job_id]
            counts = [model.attempts, model.crashes, model.suspect, model.token]
            expected: list[Any] = [model.status.value, *counts, model.holder, model.cancel]
            assert found == expected, f"job {job_id}: database {found}, table {expected}"


def test_random_lives_end_where_the_table_says(db: Database) -> None:
    """Any sequence of claims, reports, repeats, zombies, cancels, retries and lost workers (B14, B15)."""
    Life.db = db
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=(Phase.generate,),  # 30 steps read as they are; making them fewer takes minutes
            derandomize=True,
        ),
    )
