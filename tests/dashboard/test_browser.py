"""The dashboard as an operator uses it: in a browser, with a supervisor that runs the jobs."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from selenium.webdriver.common.keys import Keys

from tests.db.test_cron import declare, entry
from tests.support.browser import PHONE, Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.jobs import enqueue, job
from tests.support.service import Service
from tests.support.waiting import wait_until

Start = Callable[..., Dashboard]


def test_a_click_on_retry_is_seen_to_run_the_job(
    db: Database, service: Callable[..., Service], dashboard: Start, browser: Browser
) -> None:
    """From the list of dead jobs, without a reload, by what the page itself shows."""
    [job_id] = enqueue(db, "t.fail", {"times": 1}, max_attempts=1)
    service(processes=1)
    db.wait_for("select status from supervisor.jobs where id = %s", "dead", params=[job_id])
    page = dashboard()
    browser.open(f"{page.address}/jobs?status=dead")
    browser.one(f"#job-{job_id} a").click()
    browser.wait_text("attempt 1 failed", "#timeline")

    db.execute("update supervisor.dead_letter set payload = '{\"times\": 0}' where id = %s", [job_id])
    browser.one("#orders button[value=retry]").click()

    browser.wait_text("1 job put back into the queue.", ".notice.good")
    browser.wait_text("done", "#job h1 .status")
    assert db.effects("done") == {job_id: 1}
    browser.quiet()


def test_a_running_job_is_watched_and_cancelled(
    db: Database, service: Callable[..., Service], dashboard: Start, browser: Browser
) -> None:
    [job_id] = enqueue(db, "t.sleep", {"seconds": 300})
    service(processes=1, lease_s=9)
    page = dashboard()
    browser.open(page.address)
    browser.wait_text("t.sleep", f"#run-{job_id}")
    browser.one(f"#run-{job_id} a").click()
    browser.wait_text("running", "#job h1 .status")
    assert "runs on" in browser.text("#facts")

    browser.one("#orders button[value=cancel]").click()

    browser.wait_text("1 job running and told to stop.", "main > .notice")
    browser.wait_text("cancelled", "#job h1 .status")
    browser.open(page.address)
    wait_until(lambda: not browser.all(f"#run-{job_id}"), 10, "the overview no longer shows it")
    browser.quiet()


def test_another_time_by_keyboard_alone(db: Database, dashboard: Start, browser: Browser) -> None:
    """Tab and Enter reach everything; where the focus is can be seen."""
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    browser.open(f"{page.address}/jobs/{job_id}")

    def focused() -> str:
        return str(browser.script("return document.activeElement.innerText || document.activeElement.name || ''"))

    def tab_to(wanted: str) -> None:
        for _ in range(40):
            browser.driver.switch_to.active_element.send_keys(Keys.TAB)
            if focused().strip() == wanted:
                return
        pytest.fail(f"Tab never came to {wanted!r}")

    browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert focused() == "To the content", "the first Tab leads past the navigation"
    tab_to("another time")
    outline = browser.script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is visible"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    tab_to("in")
    browser.driver.switch_to.active_element.send_keys("90", Keys.ENTER)

    browser.wait_text("1 job given another time.", ".notice.good")
    due = datetime.fromisoformat(job(db, job_id)["run_at"])
    assert timedelta(minutes=88) < due - datetime.now(UTC) < timedelta(minutes=91)


def test_what_changes_is_taken_over_in_place(db: Database, dashboard: Start, browser: Browser) -> None:
    """New rows come by themselves; focus, scroll and what is open stay; nothing is built anew."""
    enqueue(db, "t.noop", count=40, delay=3600)
    page = dashboard()
    browser.open(f"{page.address}/jobs")
    browser.script(
        "window.table = document.querySelector('#list table'); window.scrollTo(0, 300);"
        "window.link = document.querySelector('#list tbody tr:nth-child(12) a'); link.focus({preventScroll: true});"
        "window.top_before = link.getBoundingClientRect().top;"
    )

    [newest] = enqueue(db, "t.noop", delay=7200)

    browser.one(f"#job-{newest}", 15)
    assert browser.script("return table === document.querySelector('#list table')"), "the table was built anew"
    assert browser.script("return link === document.activeElement"), "the focus was lost"
    moved = browser.script("return Math.abs(link.getBoundingClientRect().top - top_before)")
    assert moved < 2, f"what was being read moved by {moved} pixels"
    browser.script("document.querySelector('input[name=id]').click()")
    [later] = enqueue(db, "t.noop", delay=7200)
    page.wait_json("/jobs", lambda data: data["jobs"][0]["id"] == later)
    assert not browser.all(f"#job-{later}"), "a list in which something is chosen stands still"
    browser.quiet()


def test_what_a_reader_has_opened_stays_open(db: Database, dashboard: Start, browser: Browser) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    browser.open(f"{page.address}/jobs/{job_id}")
    browser.one("#move summary").click()
    browser.script("document.activeElement.blur()")
    db.execute("update supervisor.job set last_error = 'fresh news', errors = '[]' where id = %s", [job_id])
    browser.wait_text("fresh news", "#timeline")
    assert browser.one("#move").get_attribute("open") is not None


def test_an_open_page_leads_to_the_login_when_its_session_ends(dashboard: Start, browser: Browser) -> None:
    page = dashboard(dashboard_token="a token of many letters")
    browser.open(page.address)
    browser.one("input[name=token]").send_keys("a token of many letters", Keys.ENTER)
    browser.one("#totals")
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.one("input[name=token]", 15)
    assert browser.driver.current_url == f"{page.address}/login?to=%2F"
    browser.quiet()


def test_chosen_jobs_are_cancelled_together(db: Database, dashboard: Start, browser: Browser) -> None:
    ids = enqueue(db, "t.noop", count=5, delay=3600, queue="mail")
    page = dashboard()
    browser.open(f"{page.address}/jobs?queue=mail&status=scheduled")
    browser.one("[data-choose-all]").click()
    browser.one(f"input[value='{ids[0]}']").click()

    browser.one("button[value=cancel]").click()

    browser.wait_text("4 jobs cancelled.", ".notice.good")
    assert browser.driver.current_url.startswith(f"{page.address}/jobs?status=scheduled&queue=mail") or (
        "queue=mail" in browser.driver.current_url
    )
    assert job(db, ids[0])["status"] == "queued"
    assert {job(db, one)["status"] for one in ids[1:]} == {"cancelled"}


def test_everything_works_without_scripts(db: Database, dashboard: Start, browser: Browser) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    browser.open(page.address)
    browser.without_scripts()
    for path in ("/", "/jobs", "/queues", "/health", f"/jobs/{job_id}"):
        browser.open(page.address + path)
        assert browser.all("main h1"), path
    browser.one("#orders button[value=cancel]").click()
    browser.wait_text("1 job cancelled.")
    assert job(db, job_id)["status"] == "cancelled"


def test_a_queue_is_paused_limited_and_opened_again(db: Database, dashboard: Start, browser: Browser) -> None:
    enqueue(db, "t.noop", queue="mail", count=3)
    page = dashboard()
    browser.open(f"{page.address}/queues")
    browser.one("button[value=pause]").click()
    browser.wait_text("The queue is paused", ".notice.good")
    assert browser.one(".badge").text == "paused"
    assert db.value("select paused_by from supervisor.queue where name = 'mail'") == "the dashboard"
    browser.open(page.address)
    assert "Queue mail is paused, and 3 jobs wait." in browser.text("#remarks")

    browser.open(f"{page.address}/queues")
    browser.one("button[value=resume]").click()
    browser.wait_text("gives jobs again", ".notice.good")
    browser.one("summary").click()
    browser.one("input[name=max_running]").send_keys("2", Keys.ENTER)
    browser.wait_text("The limit is set", ".notice.good")
    assert db.value("select max_running from supervisor.queue where name = 'mail'") == 2
    assert browser.one(".badge").text == "uncounted", "no supervisor runs"
    browser.one("summary").click()
    browser.one("input[name=rate]").send_keys("100/min", Keys.ENTER)
    browser.wait_text("The rate is set", ".notice.good")
    assert "at most 2 run" in browser.text("#queues")
    assert "100/min start" in browser.text("#queues")
    browser.one("summary").click()
    browser.one("input[name=rate]").send_keys("2/week", Keys.ENTER)
    browser.wait_text("must be like 10/s")
    assert db.value("select rate_limit from supervisor.queue where rate_period = '1 min'") == 100


@pytest.mark.parametrize("look", ["wide", "dark", "phone"])
def test_every_page_fits_its_window_and_is_kept_as_a_picture(
    look: str, db: Database, service: Callable[..., Service], dashboard: Start, browser: Browser
) -> None:
    """No page is wider than its window; the pictures are for people to look at."""
    service(processes=2, concurrency=3, lease_s=9, name="shop-eu-1")
    running, dead = _busy(db)
    page = dashboard(dashboard_token="a token of many letters")
    if look == "dark":
        browser.dark()
    elif look == "phone":
        browser.size(*PHONE)

    browser.open(page.address)
    browser.screenshot(f"{look}-login")
    browser.one("input[name=token]").send_keys("a token of many letters", Keys.ENTER)
    browser.one("#totals")
    shown = {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-running": "/jobs?status=running",
        "jobs-search": '/jobs?status=dead&q={"user_id":+7}',
        "job-dead": f"/jobs/{dead[0]}",
        "job-crashed": f"/jobs/{dead[-1]}",
        "job-running": f"/jobs/{running[0]}",
        "queues": "/queues",
        "schedules": "/schedules",
        "health": "/health",
        "not-found": "/jobs/987654321",
    }
    for name, path in shown.items():
        browser.open(page.address + path)
        if name == "overview":
            browser.one(f"#run-{running[0]}")
        if name == "health":
            wait_until(lambda: "It is being examined" not in browser.text("#doctor"), 15, "the doctor's findings")
        browser.screenshot(f"{look}-{name}")
        wide, window = browser.script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= window, f"{path} is {wide} pixels wide in a window of {window}"
        browser.quiet()


def _busy(db: Database) -> tuple[list[int], list[int]]:
    """A queue as after an hour of work: running and dead jobs, and counts by minute; (running, dead)."""
    dead = enqueue(db, "t.cancel", {"reason": "the customer is gone"}, count=2, queue="billing")
    dead += enqueue(db, "t.fail", {}, count=2, queue="email", max_attempts=1)
    dead += enqueue(db, "t.noop", {"user_id": 7, "note": "no such parameter"}, queue="email")
    dead += enqueue(db, "t.exit", {}, queue="billing", max_crashes=1)
    db.wait_for("select count(*)::int from supervisor.dead_letter", len(dead), 30)
    running = enqueue(db, "t.sleep", {"seconds": 600}, count=3)
    running += enqueue(db, "t.sleep_sync", {"seconds": 600}, count=2, queue="report")
    db.wait_for("select count(*)::int from supervisor.job where lease is not null", len(running))
    enqueue(db, "t.noop", count=1200, queue="report", delay=3600)
    night = entry("report.daily", "report.daily", cron="30 2 * * *", tz="America/Argentina/ComodRivadavia")
    monthly = entry("report.daily:monthly", "report.daily", cron="0 6 L * *", missed=3)
    declare(db, night, monthly, kinds=("report.daily",), ttl_s=3600.0)
    db.rows("select supervisor.set_schedule('report.daily', cron => '15 3 * * MON-FRI', by => 'ann')")
    db.rows("select supervisor.pause_schedule('report.daily:monthly', by => 'ann')")
    enqueue(db, "t.noop", count=30, queue="imports")
    db.execute(
        "insert into supervisor.tally select date_trunc('minute', now()) - n * interval '1 min', q, e,"
        " (k * (1.2 + sin(n / 6.0)) * (0.6 + random()))::int from generate_series(1, 59) n,"
        " (values ('default', 40), ('email', 90), ('report', 8), ('billing', 15)) v(q, k),"
        " (values ('done'), ('failed')) w(e) where e = 'done' or (n between 20 and 24 and q = 'email')"
    )
    return running, dead
