"""Numbers added up first are those that single writes would give; what a death left uncounted is counted once."""

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.samples import Sample

from supervisor.db.gates import Gate, Gates
from supervisor.db.health import Depth, Depths, Holder, HolderKind, TableHealth
from supervisor.db.jobs import Settlement
from supervisor.db.queues import QueueSettings
from supervisor.metrics import BatchedCounter, BatchedHistogram, Facts, register_labels
from supervisor.metrics.facts import FACTS
from supervisor.outcome import Outcome
from supervisor.parent.deaths import death_word
from supervisor.parent.gauges import of_gates, of_queues, of_settings, of_tables
from supervisor.parent.recover import uncounted
from supervisor.wire.board import Board, Entry, Phase

BOUNDS = (0.1, 1.0, 5.0)
register_labels("queue", ["mail", "default"])
register_labels("kind", ["welcome"])


def samples(metric: Iterable[object]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in metric:
        for sample in family.samples:  # type: ignore[attr-defined]
            assert isinstance(sample, Sample)
            if not sample.name.endswith("_created"):
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_batched_histogram_shows_what_single_observations_would() -> None:
    values = [0.0, 0.05, 0.1, 0.1000001, 1.0, 4.9, 5.0, 5.1, 1e9]
    one, other = (
        Histogram("x_seconds", "x", ["queue", "kind"], buckets=BOUNDS, registry=CollectorRegistry()) for _ in range(2)
    )
    batched = BatchedHistogram(one, BOUNDS, "queue", "kind")
    for place, value in enumerate(values):
        batched.observe(value, ("mail", "welcome"))
        other.labels("mail", "welcome").observe(value)
        if place % 4 == 0:
            batched.flush()
    batched.flush()
    batched.flush()
    assert samples(one.collect()) == samples(other.collect())


def test_nothing_is_written_before_the_flush_and_all_of_it_after() -> None:
    counter = Counter("x_total", "x", ["queue", "outcome"], registry=CollectorRegistry())
    batched = BatchedCounter(counter, "queue", "outcome")
    for queue in ("mail", "mail", "somebody's"):
        batched.inc((queue, "done"))
    assert samples(counter.collect()) == {}
    batched.flush()
    assert samples(counter.collect()) == {
        ("x_total", (("outcome", "done"), ("queue", "mail"))): 2,
        ("x_total", (("outcome", "done"), ("queue", "other"))): 1,
    }


# -- what a dead worker had not counted ------------------------------------------------------------


def entry(board: Board, job_id: int, event: str | None, queue: int = 1) -> Entry:
    """A job on the board: returned with *event*, or still running."""
    index = board.claim(job_id, 1, "welcome", queue=queue)
    board.start(index)
    if event is not None:
        board.return_(index, event)
    return next(found for found in board.read().entries if found.job_id == job_id)


def settlement(job_id: int, event: str) -> Settlement:
    return Settlement(job_id, 1, Outcome(event))


@pytest.mark.parametrize(("begun", "counted"), [(0, 3), (2, 1), (3, 0), (5, 0)])
def test_runs_that_were_stored_before_the_death_are_counted_as_far_as_the_worker_had_not(
    begun: int, counted: int
) -> None:
    board = Board.create(8)
    for job_id in (1, 2, 3):
        entry(board, job_id, "done", queue=2)
    told = [settlement(job_id, "done") for job_id in (1, 2, 3)]
    ended, released = uncounted(board.read(), told, {}, live=True, begun=begun)
    assert [(one.queue, outcome) for one, outcome in ended] == [(2, "done")] * counted
    assert released == []
    board.close()


def test_a_run_whose_lease_was_lost_is_not_counted() -> None:
    board = Board.create(8)
    entry(board, 1, "done")
    assert uncounted(board.read(), [settlement(1, "done")], {}, live=False, begun=0) == ([], [])
    board.close()


def test_what_the_parent_settles_is_counted_by_what_became_of_the_job() -> None:
    board = Board.create(8)
    entry(board, 1, "done")
    entry(board, 2, "failed")
    entry(board, 3, "failed")
    entry(board, 4, None)
    waiting = board.claim(5, 1, "welcome")
    gave_back = board.claim(6, 1, "welcome")
    board.return_(gave_back, "released", reason="drain")
    told = [
        settlement(1, "done"), settlement(2, "failed"), settlement(3, "failed"), settlement(4, "crashed"),
        settlement(5, "released"), settlement(6, "released"),
    ]  # fmt: skip
    became = {1: "done", 2: "queued", 3: "dead", 4: "queued", 5: "queued", 6: "queued"}
    ended, released = uncounted(board.read(), told, became, live=True, begun=0)
    assert {one.job_id: outcome for one, outcome in ended} == {1: "done", 2: "failed", 3: "dead", 4: "crashed"}
    assert [one.job_id for one in released] == [5, 6]
    assert next(one for one in board.read().entries if one.index == waiting).phase is Phase.CLAIMED
    board.close()


def test_a_death_is_one_of_few_words() -> None:
    words = {death_word(code) for code in (*range(-64, 256), None)}
    assert {"SIGKILL", "SIGSEGV", "exit", "exit 70", "unknown"} <= words
    assert len(words) < 80
    assert (death_word(-9), death_word(7), death_word(0)) == ("SIGKILL", "exit", "exit 0")


# -- the database's figures ------------------------------------------------------------------------


def test_queues_that_nobody_named_are_added_up_and_of_ages_the_greatest_counts() -> None:
    depths = Depths(
        (
            Depth("mail", due=3, scheduled=1, running=2, dead=4, oldest_due_s=7.5, oldest_running_s=1.0),
            Depth("x1", due=10, oldest_due_s=5.0),
            Depth("x2", due=20, oldest_due_s=9.0),
        ),
        limit=100,
        lanes=3,
    )
    found = of_queues(depths)
    assert found["queue_jobs"]["mail", "due"] == 3
    assert found["queue_jobs"]["mail", "dead"] == 4
    assert found["queue_jobs"]["other", "due"] == 30
    assert found["queue_jobs"]["default", "due"] == 0, "known queues are there from the start"
    assert found["queue_oldest_seconds"]["other", "due"] == 9.0
    assert found["queue_oldest_seconds"]["mail", "running"] == 1.0
    assert not {queue for queue, _ in found["queue_jobs"]} - {"mail", "default", "other"}


def test_what_took_too_long_to_count_is_missing_and_not_zero() -> None:
    found = of_queues(Depths((Depth("mail", due=3, running=None), Depth("default", running=2))))
    assert not [key for key in (*found["queue_jobs"], *found["queue_oldest_seconds"]) if key[1] == "running"]
    assert found["queue_jobs"]["mail", "due"] == 3


def test_a_paused_queue_is_told_and_a_limit_shown() -> None:
    settings = [
        QueueSettings("mail", datetime.now(UTC), "me", None, None, False, None, paused_s=70.0),
        QueueSettings("default", None, None, 7, datetime.now(UTC), True, 3, 120, 60.0, rate_free=0),
        QueueSettings("x1", None, None, 9, datetime.now(UTC), True, 9),
        QueueSettings("x2", None, None, 9, datetime.now(UTC), False, 0, 5, 1.0, rate_free=2),
    ]
    found = of_settings(
        settings, Depths((Depth("mail", due=3), Depth("default", due=8), Depth("x1", due=5), Depth("x2", due=7)))
    )
    assert found["queue_paused"] == {("mail",): 1.0, ("default",): 0.0, ("other",): 0.0}
    assert found["queue_paused_seconds"] == {("mail",): 70.0, ("default",): 0.0, ("other",): 0.0}
    assert found["queue_running_limit"] == {("default",): 7}
    assert found["queue_rate_limit"] == {("default",): 2.0}
    assert found["queue_held_jobs"] == {
        ("mail", "paused"): 3, ("default", "max_running"): 0, ("default", "rate"): 8,
        ("other", "max_running"): 5 + 7, ("other", "rate"): 0,
    }  # fmt: skip


def test_of_gates_nothing_is_told_while_counting_takes_too_long() -> None:
    assert of_gates(None) == {}
    found = of_gates(Gates({"order": Gate(3, 7.5), "rate": Gate(0, 0.0)}, 1.5))
    assert found == {
        "gate_jobs": {("order",): 3, ("rate",): 0},
        "gate_oldest_seconds": {("order",): 7.5, ("rate",): 0.0},
        "gate_late_seconds": {(): 1.5},
    }


def health(*holders: Holder) -> TableHealth:
    return TableHealth((), (), holders, (), 0.0, 5, 100, True, 10, 200, 1000.0)


def holder(kind: HolderKind, age_s: float | None, name: str = "psql", xids: int = 5) -> Holder:
    return Holder(kind, name, 1, "u", "active", None, age_s, xids)


def test_snapshots_are_told_by_what_holds_them_never_by_pid_or_name() -> None:
    found = of_tables(
        health(
            holder(HolderKind.SESSION, 30.0),
            holder(HolderKind.SESSION, 90.0, "report"),
            holder(HolderKind.SESSION, 5.0, "pg-supervisor handler"),
            holder(HolderKind.SLOT, None, "left", xids=77),
        )
    )
    ages = {"session": 90.0, "supervisor": 5.0, "standby": 0.0, "prepared": 0.0}
    assert found["oldest_snapshot_seconds"] == {(owner,): age for owner, age in ages.items()}
    assert found["oldest_snapshot_transactions"]["slot",] == 77


def test_an_age_that_the_role_may_not_see_is_missing_and_not_zero() -> None:
    found = of_tables(health(holder(HolderKind.SESSION, None)))
    assert ("session",) not in found["oldest_snapshot_seconds"]
    assert found["oldest_snapshot_transactions"]["session",] == 5


def test_figures_that_are_older_than_they_are_good_for_are_left_off() -> None:
    now = [100.0]
    facts = Facts(now=lambda: now[0])
    facts.ask(lambda: {"refresh_age_seconds": {("queues",): now[0] - 100.0}})
    facts.put("queues", {"queue_lanes": {(): 3.0}}, good_for_s=30)
    shown = samples(facts.collect())
    assert shown["supervisor_queue_lanes", ()] == 3.0
    now[0] += 31
    shown = samples(facts.collect())
    assert ("supervisor_queue_lanes", ()) not in shown
    assert shown["supervisor_refresh_age_seconds", (("figures", "queues"),)] == 31.0
    facts.put("queues", {"queue_lanes": {(): 4.0}}, good_for_s=30)
    assert samples(facts.collect())["supervisor_queue_lanes", ()] == 4.0


def test_only_what_is_described_can_be_shown() -> None:
    facts = Facts()
    facts.put("x", {"nobody_described": {(): 1.0}}, good_for_s=30)
    with pytest.raises(KeyError):
        list(facts.collect())
    assert all(one.help.endswith(".") for one in FACTS.values())
