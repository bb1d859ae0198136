"""Step 4: a worker is killed with a batch in its hands, and a session is abandoned.

    killed      the parent sees it die --> its unstarted jobs are back at once, its culprit is charged
    abandoned   nobody renews it --> its lease passes --> the reaper frees its jobs, each charged

Elsewhere: the other steps (steps.py).
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final

from supervisor.client import enqueue_many
from supervisor.db import jobs
from supervisor.db.lab import SCHEMA, Held
from supervisor.demo.ground import BATCH, LEASE_S, REAP_EVERY_S, SLACK_S, Ground, new_jobs

_CHANCES: Final = 4


class Deaths:
    """Both deaths, adding their figures to the ground's report."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._db = ground.db
        self._service = ground.service
        self._screen = ground.screen
        self._report = ground.report

    def run(self) -> None:
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
        self._ground.until(
            lambda: not self._db.held_by(held.session, held.unstarted), "the dead worker's jobs are back"
        )
        back_s = time.monotonic() - began
        replaced_s = self._ground.until(lambda: self._service.ready_after_s(slot, began), "a new worker is ready")
        self._ground.ended(ids, "the dead worker's jobs are done")
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
            self._ground.ended(ids, "a batch is done")
            held, ids = self._hold_some()
        return held, ids

    def _hold_some(self) -> tuple[Held, list[int]]:
        self._ground.warm_up()
        ids = self._ground.enqueue(["slow"] + ["email"] * (BATCH - 1))
        return self._ground.until(lambda: self._db.holder(ids[0]), "a worker runs the slow job"), ids

    def _abandon_a_session(self) -> None:
        began = time.monotonic()
        session, ids = asyncio.run(self._claim_and_die())
        claimed = time.monotonic()
        self._screen.note(f"abandoned a session with {len(ids)} jobs")
        self._ground.until(lambda: not self._db.held_by(session, ids), "the abandoned session's jobs are back")
        back = time.monotonic()
        self._ground.ended(ids, "the abandoned session's jobs are done")
        report = self._report
        report.equal(4, "abandoned_held", "jobs that a session held when it was abandoned", BATCH, len(ids))
        # Not before the lease has passed since it began, and soon after it has passed since the claim.
        report.within(4, "abandoned_kept_s", "... held for its lease of 400 ms", back - began, least=LEASE_S)
        most = LEASE_S + 2 * REAP_EVERY_S + SLACK_S
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
                await enqueue_many(conn, new_jobs(["email"] * BATCH), schema=SCHEMA)
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


def _words(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
