"""What is shown when the database does not do its part: a page that says so, soon, and the next one that works."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support.browser import Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.proxy import Proxy
from tests.support.roles import Roles
from tests.support.waiting import wait_until

Start = Callable[..., Dashboard]
PATHS = ("/", "/jobs", "/queues", "/health", "/jobs/1", "/jobs?status=running", "/jobs?q=x")
PATIENCE_S = 12.0


def said(answer: httpx.Response, words: str) -> None:
    assert answer.status_code == 503, answer.text[:3000]
    assert words in answer.text, answer.text[:3000]
    assert "Traceback" not in answer.text
    assert "p%40ss" not in answer.text


def test_a_database_that_is_away_is_told_and_found_again(db: Database, dashboard: Start, browser: Browser) -> None:
    enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    browser.open(f"{page.address}/")
    for path in PATHS:
        assert page.get(path).status_code == 200
    db.server.stop("fast")
    try:
        for path in PATHS:  # what was asked a moment ago may be shown once more
            wait_until(lambda path=path: page.get(path).status_code == 503, 15, f"{path} says it")  # type: ignore[misc]
            said(page.get(path), "The database does not answer")
            answer = page.get(path, headers={"accept": "application/json"})
            assert (answer.status_code, answer.json()["error"]) == (503, "The database does not answer")
        browser.one("#stale:not([hidden])", 30)
        assert "What is shown is old" in browser.text("#stale")
    finally:
        db.server.start()
    for path in PATHS:
        wait_until(lambda path=path: page.get(path).status_code == 200, 20, f"{path} is back")  # type: ignore[misc]
    wait_until(lambda: not browser.all("#stale:not([hidden])"), 40, "the open page goes on by itself")
    browser.quiet()


def test_a_frozen_database_ends_in_a_page_not_in_a_wait(db: Database, dashboard: Start) -> None:
    """Connected and silent: the worst kind. Every request is answered within its patience, and connections stay few."""
    with Proxy(db.conninfo) as proxy:
        page = dashboard(env={"SUPERVISOR_DATABASE_URL": proxy.conninfo})
        assert page.get("/jobs").status_code == 200
        proxy.freeze()
        began = time.monotonic()
        said(page.get("/jobs"), "no answer within")
        assert time.monotonic() - began < PATIENCE_S
        proxy.thaw()
        wait_until(lambda: page.get("/jobs").status_code == 200, 20, "it works again")


def test_it_stops_while_the_database_is_silent(db: Database) -> None:
    """A platform that stops it does not wait for a server that does not answer."""
    with Proxy(db.conninfo) as proxy, ThreadPoolExecutor(4) as pool:
        with Dashboard(db, env={"SUPERVISOR_DATABASE_URL": proxy.conninfo}) as page:
            assert page.get("/jobs").status_code == 200
            proxy.freeze()
            asked = [pool.submit(httpx.get, f"{page.address}/jobs", timeout=30) for _ in range(4)]
            wait_until(lambda: sum(one.running() for one in asked) == 4, 5, "four wait for an answer")
            began = time.monotonic()
        assert time.monotonic() - began < 8
        proxy.thaw()


def test_a_lock_in_the_way_ends_in_a_page(db: Database, dashboard: Start) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    form = {"form_token": page.form_token(), "id": str(job_id), "order": "cancel"}
    holder = db.connect(autocommit=False)
    holder.execute("lock table supervisor.job in access exclusive mode")
    began = time.monotonic()
    said(page.get("/jobs"), "That took too long")
    said(page.client.post("/jobs/order", data=form), "That took too long")
    assert time.monotonic() - began < 2 * PATIENCE_S
    assert page.get("/nothing").status_code == 404, "what needs no database is there"
    holder.rollback()
    assert page.get("/jobs").status_code == 200
    assert db.value("select count(*)::int from supervisor.job") == 1, "the order that was given up did nothing"


def test_a_schema_that_is_missing_is_told_with_the_remedy(blank_db: Database) -> None:
    with Dashboard(blank_db) as page:
        for path in set(PATHS) - {"/health"}:
            said(page.get(path), "supervisor migrate")
        page.wait_json("/health", lambda data: data["doctor"])
        assert "<code>supervisor migrate</code>" in page.get("/health").text


def test_a_row_that_others_hold_is_not_waited_for_for_ever(db: Database, dashboard: Start) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    holder = db.connect(autocommit=False)
    holder.execute("select from supervisor.job for update")
    said(page.order(id=str(job_id), order="reschedule"), "That took too long")
    holder.rollback()
    assert page.order(id=str(job_id), order="reschedule").status_code == 303


def test_with_the_rights_of_a_reader_and_of_an_operator(db: Database, dashboard: Start) -> None:
    """The dashboard needs no more than these roles have; what a reader may not do is refused, in words."""
    [job_id] = enqueue(db, "t.noop", delay=3600)
    roles = Roles(db)
    roles.make()
    try:
        for purpose in ("reader", "operator"):
            page = dashboard(env={"SUPERVISOR_DATABASE_URL": roles.login(purpose)})
            for path in (*PATHS, f"/jobs/{job_id}"):
                assert page.get(path).status_code == 200, (purpose, path)
            answer = page.order(id=str(job_id), order="reschedule")
            paused = page.order("/queues/order", queue="default", order="pause")
            if purpose == "reader":
                said(answer, "permission denied")
                said(paused, "permission denied")
            else:
                assert (answer.status_code, paused.status_code) == (303, 303)
    finally:
        roles.drop()
    assert db.value("select count(*)::int from supervisor.queue") == 1


def test_many_at_once_share_few_connections(db: Database, dashboard: Start) -> None:
    many = 40
    enqueue(db, "t.noop", count=100, delay=3600)
    page = dashboard()
    with ThreadPoolExecutor(many) as pool:
        codes = list(pool.map(lambda n: page.get(PATHS[n % len(PATHS)]).status_code, range(many * 5)))
    assert set(codes) == {200}
    assert len(db.server_sessions("pg-supervisor dashboard")) <= 4
