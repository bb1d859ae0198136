"""Which jobs come first when more wait than can run: shares by weight, priorities, ageing. By count of claims.

A worker's own plan (worker/marks.py) and the real work(), with the published marks of a tender each second.

Elsewhere: the plan alone (tests/unit/test_marks.py); services (tests/process/test_pace.py).
"""

import random
from collections import Counter
from itertools import pairwise

import pytest

from supervisor.db.jobs import Answer, Lane, Mark
from supervisor.settings import parse_queues
from supervisor.worker.marks import AGEING_EVERY, Marks
from tests.db.test_plans import buffers
from tests.support.database import Database
from tests.support.queue import Claim, Held, Holder, work

WEIGHTS = "critical*4,default*2,bulk"


def fill(db: Database, queue: str, count: int, priority: int = 0, age_s: float = 1.0) -> None:
    db.execute(
        "insert into supervisor.job (kind, queue, priority, run_at)"
        " select 'k', %s, %s, clock_timestamp() - make_interval(secs => %s) from generate_series(1, %s)",
        [queue, priority, age_s, count],
    )


class Worker:
    """A worker's plan and claims; what it claims is done at once."""

    def __init__(self, db: Database, weights: str, *, ageing_s: float = 0.0) -> None:
        self.holder = Holder(db)
        names = {one.name: one.weight for one in parse_queues(weights)}
        self.marks = Marks(names, random.Random(5), ageing_s=ageing_s)

    def publish(self, *lanes: Lane) -> None:
        """As a tender does each second."""
        lowest = (
            """select to_char(run_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"'), id from supervisor.job"""
            " where queue = %s and priority = %s and lease is null order by run_at, id limit 1"
        )
        for lane in lanes:
            found = self.holder.db.rows(lowest, [lane.queue, lane.priority])
            self.marks.publish([(lane, Mark(*found[0]) if found else Mark())])

    def claim(self, limit: int, acks: list[Held] | None = None) -> list[Held]:
        lanes, marks, lookback_s = self.marks.plan()
        claim = self.holder.claim(
            limit, lanes=lanes, marks=dict(zip(lanes, marks, strict=True)), lookback_s=lookback_s, acks=acks or []
        )
        self.marks.learn(lanes, _answer(claim, lanes), lookback_s)
        return claim.jobs


def _answer(claim: Claim, lanes: list[Lane]) -> Answer:
    by_position = {lanes.index(lane): mark for lane, mark in claim.marks.items()}
    unread = frozenset(lanes.index(lane) for lane in claim.unread)
    return Answer([], by_position, claim.acked, claim.lost, claim.short, claim.next_s, claim.now, unread)


def test_under_full_backlog_queues_are_claimed_from_in_the_shares_of_their_weights(db: Database) -> None:
    """4 : 2 : 1, and inside each strictly by priority."""
    worker = Worker(db, WEIGHTS)
    for queue in ("critical", "default", "bulk"):
        for priority in (5, -3):
            fill(db, queue, 2500, priority)
        worker.publish(Lane(queue, 5), Lane(queue, -3))
    claimed: list[Held] = []
    held: list[Held] = []
    for _ in range(700):
        held = worker.claim(5, held)
        claimed += held
    shares = Counter(job.queue for job in claimed)
    assert len(claimed) == 3500
    for queue, weight in (("critical", 4), ("default", 2), ("bulk", 1)):
        assert shares[queue] / len(claimed) == pytest.approx(weight / 7, abs=0.06), shares
        order = [job.priority for job in claimed if job.queue == queue]
        assert all(before <= after for before, after in pairwise(order)), "strictly by priority"


def test_an_empty_queue_of_great_weight_costs_nothing(db: Database) -> None:
    """The others' shares are what they are without it; its look reads a few pages, however many jobs it once had."""
    worker = Worker(db, "empty*1000,default*2,bulk")
    worker.publish(Lane("empty", 0))
    fill(db, "empty", 2000)
    held: list[Held] = []
    while held := worker.claim(200, held):
        pass
    for queue in ("default", "bulk"):
        fill(db, queue, 2500)
        worker.publish(Lane(queue, 0))
    shares: Counter[str] = Counter()
    for _ in range(300):
        held = worker.claim(5, held)
        shares.update(job.queue for job in held)
    assert shares.total() == 1500
    assert shares["default"] / shares.total() == pytest.approx(2 / 3, abs=0.1)

    def pages(*lanes: Lane) -> int:
        at = dict(zip(*worker.marks.where(), strict=True))
        return min(
            buffers(worker.holder.conn, lambda to: work(to, worker.holder.session, 5, lanes=lanes, marks=at))
            for _ in range(3)
        )

    assert pages(Lane("empty", 0), Lane("bulk", 0)) <= pages(Lane("bulk", 0)) + 12


def test_what_has_waited_for_the_ageing_time_is_claimed_however_much_comes_before_it(db: Database) -> None:
    """The bound: a tenth of the claims is for what has waited longest. Without ageing it would never be its turn."""
    old = {("q", 9): 120.0, ("other", 3): 90.0, ("q", 5): 61.0}
    for ageing_s, found in ((0.0, []), (60.0, [("q", 9), ("other", 3), ("q", 5)]), (100.0, [("q", 9)])):
        db.execute("truncate supervisor.job")
        worker = Worker(db, "q*1000,other", ageing_s=ageing_s)
        for (queue, priority), age_s in old.items():
            fill(db, queue, 10, priority, age_s)
            worker.publish(Lane(queue, priority))
        worker.publish(Lane("q", 0))
        seen: list[tuple[str, int]] = []
        held: list[Held] = []
        for _ in range(6 * AGEING_EVERY):
            fill(db, "q", 5, 0, 0.0)  # more than enough, always
            held = worker.claim(5, held)
            seen += [(job.queue, job.priority) for job in held if job.priority]
        assert list(dict.fromkeys(seen)) == found
        # Ten jobs of each, five in one claim: two of every ten claims' turns.
        assert Counter(seen) == dict.fromkeys(found, 10)


def test_a_lane_that_has_aged_and_may_not_be_claimed_from_takes_no_turn_away(db: Database) -> None:
    worker = Worker(db, "*", ageing_s=60.0)
    fill(db, "paused", 10, 0, 3600.0)
    fill(db, "q", 5, 9, 120.0)
    fill(db, "q", 100, 0, 1.0)
    db.rows("select supervisor.pause_queue('paused')")
    worker.publish(Lane("paused", 0), Lane("q", 9), Lane("q", 0))
    rounds = [{job.priority for job in worker.claim(5)} for _ in range(AGEING_EVERY)]
    assert rounds == [{0}] * (AGEING_EVERY - 1) + [{9}]
