"""Cron in running services: each tick once, whoever dies; what was missed, paused, retired, defined twice.

Ticks are counted in the database: every job of an entry carries its tick, and the rows of jobs and history
together are all that were ever added. Entries have seconds, so a test sees many in a short time; they allow all
missed ticks unless a test is about that, so a slow machine delays ticks and loses none.

Elsewhere: ticks and clock changes (tests/unit/test_cron.py); the statements (tests/db/test_cron.py).
"""

import json
import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.database import Database
from tests.support.faketime import FAKETIME, environment
from tests.support.service import Service
from tests.support.sizes import FULL
from tests.support.tools import missing
from tests.support.waiting import wait_until

Start = Callable[..., Service]
EACH = {"cron": "* * * * * *", "missed": 1000}
QUICK = {
    "processes": 1,
    "lease_s": 2.0,
    "renew_every_s": 0.5,
    "handlers": "tests.support.cron_handlers",
    "keep_payload": True,
}
NEVER = "0 0 29 2 *"
SECOND = timedelta(seconds=1)
CLAIMS = """
create table claimed (kind text, at timestamptz);
create function note_claim() returns trigger language plpgsql as $$ begin
    insert into claimed values (new.kind, new.started_at);
    return null;
end $$;
create trigger note_claim after update on supervisor.job for each row
  when (new.lease is not null and old.lease is null) execute function note_claim();
"""


def entries(**kinds: list[dict[str, Any]]) -> dict[str, str]:
    """The environment of a service with handlers of these kinds and entries."""
    return {"CRON_ENTRIES": json.dumps(kinds)}


def ticks(db: Database, name: str) -> list[datetime]:
    """The tick of each job that an entry has added, in order; whoever runs them, and whether."""
    found = db.rows(
        "select headers ->> 'tick' from supervisor.jobs where headers ->> 'schedule' = %s order by 1", [name]
    )
    return [datetime.fromisoformat(row[0]) for row in found if row[0]]


def wait_ticks(db: Database, name: str, count: int, deadline_s: float = 30.0) -> list[datetime]:
    wait_until(lambda: len(ticks(db, name)) >= count, deadline_s, f"{count} ticks of {name}")
    return ticks(db, name)


def each_once(found: list[datetime], step: timedelta = SECOND) -> bool:
    """Whether there is one job for each tick from the first to the last."""
    return {later - earlier for earlier, later in pairwise(found)} == {step}


def stored(db: Database, name: str, column: str) -> Any:
    return db.value(f"select {column} from supervisor.schedule where name = %s", [name])


def now(db: Database) -> datetime:
    found: datetime = db.value("select clock_timestamp()")
    return found


def wait_skipped(service: Service, name: str, fired: int) -> None:
    """Wait until the log tells of an entry's skipped ticks, and that so many of the late ones were fired."""
    wait_until(
        lambda: (name, fired) in [(event["name"], event["fired"]) for event in service.events("schedule.skipped")],
        10,
        f"it is told that ticks of {name} were skipped",
    )


def test_each_tick_is_fired_once_with_kills_and_a_frozen_supervisor(db: Database, service: Start) -> None:
    env = entries(k=[EACH])
    one, two = service(**QUICK, env=env), service(**QUICK, env=env)
    wait_ticks(db, "k", 1)
    os.kill(one.parent_pid, signal.SIGSTOP)
    frozen_at = now(db)
    wait_until(lambda: ticks(db, "k")[-1] > frozen_at + SECOND, 20, "the other fires")
    os.kill(one.parent_pid, signal.SIGCONT)
    two.kill()
    killed_at = now(db)
    wait_until(lambda: ticks(db, "k")[-1] > killed_at + SECOND, 20, "the one that was frozen fires")
    one.kill()
    killed_at = now(db)
    three = service(**QUICK, env=env)
    wait_until(lambda: ticks(db, "k")[-1] > killed_at + SECOND, 20, "a third one fires")
    assert three.stop() == 0
    found = ticks(db, "k")
    assert each_once(found), found
    assert stored(db, "k", "fired") == len(found)
    assert stored(db, "k", "skipped") == 0


