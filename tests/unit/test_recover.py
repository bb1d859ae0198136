"""What becomes of a dead worker's jobs, from its scoreboard and the way it died."""

import pytest

from supervisor.db.jobs import Settlement
from supervisor.parent.deaths import say_death
from supervisor.parent.recover import Death, culprit, judge
from supervisor.wire.board import Entry, Phase, Snapshot, WorkerState

BY_ITSELF = Death("worker 1 (pid 7): killed by SIGKILL (9)")


def entry(job_id: int, phase: Phase, *, event: str = "", killed: bool = False, **rest: object) -> Entry:
    facts: dict[str, object] = {
        "index": job_id,
        "job_id": job_id,
        "token": 100 + job_id,
        "phase": phase,
        "kind": "k",
        "suspect": False,
        "claimed_ns": 1,
        "started_ns": 2,
        "deadline_ns": 0,
        "event": event,
        "delay": None,
        "error": None,
        "reason": None,
        "killed": killed,
        "torn": False,
    }
    return Entry(**{**facts, **rest})  # type: ignore[arg-type]


def after(death: Death, *entries: Entry) -> list[Settlement]:
    board = Snapshot(7, 1, 0, WorkerState.READY, 0, 0, 0, 0, 0, list(entries))
    return judge(board, death, base_s=1.0, cap_s=60.0)


def events(settlements: list[Settlement]) -> dict[int, str]:
    return {item.id: item.outcome.event for item in settlements}


def test_a_death_charges_the_one_job_that_ran() -> None:
    """The promise: one death, one job, one crash; everything else untouched."""
    settled = after(BY_ITSELF, entry(1, Phase.STARTED), entry(2, Phase.CLAIMED), entry(3, Phase.RETURNED, event="done"))
    assert events(settled) == {1: "crashed", 2: "released", 3: "done"}
    assert culprit(settled) == 1
    assert "SIGKILL" in (settled[0].outcome.error or "")


def test_several_running_jobs_are_suspects_and_nobody_is_charged() -> None:
    settled = after(BY_ITSELF, entry(1, Phase.STARTED), entry(2, Phase.STARTED), entry(3, Phase.CLAIMED))
    assert events(settled) == {1: "suspect", 2: "suspect", 3: "released"}
    assert culprit(settled) is None
    assert "2" in (settled[0].outcome.error or "")


def test_a_kill_for_a_deadline_charges_that_job_a_failure_and_its_neighbours_nothing() -> None:
    death = Death("worker 1 (pid 7): killed by SIGKILL (9)", "deadline")
    settled = after(death, entry(1, Phase.STARTED, killed=True), entry(2, Phase.STARTED), entry(3, Phase.CLAIMED))
    assert events(settled) == {1: "failed", 2: "interrupted", 3: "released"}
    assert settled[0].outcome.reason == "timeout"


@pytest.mark.parametrize("caused", ["drain", "fence", "recycle"])
def test_a_death_the_parent_caused_charges_nobody(caused: str) -> None:
    settled = after(Death("ended", caused), entry(1, Phase.STARTED), entry(2, Phase.CLAIMED))
    assert events(settled) == {1: "interrupted", 2: "released"}
    assert culprit(settled) is None


def test_a_fault_of_the_worker_charges_only_what_repeats_it_alone() -> None:
    """A handler that breaks the worker's own code once came back for ever, uncharged."""
    fault = Death("worker 1 (pid 7): it failed by itself (exit code 70)", "fault")
    assert events(after(fault, entry(1, Phase.STARTED), entry(2, Phase.CLAIMED))) == {1: "suspect", 2: "released"}
    together = after(fault, entry(1, Phase.STARTED, suspect=True), entry(2, Phase.STARTED))
    assert events(together) == {1: "suspect", 2: "suspect"}
    again = after(fault, entry(1, Phase.STARTED, suspect=True), entry(3, Phase.RETURNED, event="done"))
    assert events(again) == {1: "crashed", 3: "done"}
    assert "failed by itself" in (again[0].outcome.error or "")


def test_what_had_returned_keeps_its_own_outcome() -> None:
    """A worker that dies between a handler's end and the ack costs that job nothing."""
    settled = after(
        BY_ITSELF,
        entry(1, Phase.RETURNED, event="failed", error="ValueError: no", delay=2.5, reason="retry"),
        entry(2, Phase.RETURNED, event="dead", error="bad", reason="payload"),
        entry(3, Phase.RETURNED, event="snoozed", delay=9.0),
    )
    outcomes = {item.id: item.outcome for item in settled}
    assert (outcomes[1].event, outcomes[1].error, outcomes[1].delay) == ("failed", "ValueError: no", 2.5)
    assert (outcomes[2].event, outcomes[2].reason) == ("dead", "payload")
    assert (outcomes[3].event, outcomes[3].delay) == ("snoozed", 9.0)


def test_every_settlement_carries_the_token_of_its_run() -> None:
    assert [(item.id, item.token) for item in after(BY_ITSELF, entry(4, Phase.CLAIMED), entry(5, Phase.STARTED))] == [
        (4, 104),
        (5, 105),
    ]


@pytest.mark.parametrize(
    ("code", "oom", "words"),
    [
        (-11, False, "SIGSEGV"),
        (-9, True, "out-of-memory"),
        (-9, False, "SIGKILL"),
        (0, False, "os._exit(0)"),
        (3, False, "3"),
    ],
)
def test_a_death_is_said_with_its_cause(code: int, oom: bool, words: str) -> None:
    text = say_death(2, 4711, code, oom=oom)
    assert words in text
    assert "worker 2 (pid 4711)" in text
