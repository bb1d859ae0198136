"""The outbox's page: what waits, what is parked and why, who publishes; text from events is shown as text."""

from collections.abc import Callable

from supervisor import NewEvent, publish_many
from tests.support.dashboard import Dashboard
from tests.support.database import Database

MARKUP = "<script>alert(1)</script>{{ 7*7 }}"


def test_it_shows_parked_events_and_relays_as_text(db: Database, dashboard: Callable[..., Dashboard]) -> None:
    publish_many(db.connect(), [NewEvent(MARKUP, key=MARKUP), NewEvent("t"), NewEvent("t")])
    db.execute(
        "with gone as (delete from supervisor.outbox where topic <> 't' returning *) insert into"
        " supervisor.outbox_parked (id, created_at, attempts, part, topic, key, event_id, payload, headers, last_error)"
        " select id, created_at, 10, part, topic, key, event_id, payload, headers, %s from gone",
        [MARKUP],
    )
    db.execute(
        "insert into supervisor.relay (id, name, host, pid, version, broker, state, detail, expires_at)"
        " values (7, %s, 'h', 1, '0', 'nats://h', 'leading', %s, now() + interval '1 hour')",
        [MARKUP, '{"published": 1234, "broker_error": "gone <b>"}'],
    )
    page = dashboard()
    data = page.json("/outbox")
    assert (data["pending"], data["parked"], data["unled"], data["relays"], data["down"]) == (2, 1, 64, 1, 1)
    assert data["parked_events"][0]["last_error"] == MARKUP
    text = page.get("/outbox").text
    assert "<script>alert" not in text
    assert "gone &lt;b&gt;" in text
    assert "1,234" in text
