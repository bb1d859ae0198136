"""Any history of jobs with ordering keys keeps their order: retries, snoozes, cancels, deaths and holds included.

    rules: add, look, claim, end, cancel, retry, release_order, reschedule --> after each: who has which key

Who has a key is read from the table of gates after every step, so a turn that was given wrongly is seen when it is
given, and not only when something runs.

Elsewhere: each move by itself (test_gates.py); the same from threads (test_gate_races.py).
"""

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.database import Database
from tests.support.gates import bring_notes, gated, look
from tests.support.queue import Held, Holder
from tests.support.sizes import FULL

KEYS = ("a", "b")
ENDS = ("done", "failed", "snoozed", "released", "interrupted", "suspect", "crashed", "dead")
LATER = {"delay_s": 3600.0, "base_s": 3600.0, "cap_s": 3600.0}
HOLDERS = """
select g.ordering_key, array_agg(g.job_id) from supervisor.gated g
 where g.gate is null or g.gate in (3, 4) or (g.gate = 9 and g.ordering_hold) group by 1
"""
WAITING = "select g.ordering_key, g.job_id from supervisor.gated g where g.gate = 2"


class Orders(RuleBasedStateMachine):
    """One worker, one gatekeeper, one operator, step by step."""

    db: ClassVar[Database]

    @initialize()
    def empty(self) -> None:
        self.db.execute(
            "truncate supervisor.job, supervisor.gated, supervisor.gate_note, supervisor.history,"
            " supervisor.dead_letter, supervisor.session"
        )
        self.worker = Holder(self.db)
        self.running: list[Held] = []
        self.added: list[int] = []
        self.has: dict[str, int] = {}
        self.waited: set[tuple[str, int]] = set()

    @rule(key=st.sampled_from(KEYS), hold=st.booleans(), delay_s=st.sampled_from([0.0, 0.0, 0.0, 3600.0]))
    def add(self, key: str, hold: bool, delay_s: float) -> None:
        self.added += [gated(self.worker.conn, order=key, hold=hold, delay_s=delay_s) for _ in range(2)]

    @rule()
    def look(self) -> None:
        bring_notes(self.db)
        look(self.worker.conn)

    @rule(limit=st.integers(1, 3), acks=st.booleans())
    def claim(self, limit: int, acks: bool) -> None:
        """With the acks of what runs, or without: then what is free goes on."""
        found = self.worker.claim(limit, acks=self.running if acks else ())
        assert found.lost == []
        self.running = ([] if acks else self.running) + found.jobs

    @rule(event=st.sampled_from(ENDS), later=st.booleans(), data=st.data())
    def end(self, event: str, later: bool, data: st.DataObject) -> None:
        if not self.running:  # few steps are idle
            self.look()
            self.claim(3, False)
        if not self.running:
            return
        job = data.draw(st.sampled_from(self.running))
        self.running.remove(job)
        options: dict[str, Any] = LATER if later else {"delay_s": 0.0, "base_s": 0.0, "cap_s": 0.0}
        assert self.worker.settle(job, event, error="E", **options)

    @rule(what=st.sampled_from(["cancel_job", "retry_job", "release_order", "reschedule_job"]), data=st.data())
    def order(self, what: str, data: st.DataObject) -> None:
        if self.added:
            job = data.draw(st.sampled_from(self.added))
            self.db.rows(f"select * from supervisor.{what}(%s)", [[job]])

    @invariant()
    def one_has_a_key_and_it_was_the_first_that_waited(self) -> None:
        holders: dict[str, list[int]] = dict(self.db.rows(HOLDERS))
        assert all(len(jobs) == 1 for jobs in holders.values()), holders
        has = {key: jobs[0] for key, jobs in holders.items()}
        for key, job in has.items():
            before = {id for other, id in self.waited if other == key and id < job}
            if self.has.get(key) != job:
                still = {id for _, id in self.db.rows(WAITING)}
                assert not before & still, f"{job} has {key} before {sorted(before & still)}"
        for job_id in [held.id for held in self.running]:
            assert job_id in has.values(), f"{job_id} runs without its key"
        self.has = has
        self.waited = set(self.db.rows(WAITING))

    def teardown(self) -> None:
        """Everything ends: nobody was forgotten."""
        for _ in range(len(self.added) + 4):
            self.db.rows("select * from supervisor.release_order(%s)", [self.added])
            self.db.rows("select * from supervisor.reschedule_job(%s)", [self.added])
            self.look()
            self.running = self.worker.claim(10, acks=self.running).jobs
            self.one_has_a_key_and_it_was_the_first_that_waited()
        assert (
            self.db.rows("select id, status, waits_for from supervisor.jobs where status in ('queued', 'running')")
            == []
        )
        assert self.db.rows("select * from supervisor.gated where gate is null or gate not in (8, 9)") == []
        self.worker.conn.close()


@pytest.mark.timeout(900 if FULL else 120)
def test_any_history_keeps_the_order_of_each_key(db: Database) -> None:
    Orders.db = db
    run_state_machine_as_test(
        Orders,
        settings=settings(
            max_examples=400 if FULL else 15,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=(Phase.generate,),  # making the steps fewer takes minutes
            derandomize=True,
        ),
    )
