"""Jobs at gates on the pages: how many wait, for what one waits, and a dead one that holds its key lets it go."""

from collections.abc import Callable

import pytest

from tests.support.browser import Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.gates import MINUTE, at_gate, gated, let_in, look
from tests.support.jobs import enqueue
from tests.support.queue import Holder
from tests.support.waiting import wait_until

Start = Callable[..., Dashboard]


@pytest.fixture
def held(db: Database) -> tuple[int, int]:
    """A dead job that holds its ordering key, and the one that waits for it."""
    worker = Holder(db)
    first, second = gated(worker.conn, order="account:7", hold=True), gated(worker.conn, order="account:7")
    look(worker.conn)
    worker.settle(worker.claim().jobs, "dead", error="E")
    look(worker.conn)
    assert at_gate(db, second) == "order"
    return first, second


def test_a_click_lets_the_next_of_a_dead_jobs_key_go(
    db: Database, dashboard: Start, browser: Browser, held: tuple[int, int]
) -> None:
    first, second = held
    page = dashboard()
    browser.open(f"{page.address}/jobs/{second}")
    browser.wait_text(f"its turn in its ordering key: none waits before it\nkey of {first}", "#waits-for")
    browser.one(f"#waits-for a[href$='/jobs/{first}']").click()
    browser.wait_text("It holds its ordering key: 1 job waits behind it", "#job .notice.warn")
    assert "account:7" in browser.text("#facts")
    browser.screenshot("job-holds-its-key")
    browser.one("#orders button[value=release]").click()
    browser.wait_text("1 job no longer holding the ordering key", ".notice.good")
    wait_until(lambda: not browser.all("#orders button[value=release]"), 10, "there is nothing to let go any more")
    look(db.connect())
    assert let_in(db) == [second]
    again = page.order(id=str(first), order="release")
    assert "1 job left alone: not holding an ordering key any more." in page.get(again.headers["location"]).text
    browser.quiet()


def test_a_page_for_looking_only_has_no_such_button(db: Database, dashboard: Start, held: tuple[int, int]) -> None:
    first, second = held
    quiet = dashboard(dashboard_read_only=True)
    assert "It holds its ordering key" in quiet.get(f"/jobs/{first}").text
    assert 'value="release"' not in quiet.get(f"/jobs/{first}").text
    assert quiet.order(id=str(first), order="release").status_code == 403
    look(db.connect())
    assert at_gate(db, second) == "order"


def test_each_job_says_what_it_waits_for_and_the_queues_how_many_wait(db: Database, dashboard: Start) -> None:
    conn = db.connect()
    [parent] = enqueue(db, "k", delay=3600)
    child = gated(conn, after=[parent], queue="mail")
    room = [gated(conn, concurrency=("tenant", 1), queue="mail") for _ in range(3)]
    paced = [gated(conn, rate=("api", 2, MINUTE)) for _ in range(2)]
    look(conn)
    page = dashboard()

    def waits_for(job_id: int) -> str:
        text = page.get(f"/jobs/{job_id}").text
        return text.partition('<dd id="waits-for">')[2].partition("</dd>")[0].partition("<br>")[0]

    assert waits_for(child) == "jobs that it comes after"
    assert page.json(f"/jobs/{child}")["gate"]["parents"] == [[parent, "queued", "hold"]]
    many = gated(conn, after=enqueue(db, "k", count=12, delay=3600))
    assert "and 2 more</dd>" in page.get(f"/jobs/{many}").text
    assert f'<dd id="children"><a href="/jobs/{child}">' in page.get(f"/jobs/{parent}").text
    assert waits_for(room[2]) == "room in its concurrency key: 1 of 1 places are taken, 1 wait before it"
    assert page.json(f"/jobs/{room[1]}")["gate"]["holders"] == [room[0]]
    assert waits_for(paced[1]) == "its time in its rate key, 2/min: none waits before it"
    assert waits_for(room[0]) == ""

    shown = page.json("/queues")
    assert {name: gate["jobs"] for name, gate in shown["gates"].items()} == {
        "parents": 2, "order": 0, "concurrency": 2, "rate": 1,
    }  # fmt: skip
    by_queue = {one["queue"]: (one["waiting"], one["scheduled"], one["due"]) for one in shown["queues"]}
    assert by_queue == {"mail": (3, 0, 1), "default": (2, 13, 1)}
