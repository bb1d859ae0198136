"""The page of cron entries: next runs as they are fired, pause and run now, text shown as text."""

from collections.abc import Callable
from datetime import datetime

from tests.db.test_cron import declare, entry
from tests.support.browser import Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database

MARKUP = "<script>alert(1)</script>{{ 7*7 }}"
Start = Callable[..., Dashboard]


def test_an_entry_is_paused_run_and_resumed(db: Database, dashboard: Start, browser: Browser) -> None:
    declare(db, entry("report", "k", cron="30 2 * * *", tz="Europe/Paris"))
    page = dashboard()
    browser.open(f"{page.address}/schedules")
    browser.one("button[value=pause]").click()
    browser.wait_text("The entry is paused", ".notice.good")
    assert browser.one(".badge").text == "paused"
    assert db.value("select paused_by from supervisor.schedule") == "the dashboard"
    browser.one("button[value=run]").click()
    browser.wait_text("A job of the entry was added.", ".notice.good")
    assert db.rows("select kind, headers ->> 'run_by' from supervisor.job") == [("k", "the dashboard")]
    browser.one("button[value=resume]").click()
    browser.wait_text("runs again", ".notice.good")
    assert db.value("select paused_at from supervisor.schedule") is None


def test_what_it_shows_is_what_will_be_fired_and_texts_are_texts(db: Database, dashboard: Start) -> None:
    declare(db, entry(MARKUP, "k", cron="0 * * * *"), entry("gone", "k"))
    declare(db, entry(MARKUP, "k", cron="0 * * * *"))
    db.execute("update supervisor.schedule set next_at = date_trunc('hour', clock_timestamp()) + interval '3 hours'")
    db.rows("select supervisor.set_schedule(%s, missed => 7, by => %s)", [MARKUP, MARKUP])
    page = dashboard()
    [one, gone] = page.json("/schedules")["schedules"]
    assert datetime.fromisoformat(one["next_runs"][0]) == db.value(
        "select next_at from supervisor.schedule where name <> 'gone'"
    )
    assert (one["missed"], one["defined_missed"], one["state"]) == ("7", "once", "open")
    assert (gone["state"], gone["next_runs"]) == ("retired", [])
    text = page.get("/schedules").text
    assert "<script>alert" not in text
    assert "{{ 7*7 }}" in text


def test_odd_orders_are_refused_and_read_only_changes_nothing(db: Database, dashboard: Start) -> None:
    declare(db, entry())
    page = dashboard()
    for form, status in (
        ({"order": "drop", "name": "k"}, 400), ({"order": "pause", "name": "nobody"}, 409), ({"order": "run"}, 409),
    ):  # fmt: skip
        assert page.order("/schedules/order", **form).status_code == status, form
    quiet = dashboard(dashboard_read_only=True)
    assert quiet.order("/schedules/order", order="pause", name="k").status_code == 403
    assert "Run now" not in quiet.get("/schedules").text
    assert db.value("select paused_at from supervisor.schedule") is None
    assert db.value("select count(*)::int from supervisor.job") == 0
