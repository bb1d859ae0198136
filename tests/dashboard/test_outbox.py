"""The outbox's page: what waits, what is parked and why, who publishes; replay and drop; text from events is text."""

from collections.abc import Callable

import pytest

from supervisor import NewEvent, publish_many
from tests.support.browser import PHONE, Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database

Start = Callable[..., Dashboard]
MARKUP = "<script>alert(1)</script>{{ 7*7 }}"


def park(db: Database, *events: NewEvent, error: str = "no stream takes the subject 'orders.created'") -> list[int]:
    """Parked events, as a relay leaves them; their ids."""
    ids = [event.id for event in publish_many(db.connect(), list(events))]
    db.execute(
        "with gone as (delete from supervisor.outbox where id = any(%s) returning *) insert into"
        " supervisor.outbox_parked (id, created_at, attempts, part, topic, key, event_id, payload, headers, last_error)"
        " select id, created_at, 10, part, topic, key, event_id, payload, headers, %s from gone",
        [ids, error],
    )
    return ids


def add_relay(db: Database, name: str, detail: str) -> None:
    db.execute(
        "insert into supervisor.relay (id, name, host, pid, version, broker, state, detail, expires_at)"
        " values (7, %s, 'h', 1, '0', 'nats://h', 'leading', %s, now() + interval '1 hour')",
        [name, detail],
    )


def parked(db: Database) -> list[int]:
    return [row[0] for row in db.rows("select id from supervisor.outbox_parked order by id")]


def test_it_shows_parked_events_and_relays_as_text(db: Database, dashboard: Start) -> None:
    park(db, NewEvent(MARKUP, key=MARKUP), error=MARKUP)
    publish_many(db.connect(), [NewEvent("t"), NewEvent("t")])
    add_relay(db, MARKUP, '{"published": 1234, "broker_error": "gone <b>"}')
    page = dashboard()
    data = page.json("/outbox")
    assert (data["pending"], data["parked"], data["unled"], data["relays"], data["down"]) == (2, 1, 64, 1, 1)
    assert data["parked_events"][0]["last_error"] == MARKUP
    text = page.get("/outbox").text
    assert "<script>alert" not in text
    assert "gone &lt;b&gt;" in text
    assert "1,234" in text


def test_chosen_events_are_replayed_and_dropped(db: Database, dashboard: Start, browser: Browser) -> None:
    """Also one whose id is above 2^53, where a browser's own numbers end."""
    db.execute("alter table supervisor.outbox alter id restart with 9007199254740993")
    ids = park(db, *(NewEvent("orders.created", {"n": n}, key=f"order-{n}") for n in range(4)))
    page = dashboard()
    browser.open(f"{page.address}/outbox")
    for one in ids[:2]:
        browser.one(f"input[value='{one}']").click()
    browser.one("button[value=replay]").click()
    browser.wait_text("2 of the chosen events are back in the outbox", ".notice.good")
    assert [row[0] for row in db.rows("select id from supervisor.outbox order by id")] == ids[:2]
    assert parked(db) == ids[2:]
    browser.one(f"input[value='{ids[2]}']").click()
    browser.one("#drop summary").click()
    browser.one("button[value=drop]").click()
    browser.wait_text("1 of the chosen events are dropped", ".notice.good")
    assert parked(db) == ids[3:]
    assert db.value("select count(*)::int from supervisor.outbox") == 2
    browser.quiet()


def test_odd_orders_are_refused_and_read_only_changes_nothing(db: Database, dashboard: Start) -> None:
    [one] = park(db, NewEvent("t", key="k"))
    page = dashboard()
    for form, status in (
        ({"order": "publish", "id": one}, 400), ({"order": "drop"}, 400), ({"order": "drop", "id": "1e3"}, 400),
        ({"order": "drop", "id": str(2**63)}, 400), ({"order": "replay", "id": ["1"] * 201}, 400),
    ):  # fmt: skip
        assert page.order("/outbox/order", form_page="/outbox", **form).status_code == status, form
    # No token, another's token, another's origin: none of it is an order.
    assert page.client.post("/outbox/order", data={"order": "drop", "id": one}).status_code == 403
    stolen = {"form_token": "0" * 64, "order": "drop", "id": one}
    assert page.client.post("/outbox/order", data=stolen).status_code == 403
    quiet = dashboard(dashboard_read_only=True)
    assert quiet.order("/outbox/order", order="drop", id=one).status_code == 403
    assert 'value="drop"' not in quiet.get("/outbox").text
    assert parked(db) == [one]

    said = page.order("/outbox/order", form_page="/outbox", order="replay", id=[one, one + 1])
    assert said.status_code in (200, 303)
    answer = page.client.post(
        "/outbox/order",
        data={"form_token": page.form_token(), "order": "drop", "id": one},
        headers={"accept": "application/json"},
    )
    assert (answer.status_code, answer.json()["missing"]) == (409, 1)
    assert parked(db) == []


@pytest.mark.parametrize("look", ["wide", "dark", "phone"])
def test_it_fits_its_window_and_is_kept_as_a_picture(
    look: str, db: Database, dashboard: Start, browser: Browser
) -> None:
    park(db, *(NewEvent("orders.created", {"n": n}, key=f"order-{n}") for n in range(3)))
    park(
        db,
        NewEvent("reports.very.long.name.of.a.topic.that.somebody.has.chosen", key="customer/" + "9" * 60),
        error="its 1,205,771 bytes, with its headers, are more than the server's max_payload is 1048576",
    )
    publish_many(db.connect(), [NewEvent("orders.created") for _ in range(12)])
    add_relay(db, "shop-eu-1", '{"published": 1203477, "parked": 4, "broker_error": "nats://h: connection refused"}')
    page = dashboard()
    if look == "dark":
        browser.dark()
    elif look == "phone":
        browser.size(*PHONE)
    browser.open(f"{page.address}/outbox")
    browser.one("#drop summary").click()
    browser.screenshot(f"{look}-outbox")
    wide, window = browser.script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= window, f"it is {wide} pixels wide in a window of {window}"
    browser.quiet()
