"""The five steps: what each does to the service, and what must come of it.

    1 enqueue   500 jobs of four kinds, in one batch
    2 clear     every job ends; handlers are called exactly as often as attempts are due
    3 look      retries, dead letters, and the job that takes longer than the lease
    4 die       a worker is killed with a batch in its hands; a session is abandoned
    5 stop      SIGTERM while slow jobs run

Always true: a step waits for facts, with a deadline; it never sleeps for an effect to come.

Elsewhere: step 4 (deaths.py); sizes and waiting (ground.py); the handlers (handlers/lab.py); the questions
(db/lab.py).
"""

import time

from supervisor.demo.deaths import Deaths
from supervisor.demo.ground import (
    BATCH,
    CALLS,
    DEADLINE_S,
    JOBS,
    KINDS,
    RETRY_BASE_S,
    SLACK_S,
    SLOW_S,
    WORKERS,
    Ground,
)


class Steps:
    """The steps, in order, each adding its figures to the ground's report."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._db = ground.db
        self._service = ground.service
        self._screen = ground.screen
        self._report = ground.report
        self._ids: dict[str, list[int]] = {}
        self._all: list[int] = []

    def start(self) -> None:
        """Wait until all workers are ready."""
        self._ground.until(lambda: self._service.ready, "the service is ready")

    def enqueue(self) -> None:
        """Step 1."""
        kinds = _mixed()
        began = time.monotonic()
        self._all = self._ground.enqueue(kinds)
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

        self._ground.until(cleared, f"{JOBS} jobs have ended")
        took = time.monotonic() - began
        statuses, calls = self._db.statuses(), self._db.calls(self._all)
        report = self._report
        report.within(2, "cleared_s", "time to clear them (the slow one takes 900 ms)", took, most=DEADLINE_S)
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
        # base * 2^attempts, spread over half to one and a half times that; then they queue behind the others
        for attempt in (1, 2):
            label = f"shortest wait before attempt {attempt + 1} of the broken jobs"
            least = RETRY_BASE_S * 2**attempt * 0.5
            shortest = db.shortest_retry_s("broken", attempt)
            report.within(3, f"retry_{attempt}_least_s", label, shortest, least=least)

    def die(self) -> None:
        """Step 4."""
        Deaths(self._ground).run()

    def stop(self) -> None:
        """Step 5."""
        self._ground.warm_up()
        ids = self._ground.enqueue(["slow"] * WORKERS * BATCH)
        self._ground.until(lambda: len(self._db.callers(ids)) == WORKERS, "each worker runs a slow job")
        claimed = self._db.claimed(ids) - WORKERS
        rest = max(0.0, SLOW_S - self._db.since_last_first_call_s(ids))
        began = time.monotonic()
        self._service.terminate()
        self._ground.until(lambda: self._service.exit_code is not None, "the service has exited", alive=False)
        took = time.monotonic() - began
        report, ended = self._report, self._db.outcomes(ids)
        report.within(
            5, "exit_s", f"SIGTERM to exit (the slow jobs had {rest * 1000:.0f} ms to go)", took,
            least=max(0.0, rest - 0.1), most=rest + SLACK_S,
        )  # fmt: skip
        report.equal(5, "exit_code", "exit code", 0, self._service.exit_code)
        report.equal(5, "finished", "running jobs that finished", WORKERS, sum(job.status == "done" for job in ended))
        report.equal(5, "running", "jobs left running", 0, self._db.statuses().get("running", 0))
        queued = sum((job.status, job.attempts, job.crashes) == ("queued", 0, 0) for job in ended)
        label = f"unstarted jobs ({claimed} of them claimed) queued again, attempts unspent"
        report.equal(5, "queued", label, WORKERS * (BATCH - 1), queued)
        report.equal(5, "stop_calls", "handler calls", WORKERS, self._db.calls(ids))


def _mixed() -> list[str]:
    """The kinds of step 1 in a fixed order, the rare ones spread among the emails."""
    kinds = ["email"] * JOBS
    for n in range(KINDS["flaky"]):
        kinds[20 + 47 * n] = "flaky"
    for n in range(KINDS["broken"]):
        kinds[60 + 110 * n] = "broken"
    kinds[100] = "slow"  # with nine others claimed behind it
    return kinds
