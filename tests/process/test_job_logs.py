"""Log lines of handlers and of jobs: each names its job, whoever wrote it and wherever it ran."""

import json
from collections.abc import Callable

from supervisor import exits
from tests.support.database import Database
from tests.support.jobs import enqueue, wait_done
from tests.support.service import Event, Service
from tests.support.waiting import wait_until

Start = Callable[..., Service]
TELLING = "tests.support.telling_handlers"


def of_job(one: Service, job_id: int) -> list[Event]:
    return [event for event in one.log if event.get("job_id") == job_id]


def test_each_line_written_while_a_handler_runs_names_its_job(db: Database, service: Start) -> None:
    """By structlog and by the standard library; in the task, in tasks and threads it made, and in a plain handler."""
    one = service(handlers=TELLING, processes=1, name="shop")
    [first] = enqueue(db, "l.async", queue="mail")
    [second] = enqueue(db, "l.sync")
    wait_done(db, 2)
    assert one.stop() == exits.OK
    for job_id, kind, queue, ways in (
        (first, "l.async", "mail", ["async", "async's task", "async's thread"]),
        (second, "l.sync", "default", ["sync"]),
    ):
        for event in ("told.structured", "told.standard"):
            told = [line for line in of_job(one, job_id) if line["event"] == event]
            assert sorted(line["way"] for line in told) == ways
            for line in told:
                assert (line["kind"], line["queue"], line["attempt"]) == (kind, queue, 1)
                assert (line["worker"], line["slot"], line["logger"]) == ("shop/0", 0, "shop.mail")
    # What handlers print is theirs: it stays as it is.
    assert "printed by a handler" in one.stdout().splitlines()
    assert "printed to stderr by a handler" in one.noise
    assert [line for line in one.log if line["event"].startswith("told.") and "job_id" not in line] == []


def test_what_one_job_binds_the_next_does_not_see(db: Database, service: Start) -> None:
    """A job was once started in the context of the one that had ended, and its lines carried that one's facts."""
    one = service(handlers=TELLING, processes=1, concurrency=1)
    ids = [enqueue(db, kind)[0] for kind in ("l.async", "l.sync", "l.async", "l.sync", "l.async")]
    wait_done(db, 5)
    assert one.stop() == exits.OK
    for job_id in ids:
        lines = [line for line in of_job(one, job_id) if line["event"].startswith("told.")]
        assert lines
        assert {line["mood"] for line in lines} == {"none"}
        assert not any("left_by" in line for line in lines)
    assert not any("left_by" in line for line in one.log)


def test_jobs_that_run_at_once_do_not_lend_each_other_their_names(db: Database, service: Start) -> None:
    one = service(handlers=TELLING, processes=1, concurrency=10)
    ids = enqueue(db, "l.together", count=10)
    wait_done(db, 10)
    assert one.stop() == exits.OK
    for job_id in ids:
        said = [(line["event"], line["way"]) for line in of_job(one, job_id)]
        assert sorted(said) == [
            ("told.standard", "after"),
            ("told.standard", "before"),
            ("told.structured", "after"),
            ("told.structured", "before"),
        ]


def test_a_field_that_a_handler_names_itself_is_left_as_it_is(db: Database, service: Start) -> None:
    one = service(handlers=TELLING, processes=1)
    enqueue(db, "l.own_id")
    wait_done(db, 1)
    line = one.wait_event("told.own")
    assert (line["job_id"], line["kind"]) == ("of the shop", "l.own_id")
    assert one.stop() == exits.OK


def test_a_failure_is_one_line_and_a_flood_of_them_a_line_a_second(db: Database, service: Start) -> None:
    """Each is counted: those that have a line and those held back are all there were."""
    one = service(handlers=TELLING, processes=1)
    [job_id] = enqueue(db, "l.fails", max_attempts=2)
    died = one.wait_event("job.dead", job_id=job_id)
    failed = one.wait_event("job.failed", job_id=job_id)
    assert (failed["attempt"], failed["max_attempts"], failed["error"]) == (1, 2, "Retry: no stamps left")
    assert 0 <= failed["retry_in_s"] <= 0.01
    assert (died["attempt"], died["reason"], died["level"]) == (2, "attempts", "error")
    enqueue(db, "l.fails", count=500, max_attempts=2)
    wait_until(lambda: db.value("select count(*)::int from supervisor.dead_letter") == 501, 30, "all of them are dead")
    assert one.stop() == exits.OK
    for event, count in (("job.failed", 501), ("job.dead", 501)):
        lines = one.events(event, kind="l.fails")
        assert 2 <= len(lines) <= 20
        assert sum(("job_id" in line) + line.get("suppressed", 0) for line in lines) == count


def test_at_debug_a_job_is_told_from_start_to_end(db: Database, service: Start) -> None:
    one = service(handlers=TELLING, processes=1, log_level="debug")
    [async_id] = enqueue(db, "l.together")
    [failing] = enqueue(db, "l.fails", max_attempts=2)
    wait_done(db, 1)
    one.wait_event("job.dead", job_id=failing)
    one.wait_event("job.done", job_id=async_id)
    assert one.stop() == exits.OK
    events = [line["event"] for line in of_job(one, async_id)]
    assert events[0] == "job.started"
    assert events[-1] == "job.done"
    assert [line["event"] for line in of_job(one, failing)] == ["job.started", "job.failed", "job.started", "job.dead"]
    assert "no stamps left" in json.dumps(of_job(one, failing))
