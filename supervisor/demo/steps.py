"""The five steps: what each does to the service, and what must come of it.

    1 enqueue   500 jobs of four kinds, in one batch
    2 clear     every job ends; handlers are called exactly as often as attempts are due
    3 look      retries, dead letters, and the job that takes longer than the lease
    4 die       a worker is killed with a batch in its hands; a session is abandoned
    5 stop      SIGTERM while slow jobs run

Always true: a step waits for facts, with a deadline; it never sleeps for an effect to come.

Elsewhere: the handlers (handlers/lab.py); the questions (db/lab.py).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from supervisor.client import enqueue_many
from supervisor.db import jobs
from supervisor.db.lab import SCHEMA, Held, LabDatabase
from supervisor.demo.figures import Report
from supervisor.demo.process import DemoFailed, LabService
from supervisor.demo.screen import Screen
from supervisor.newjob import NewJob

T = TypeVar("T")

KINDS: Final = {"email": 485, "flaky": 10, "broken": 4, "slow": 1}
JOBS: Final = sum(KINDS.values())
MAX_ATTEMPTS: Final = 3
CALLS: Final = JOBS + KINDS["flaky"] * 1 + KINDS["broken"] * (MAX_ATTEMPTS - 1)
WORKERS: Final = 4
BATCH: Final = 10
LEASE_S: Final = 0.4
REAP_EVERY_S: Final = 0.2
RETRY_BASE_S: Final = 0.02
SLOW_S: Final = 0.9

SETTINGS: Final[dict[str, object]] = {
    "schema": SCHEMA,
    "handlers": "handlers.lab",
    "processes": WORKERS,
    "concurrency": 1,
    "prefetch": BATCH - 1,
    "lease_s": LEASE_S,
    "reap_every_s": REAP_EVERY_S,
    "retry_base_s": RETRY_BASE_S,
    "health_port": "off",
    "log_format": "json",
    "name": "demo",
}
_DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.01
_SLACK_S: Final = 0.6
_WARM_UP: Final = 200
_CHANCES: Final = 4


class Lab:
    """The steps, in order, each adding its figures to *report*."""

    def __init__(self, db: LabDatabase, service: LabService, screen: Screen, report: Report) -> None:
        self._db = db
        self._service = service
        self._screen = screen
        self._report = report
        self._ids: dict[str, list[int]] = {}
        self._all: list[int] = []

    def start(self) -> None:
        """Wait until all workers are ready."""
        self._until(lambda: self._service.ready, "the service is ready")

    def enqueue(self) -> None:
        """Step 1."""
        kinds = _mixed()
        began = time.monotonic()
        self._all = self._enqueue(kinds)
        took = time.monotonic() - began
        for kind, job_id in zip(kinds, self._all, strict=True):
            self._ids.setdefault(kind, []).append(job_id)
        report = self._report
        report.equal(1, "enqueued", "jobs enqueued in one batch", JOBS, len(set(self._all)))
        report.within(1, "enqueue_s", "time for the batch", took, most=2.0)

    def clear(self) -> None:
        """Step 2."""
        began = time.monotonic()

        def cleared() -> bool:
            left = self._db.living(self._all)
            self._screen.note(f"{JOBS - left} of {JOBS}", JOBS - left, JOBS)
            return left == 0

        self._until(cleared, f"{JOBS} jobs have ended")
        took = time.monotonic() - began
        statuses, calls = self._db.statuses(), self._db.calls(self._all)
        report = self._report
        report.within(2, "cleared_s", "time to clear them (the slow one takes 900 ms)", took, most=_DEADLINE_S)
        report.equal(2, "done", "jobs done", JOBS - KINDS["broken"], statuses.get("done", 0))
        report.equal(2, "dead", "jobs dead", KINDS["broken"], statuses.get("dead", 0))
        report.equal(
            2, "unfinished", "jobs queued or running", 0, statuses.get("queued", 0) + statuses.get("running", 0)
        )
        report.equal(2, "handler_calls", "handler calls, counted by the handlers", CALLS, calls)

    def look(self) -> None:
        """Step 3."""
        report, db = self._report, self._db
        flaky, broken, slow = (db.outcomes(self._ids[kind]) for kind in ("flaky", "broken", "slow"))
        flaky_ok = sum((job.status, job.attempts) == ("done", 2) for job in flaky)
        broken_ok = sum((job.status, job.attempts, job.reason) == ("dead", 3, "attempts") for job in broken)
        report.equal(3, "flaky_done_at_2", "flaky jobs done at attempt 2", KINDS["flaky"], flaky_ok)
        report.equal(3, "broken_dead_at_3", "broken jobs dead after 3 attempts", KINDS["broken"], broken_ok)
        kept = sum("always fails" in (job.error or "") for job in broken)
        report.equal(3, "broken_errors_kept", "... with their error kept", KINDS["broken"], kept)
        report.equal(3, "slow_attempts", "attempts of the slow job (900 ms on a 400 ms lease)", 1, slow[0].attempts)
        report.equal(3, "slow_calls", "... and calls of its handler", 1, db.calls(self._ids["slow"]))
        # base * 2^attempts, spread over half to one and a half times that
        for attempt in (1, 2):
            label = f"shortest wait before attempt {attempt + 1} of the broken jobs"
            least = RETRY_BASE_S * 2**attempt * 0.5
            shortest = db.shortest_retry_s("broken", attempt)
            report.within(3, f"retry_{attempt}_least_s", label, shortest, least=least, most=least * 3 + _SLACK_S)

    def die(self) -> None:
        """Step 4: once recovered by the parent, once by the reaper."""
        self._kill_a_worker()
        self._abandon_a_session()

    def _kill_a_worker(self) -> None:
        held, ids = self._hold_a_batch()
        slow = ids[0]
        slot = int(held.name.rpartition("/")[2])
        began = time.monotonic()
        pid = self._service.kill_worker(slot)
        self._screen.note(f"killed worker {slot} (pid {pid}) with {len(held.unstarted)} jobs unstarted")
        self._until(lambda: not self._db.held_by(held.session, held.unstarted), "the dead worker's jobs are back")
        back_s = time.monotonic() - began
        replaced_s = self._until(lambda: self._service.ready_after_s(slot, began), "a new worker is ready")
        self._until(lambda: not self._db.living(ids), "the dead worker's jobs are done")
        report = self._report
        ended = {job.id: job for job in self._db.outcomes(ids)}
        report.at_least(4, "killed_held", "jobs it held unstarted", 1, len(held.unstarted))
        report.within(4, "killed_back_s", "kill to its unstarted jobs being back", back_s, most=1.0)
        report.within(4, "killed_replaced_s", "kill to a new worker in its place", replaced_s, most=1.0)
        unspent = sum((ended[i].status, ended[i].attempts, ended[i].crashes) == ("done", 1, 0) for i in held.unstarted)
        report.equal(
            4, "killed_unspent", "... done at their first attempt, no crash charged", len(held.unstarted), unspent
        )
        charged = (ended[slow].status, ended[slow].attempts, ended[slow].crashes)
        report.equal(4, "killed_culprit", "the job it ran: status, attempts, crashes", "done, 1, 1", _words(charged))

    def _hold_a_batch(self) -> tuple[Held, list[int]]:
        """A worker that runs a slow job and holds the other nine of its claim unstarted; and all ten ids.

        How much a worker claims follows from how long its last jobs ran, and another may come between: then
        the ten are left to be done, and it is tried again.
        """
        held, ids = self._hold_some()
        for _ in range(_CHANCES):
            if len(held.unstarted) == BATCH - 1:
                break
            self._until(lambda: not self._db.living(ids), "a batch is done")
            held, ids = self._hold_some()
        return held, ids

    def _hold_some(self) -> tuple[Held, list[int]]:
        self._warm_up()
        ids = self._enqueue(["slow"] + ["email"] * (BATCH - 1))
        return self._until(lambda: self._db.holder(ids[0]), "a worker runs the slow job"), ids

    def _warm_up(self) -> None:
        """Short jobs for every worker, so that each claims whole batches again."""
        ids = self._enqueue(["email"] * _WARM_UP)
        self._until(lambda: not self._db.living(ids), "short jobs are done")

    def _abandon_a_session(self) -> None:
        began = time.monotonic()
        session, ids = asyncio.run(self._claim_and_die())
        claimed = time.monotonic()
        self._screen.note(f"abandoned a session with {len(ids)} jobs")
        self._until(lambda: not self._db.held_by(session, ids), "the abandoned session's jobs are back")
        back = time.monotonic()
        self._until(lambda: not self._db.living(ids), "the abandoned session's jobs are done")
        report = self._report
        report.equal(4, "abandoned_held", "jobs that a session held when it was abandoned", BATCH, len(ids))
        # Not before the lease has passed since it began, and soon after it has passed since the claim.
        report.within(4, "abandoned_kept_s", "... held for its lease of 400 ms", back - began, least=LEASE_S)
        most = LEASE_S + 2 * REAP_EVERY_S + _SLACK_S
        report.within(4, "abandoned_back_s", "... then back by the reaper", back - claimed, most=most)
        ended = self._db.outcomes(ids)
        charged = sum((job.status, job.attempts, job.crashes) == ("done", 1, 1) for job in ended)
        report.equal(4, "abandoned_done", "... done at attempt 1, the lapse counted as a crash", BATCH, charged)

    async def _claim_and_die(self) -> tuple[int, list[int]]:
        """Enqueue a batch and claim it in one transaction, under a session that nobody will ever renew."""
        session = secrets.randbits(62) + 1
        conn = await self._db.another_connection()
        try:
            async with conn.transaction():
                await jobs.open_session(conn, SCHEMA, session=session, parent=1, name="abandoned", lease_s=LEASE_S)
                await enqueue_many(conn, _new(["email"] * BATCH), schema=SCHEMA)
                answer = await jobs.work(
                    conn,
                    SCHEMA,
                    session=session,
                    keep=1,
                    lanes=[jobs.Lane("default", 0)],
                    marks=[jobs.Mark()],
                    limit=BATCH,
                )
        finally:
            await conn.close()
        return session, [job.id for job in answer.jobs]

    def stop(self) -> None:
        """Step 5."""
        self._warm_up()
        ids = self._enqueue(["slow"] * WORKERS * BATCH)
        self._until(lambda: len(self._db.callers(ids)) == WORKERS, "each worker runs a slow job")
        claimed = self._db.claimed(ids) - WORKERS
        rest = max(0.0, SLOW_S - self._db.since_last_first_call_s(ids))
        began = time.monotonic()
        self._service.terminate()
        self._until(lambda: self._service.exit_code is not None, "the service has exited", alive=False)
        took = time.monotonic() - began
        report, ended = self._report, self._db.outcomes(ids)
        report.within(
            5, "exit_s", f"SIGTERM to exit (the slow jobs had {rest * 1000:.0f} ms to go)", took,
            least=max(0.0, rest - 0.1), most=rest + _SLACK_S,
        )  # fmt: skip
        report.equal(5, "exit_code", "exit code", 0, self._service.exit_code)
        report.equal(5, "finished", "running jobs that finished", WORKERS, sum(job.status == "done" for job in ended))
        report.equal(5, "running", "jobs left running", 0, self._db.statuses().get("running", 0))
        queued = sum((job.status, job.attempts, job.crashes) == ("queued", 0, 0) for job in ended)
        label = f"unstarted jobs ({claimed} of them claimed) queued again, attempts unspent"
        report.equal(5, "queued", label, WORKERS * (BATCH - 1), queued)
        report.equal(5, "stop_calls", "handler calls", WORKERS, self._db.calls(ids))

    # ---- small things

    def _enqueue(self, kinds: Sequence[str]) -> list[int]:
        with self._db.connection.transaction():
            return [job.id for job in enqueue_many(self._db.connection, _new(kinds), schema=SCHEMA)]

    def _until(self, fact: Callable[[], T | None], what: str, *, alive: bool = True) -> T:
        """The fact, once it is one."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            found = fact()
            if found:
                return found
            if alive and (code := self._service.exit_code) is not None:
                raise DemoFailed(f"the service ended with code {code} before {what}: {self._service.last_words()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {_DEADLINE_S:g} s: {what}; {self._service.last_words()}")
            self._screen.draw()
            time.sleep(_LOOK_EVERY_S)


def _new(kinds: Sequence[str]) -> list[NewJob]:
    return [NewJob(kind, {"n": n}, max_attempts=MAX_ATTEMPTS) for n, kind in enumerate(kinds, 1)]


def _mixed() -> list[str]:
    """The kinds of step 1 in a fixed order, the rare ones spread among the emails."""
    kinds = ["email"] * JOBS
    for n in range(KINDS["flaky"]):
        kinds[20 + 47 * n] = "flaky"
    for n in range(KINDS["broken"]):
        kinds[60 + 110 * n] = "broken"
    kinds[100] = "slow"  # with nine others claimed behind it
    return kinds


def _words(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
