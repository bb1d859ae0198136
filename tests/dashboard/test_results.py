"""A job's page: how far it has come, what it returned, and cancelling it by force."""

from collections.abc import Callable

from supervisor import result_of
from tests.support.browser import Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.jobs import enqueue, job
from tests.support.service import Service

Start = Callable[..., Dashboard]
HANDLERS = "tests.support.result_handlers"


def test_progress_is_shown_as_it_moves(
    db: Database, dashboard: Start, service: Callable[..., Service], browser: Browser
) -> None:
    service(processes=1, handlers=HANDLERS)
    [ours] = enqueue(db, "r.progress", {"steps": 2000, "pause": 0.01})
    page = dashboard()
    browser.open(f"{page.address}/jobs/{ours}")
    browser.wait_text("of 2000", ".progress")
    bar = browser.one("progress")
    assert 0 < float(str(bar.get_attribute("value"))) < 1
    shown = page.json(f"/jobs/{ours}")["job"]
    assert shown["progress_note"] == f"step {round(shown['progress'] * 2000)} of 2000"


def test_a_result_is_shown_until_its_time_is_over(
    db: Database, dashboard: Start, service: Callable[..., Service]
) -> None:
    service(processes=1, handlers=HANDLERS)
    [ours, none, brief] = [
        enqueue(db, kind, payload)[0]
        for kind, payload in (("r.add", {"a": 1, "b": 2}), ("r.none", {}), ("r.brief", {}))
    ]
    conn = db.connect()
    assert result_of(conn, ours, timeout=10) == {"total": 3, "parts": [1, 2]}
    assert result_of(conn, none, timeout=10) is None
    db.wait_for("select count(*)::int from supervisor.history", 3)
    db.wait_for("select bool_and(expires_at < now()) from supervisor.result where job_id = %s", True, params=[brief])
    page = dashboard()
    assert page.json(f"/jobs/{ours}")["job"]["result"] == {"total": 3, "parts": [1, 2]}
    assert "&#34;total&#34;: 3" in page.get(f"/jobs/{ours}").text
    assert ">null</pre>" in page.get(f"/jobs/{none}").text
    assert "past its time" in page.get(f"/jobs/{brief}").text


def test_cancel_by_force_ends_a_handler_that_does_not_stop(
    db: Database, dashboard: Start, service: Callable[..., Service], browser: Browser
) -> None:
    one = service(processes=1)
    [deaf] = enqueue(db, "t.stubborn_sync", {"seconds": 60})
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    page = dashboard()
    browser.open(f"{page.address}/jobs/{deaf}")
    browser.one("button[value=force]").click()
    browser.wait_text("told to stop within 5 s", ".notice.good")
    db.wait_for("select status from supervisor.jobs", "cancelled")
    row = job(db, deaf)
    assert (row["reason"], row["crashes"]) == ("operator", 0)
    assert one.events("job.killed", job_id=deaf)
    assert page.order(order="force", id=deaf).status_code < 400, "it has ended: nothing is done"
    quiet = dashboard(dashboard_read_only=True)
    assert quiet.order(order="force", id=deaf).status_code == 403