def test_what_was_missed_while_no_supervisor_ran_is_fired_by_each_entrys_policy(db: Database, service: Start) -> None:
    """B32: ten minutes of an entry for each second: one late run by default, at most n with n, then the rhythm."""
    policies = {"skip": "skip", "once": "once", "three": 3}
    env = entries(k=[{"cron": "* * * * * *", "missed": missed, "name": name} for name, missed in policies.items()])
    one = service(**QUICK, env=env)
    for name in policies:
        wait_ticks(db, f"k:{name}", 1)
    assert one.stop() == 0
    db.execute("delete from supervisor.job")
    db.execute("delete from supervisor.history")
    db.execute("update supervisor.schedule set next_at = next_at - interval '10 minutes', skipped = 0, fired = 0")
    first = {name: stored(db, f"k:{name}", "next_at") for name in policies}
    again = service(**QUICK, env=env, health_port="auto")
    for name, most in (("skip", 1), ("once", 1), ("three", 3)):
        wait_skipped(again, f"k:{name}", most)
        found = wait_ticks(db, f"k:{name}", most + 1)
        assert len([tick for tick in found if tick < first[name] + timedelta(minutes=10)]) <= most
        # Every tick of then and since is accounted for: fired, with its job, or skipped.
        [(last, fired, skipped, jobs)] = db.rows(
            "select s.last_tick, s.fired, s.skipped, (select count(*)::int from supervisor.jobs j"
            " where j.headers ->> 'schedule' = s.name) from supervisor.schedule s where s.name = %s",
            [f"k:{name}"],
        )
        assert skipped >= 600 - most
        assert fired == jobs
        assert (last - first[name]) / SECOND + 1 == skipped + fired
    wait_until(lambda: again.metric("supervisor_schedule_skipped_total") >= 3 * 597, 10, "skipped ticks are counted")
    assert again.metric("supervisor_schedule_fired_total") >= 5
    assert again.metric("supervisor_schedule_late_seconds_count") >= 3


def test_orders_count_at_once(db: Database, service: Start) -> None:
    service(**QUICK, env=entries(k=[EACH]))
    wait_ticks(db, "k", 1)
    db.rows("select supervisor.pause_schedule('k')")
    paused = ticks(db, "k")
    ran = db.value("select (supervisor.run_schedule('k')).id")
    db.wait_for("select count(*)::int from supervisor.history where id = %s", 1, 10, [ran])
    at = now(db)
    wait_until(lambda: now(db) > at + SECOND, 10, "a tick has passed")
    assert ticks(db, "k") == paused, "a paused entry fires nothing from the commit on"

    before = now(db)
    db.rows("select supervisor.resume_schedule('k')")
    found = wait_ticks(db, "k", len(paused) + 1)
    assert found[len(paused)] > before, "ticks of the pause are not missed ones"

    db.rows("select supervisor.set_schedule('k', cron => %s)", [NEVER])
    edited = ticks(db, "k")
    db.wait_for("select next_at is not null from supervisor.schedule", True, 5)
    assert stored(db, "k", "extract(day from next_at)") == 29
    assert ticks(db, "k") == edited
    db.rows("select supervisor.set_schedule('k', tz => 'Europe/Paris', cron => '*/2 * * * * *')")
    after = wait_ticks(db, "k", len(edited) + 1)[len(edited) :]
    assert {tick.second % 2 for tick in after} == {0}


def test_keys_and_limits_of_a_handler_count_for_the_jobs_of_its_ticks(db: Database, service: Start) -> None:
    """Each entry fires each second, faster than its jobs may run."""
    options: dict[str, dict[str, Any]] = {
        "ordered": {"ordering_key": "o", "runs_s": 1.3},
        "limited": {"concurrency_key": "c", "concurrency_limit": 2, "runs_s": 2.6},
        "paced": {"rate_key": "r", "rate_limit": 1, "rate_period": 2.0, "runs_s": 0.0},
        "once": {"unique_key": "u", "unique_for": 3.0, "runs_s": 0.0},
    }
    db.execute(CLAIMS)
    env = entries(**{kind: [EACH] for kind in options}) | {"CRON_OPTIONS": json.dumps(options)}
    service(**QUICK, concurrency=20, env=env)
    for kind in options:
        db.wait_for("select count(*) >= 4 from effects where kind = %s and note = 'done'", True, 60, [kind])
    assert most_at_once(db, "ordered") == 1
    assert most_at_once(db, "limited") == 2
    ran = [
        row[0] for row in db.rows("select job_id from effects where kind = 'ordered' and note = 'start' order by at")
    ]
    told: dict[int, str] = dict(db.rows("select id, headers ->> 'tick' from supervisor.jobs where kind = 'ordered'"))
    assert [told[job] for job in ran] == sorted(told.values())[: len(ran)], "in the order of their ticks"
    starts = [row[0] for row in db.rows("select at from claimed where kind = 'paced' order by at")]
    assert min(later - earlier for earlier, later in pairwise(starts)) >= 2 * SECOND
    added = [row[0] for row in db.rows("select created_at from supervisor.jobs where kind = 'once' order by 1")]
    assert min(later - earlier for earlier, later in pairwise(added)) >= 3 * SECOND
    assert stored(db, "once", "fired") > len(added), "a tick whose key is taken adds nothing"


