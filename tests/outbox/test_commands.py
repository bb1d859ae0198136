"""The commands of the outbox, and what health says of it."""

import json
import os
import subprocess
import sys
from typing import Any

from supervisor import NewEvent, publish_many
from tests.support.database import Database
from tests.support.relay import REPO


def command(db: Database, *words: str) -> tuple[int, str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR_")}
    env.pop("COLUMNS", None)
    env["SUPERVISOR_DATABASE_URL"] = db.conninfo
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", *words], env=env, cwd=REPO, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def answer(db: Database, *words: str) -> dict[str, Any]:
    code, out, err = command(db, *words, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def park(db: Database, count: int) -> list[int]:
    """As refused events, without a relay."""
    made = publish_many(db.connect(), [NewEvent("a" if n % 2 else "b", {"n": n}, key="k") for n in range(count)])
    db.execute(
        "with gone as (delete from supervisor.outbox returning *) insert into supervisor.outbox_parked"
        " (id, created_at, attempts, part, topic, key, event_id, payload, headers, last_error)"
        " select id, created_at, 3, part, topic, key, event_id, payload, headers, 'no [bold]stream' from gone"
    )
    return [one.id for one in made]


def test_parked_events_are_listed_replayed_and_dropped(db: Database) -> None:
    db.execute("alter table supervisor.outbox alter id restart with 3000000000")  # B11: above 2^31
    ids = park(db, 5)
    assert ids == list(range(3_000_000_000, 3_000_000_005))
    listed = answer(db, "outbox", "list")
    assert [event["id"] for event in listed["events"]] == ids
    assert listed["events"][0]["last_error"] == "no [bold]stream"
    assert "no [bold]stream" in command(db, "outbox", "list")[1]

    assert answer(db, "outbox", "drop", str(ids[0]))["dropped"] == 1
    code, _, err = command(db, "outbox", "replay", str(ids[0]), str(ids[1]))
    assert (code, err) == (1, f"supervisor: not parked: {ids[0]}\n")
    assert answer(db, "outbox", "replay", "--all", "--topic", "a", "--yes")["put_back"] == 1
    assert answer(db, "outbox", "replay", "--all", "--yes")["put_back"] == 2
    assert [row[0] for row in db.rows("select id from supervisor.outbox order by id")] == ids[1:]
    assert db.value("select max(attempts) from supervisor.outbox") == 0
    pending = answer(db, "outbox", "list", "--pending", "--limit", "2")["events"]
    assert [event["id"] for event in pending] == ids[1:3]
    assert answer(db, "outbox", "list", "--sent")["events"] == []


def test_orders_that_name_nothing_or_too_much_are_refused(db: Database) -> None:
    for words in (["replay"], ["drop", "1", "--all"], ["replay", "1", "--topic", "a"], ["list", "--sent", "--pending"]):
        assert command(db, "outbox", *words)[0] == 2, words


def test_status_and_doctor_say_what_is_wrong(db: Database) -> None:
    park(db, 2)
    publish_many(db.connect(), [NewEvent("a", {"n": 1})])
    state = answer(db, "outbox", "status")
    assert (state["pending"], state["parked"], state["unled"], state["relays"]) == (1, 2, 64, [])
    assert "64 of 64 parts are led by no relay" in command(db, "outbox", "status")[1]
    code, out, _ = command(db, "doctor", "--json")
    found = [finding for finding in json.loads(out)["findings"] if finding["check"] == "outbox"]
    assert code != 0
    assert {finding["level"] for finding in found} == {"problem"}
    assert "no relay runs" in found[0]["what"]
    assert "2 events were refused by the broker and are parked" in found[1]["what"]
