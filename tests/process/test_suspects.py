"""Jobs that shared a dying worker run alone next, and hold up the others no longer than they must."""

from collections.abc import Callable

from supervisor import exits
from tests.support.database import Database
from tests.support.jobs import enqueue, job, wait_done
from tests.support.service import Service

Start = Callable[..., Service]


def test_the_culprit_among_neighbours_is_found_by_running_each_alone(db: Database, service: Start) -> None:
    """Nobody is charged for the shared death; then the culprit dies alone and is charged, the others are done."""
    neighbours = enqueue(db, "t.sleep", {"seconds": 1.0}, count=5)
    [bad] = enqueue(db, "t.segv_read_sync", max_crashes=2, priority=1)
    one = service(processes=1, concurrency=6, retry_base_s=0.02)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", 20, [bad])
    wait_done(db, 5, 20)
    assert job(db, bad)["crashes"] == 2
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0") == []
    shared = one.events("worker.recovered", suspect=6)
    assert len(shared) == 1
    assert shared[0]["charged_job"] is None
    runs = db.rows(
        """select a.job_id, b.job_id from effects a join effects b on a.pid = b.pid and a.job_id <> b.job_id
            where a.note = 'start' and b.note = 'start' and a.pid <> %s
              and b.at between a.at and a.at + interval '0.9 s'""",
        [shared[0]["pid"]],
    )
    assert runs == [], "suspects ran beside others"
    assert set(db.effects("done")) == set(neighbours)
    assert one.stop() == exits.OK


def test_a_suspect_does_not_idle_a_worker_for_as_long_as_a_long_job_runs(db: Database, service: Start) -> None:
    """It once did: one crash among many, and each worker took no more jobs until its longest one had ended."""
    [long] = enqueue(db, "t.sleep", {"seconds": 12.0})
    one = service(processes=1, concurrency=4)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    [suspect] = enqueue(db, "t.effect", {"note": "alone"}, delay=3600)
    db.execute(
        "update supervisor.job set priority = priority + 1000, run_at = clock_timestamp() where id = %s", [suspect]
    )
    others = enqueue(db, "t.effect", count=10)
    wait_done(db, 10, 9)
    assert set(db.effects("done")) == set(others)
    wait_done(db, 12, 20)
    order = [
        row[0] for row in db.rows("select note from effects where job_id in (%s, %s) order by at", [long, suspect])
    ]
    assert order == ["start", "done", "alone"], "the suspect ran beside another"
    assert one.stop() == exits.OK


def test_a_suspect_that_waits_is_released_by_a_stop(db: Database, service: Start) -> None:
    enqueue(db, "t.sleep", {"seconds": 4.0})
    one = service(processes=1, concurrency=4)
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    [suspect] = enqueue(db, "t.effect", delay=3600)
    db.execute(
        "update supervisor.job set priority = priority + 1000, run_at = clock_timestamp() where id = %s", [suspect]
    )
    enqueue(db, "t.effect")
    wait_done(db, 1, 9)  # the suspect has been put aside
    assert one.stop() == exits.OK
    row = job(db, suspect)
    assert (row["status"], row["attempts"], row["suspect"]) == ("queued", 0, True)


def test_a_flood_of_suspects_does_not_starve_the_rest(db: Database, service: Start) -> None:
    """Suspects wait in lanes of their own and take at most half of a lone worker's time."""
    flood = enqueue(db, "t.sleep", {"seconds": 0.2}, count=40)
    db.execute("update supervisor.job set priority = priority + 1000 where id = any(%s)", [flood])
    others = enqueue(db, "t.sleep", {"seconds": 0.02}, count=200)
    one = service(processes=1, concurrency=4, prefetch=4)
    db.wait_for(
        "select count(*)::int from effects where note = 'done' and job_id >= %s",
        200,
        30,
        [min(others)],
    )
    still = db.value("select count(*)::int from supervisor.job where priority > 500")
    assert still > 0, "the others had to wait for the whole flood"
    wait_done(db, 240, 60)
    assert db.rows("select id from supervisor.history where attempts <> 1 or crashes <> 0 or priority <> 0") == []
    assert one.stop() == exits.OK


def test_a_suspect_that_ends_is_an_ordinary_job_again(db: Database, service: Start) -> None:
    [job_id] = enqueue(db, "t.fail", {"times": 1})
    db.execute("update supervisor.job set priority = priority + 1000 where id = %s", [job_id])
    one = service(processes=1, retry_base_s=600)
    db.wait_for("select attempts from supervisor.job where id = %s", 1, 20, [job_id])
    db.wait_for("select status from supervisor.jobs where id = %s", "queued", 20, [job_id])
    row = job(db, job_id)
    assert (row["suspect"], row["priority"]) == (False, 0)
    assert one.stop() == exits.OK