def most_at_once(db: Database, kind: str) -> int:
    running = most = 0
    for (note,) in db.rows("select note from effects where kind = %s order by at", [kind]):
        running += {"start": 1, "done": -1}[note]
        most = max(most, running)
    return most


def test_an_entry_that_cannot_be_computed_is_told_and_holds_up_no_other(db: Database, service: Start) -> None:
    one = service(**QUICK, env=entries(k=[EACH], broken=[{"cron": NEVER}]))
    wait_ticks(db, "k", 1)
    db.execute(
        "update supervisor.schedule set set_tz = 'Gone/Away', next_at = null, revision = revision + 1"
        " where name = 'broken'"
    )
    told = one.wait_event("schedule.broken")
    assert (told["name"], "tz: " in told["reason"]) == ("broken", True)
    db.wait_for("select problem is not null from supervisor.schedule where name = 'broken'", True, 5)
    wait_ticks(db, "k", len(ticks(db, "k")) + 1)
    db.rows("select supervisor.set_schedule('broken', tz => 'Asia/Tokyo')")
    db.wait_for(
        "select next_at is not null and problem is null from supervisor.schedule where name = 'broken'", True, 5
    )


def test_two_versions_do_not_fight_and_removed_entries_are_retired(db: Database, service: Start) -> None:
    old_env = entries(k=[{"cron": "* * * * * *", "missed": 1000}], gone=[EACH])
    new_env = entries(k=[{"cron": "*/2 * * * * *", "missed": 1000}])
    old = service(**QUICK, env=old_env)
    wait_ticks(db, "gone", 1)
    new = service(**QUICK, env=new_env)
    db.wait_for("select cron from supervisor.schedule where name = 'k'", "*/2 * * * * *", 10)
    old_again = service(**QUICK, env=old_env)  # a late replica of the old release
    fired = stored(db, "gone", "fired")
    db.wait_for("select fired > %s from supervisor.schedule where name = 'gone'", True, 10, [fired + 1])
    assert stored(db, "k", "cron") == "*/2 * * * * *"
    assert stored(db, "gone", "retired_at") is None, "an old supervisor still runs that handler"
    assert [old.stop(), old_again.stop()] == [0, 0]
    db.wait_for("select retired_at is not null from supervisor.schedule where name = 'gone'", True, 20)
    fired = stored(db, "gone", "fired")
    count = len(ticks(db, "k"))
    wait_ticks(db, "k", count + 1)
    assert stored(db, "gone", "fired") == fired
    assert new.stop() == 0


def test_after_all_were_away_a_removed_handlers_entry_is_not_fired_once_more(db: Database, service: Start) -> None:
    """Stop, deploy without the handler, start: as small services are deployed. Its tick is due meanwhile."""
    one = service(**QUICK, env=entries(k=[EACH], other=[{**EACH, "missed": "once"}]))
    wait_ticks(db, "k", 1)
    assert one.stop() == 0
    db.wait_for("select bool_and(expires_at < clock_timestamp()) from supervisor.schedule_version", True, 20)
    before, others = ticks(db, "k"), ticks(db, "other")
    assert stored(db, "k", "next_at") < now(db)
    service(**QUICK, env=entries(other=[{**EACH, "missed": "once"}]))
    wait_ticks(db, "other", len(others) + 2)
    assert ticks(db, "k") == before
    assert stored(db, "k", "retired_at") is not None


def test_a_wrong_host_clock_fires_no_tick_twice_early_or_late(db: Database, service: Start, tmp_path: Path) -> None:
    """B33: one host is 90 s behind, the other jumps by an hour; ticks are those of the database's clock."""
    if not FAKETIME.exists():
        missing("libfaketime (apt install faketime)")
    behind, jumping = tmp_path / "behind", tmp_path / "jumping"
    behind.write_text("-90s")
    jumping.write_text("+0s")
    env = entries(k=[EACH])
    for clock in (behind, jumping):
        service(**QUICK, env={**env, **environment(clock)})
    wait_ticks(db, "k", 1)
    jumping.write_text("+3600s")
    count = len(ticks(db, "k"))
    found = wait_ticks(db, "k", count + (10 if FULL else 3))
    assert each_once(found)
    late = db.value(
        "select max(extract(epoch from created_at - (headers ->> 'tick')::timestamptz))::float8 from supervisor.jobs"
        " where headers ->> 'schedule' = 'k'"
    )
    assert 0 <= late < 30, "by the database's clock; a loaded machine is late, a wrong clock would be 90 s or an hour"
    early = db.value("select count(*)::int from supervisor.jobs where created_at < (headers ->> 'tick')::timestamptz")
    assert early == 0
