"""The command line as its users meet it: as a process, with its exit code, its two streams and its signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from supervisor import exits
from tests.support import proc
from tests.support.database import Database
from tests.support.servers import PASSWORD, ROLE
from tests.support.service import ROOT, Service
from tests.support.waiting import wait_until

CLEAN: Final = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "PG", "COLUMNS"))}
COMMAND: Final = [sys.executable, "-m", "supervisor"]


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What a program reads: stdout as one JSON document."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> None:
        """Assert that it ended with *code* and one line on stderr that has *words*."""
        assert (self.code, self.out) == (code, ""), self
        [line] = [line for line in self.err.splitlines() if not line.startswith("{")]
        assert line.startswith("supervisor: ")
        assert "Traceback" not in self.err
        for word in words:
            assert word in line


class Cli:
    """Runs commands with an environment of its own."""

    def __init__(self, run_dir: Path, **env: str) -> None:
        self.env = {**CLEAN, "PYTHONPATH": str(ROOT), "SUPERVISOR_RUN_DIR": str(run_dir), **env}

    def __call__(self, *words: str, stdin: str = "", **env: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=ROOT,
            env={**self.env, **env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def bare(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def cli(db: Database, tmp_path: Path) -> Cli:
    return Cli(tmp_path, SUPERVISOR_DATABASE_URL=db.conninfo)


def bury(
    db: Database, count: int, *, status: str = "dead", kind: str = "mail", error: str = "no", key: str = ""
) -> list[int]:
    """Make dead letters, as a job's last failure does; their ids."""
    ids = [
        row[0]
        for row in db.rows(
            "insert into supervisor.job (kind, unique_key, attempts, last_error)"
            " select %s, nullif(%s, ''), 3, %s from generate_series(1, %s) returning id",
            [kind, key, error, count],
        )
    ]
    db.execute("select supervisor.bury(id, %s, 'attempts') from unnest(%s::bigint[]) as x (id)", [status, ids])
    return ids


# -- enqueueing -------------------------------------------------------------------------


def test_a_job_from_the_shell_is_run_and_seen(cli: Cli, db: Database, service: Callable[..., Service]) -> None:
    service(processes=1, name="shop")
    added = cli("enqueue", "t.effect", '{"note": "from the shell"}', "--json").document
    assert added == {"id": added["id"], "created": True, "kind": "t.effect", "queue": "default"}
    db.wait_for("select count(*) from effects where note = 'from the shell'", 1)
    db.wait_for("select status from supervisor.jobs where id = %s", "done", params=[added["id"]])

    seen = cli("status", "--json").document

    [supervisor] = seen["supervisors"]
    assert (supervisor["name"], supervisor["alive"], len(supervisor["workers"])) == ("shop", True, 1)
    assert seen["ended"]["done"] == 1
    assert cli("jobs", "show", str(added["id"]), "--json").document["status"] == "done"
    assert "shop" in cli("status").out


def test_options_of_a_job_are_stored(cli: Cli, db: Database) -> None:
    words = (
        "--queue lab --priority 5 --in 1h30m --max-attempts 7 --timeout 2m --unique-key k --header a=b=c --header d=1"
    )
    added = cli("enqueue", "t.effect", "-", *words.split(), "--json", stdin='{"note": "ü [bold]"}').document

    job = cli("jobs", "show", str(added["id"]), "--json").document

    names = ("queue", "priority", "max_attempts", "timeout_s", "unique_key", "headers", "payload", "status")
    stored = ("lab", 5, 7, 120.0, "k", {"a": "b=c", "d": "1"}, {"note": "ü [bold]"}, "queued")
    assert tuple(job[name] for name in names) == stored
    waits = datetime.fromisoformat(job["run_at"]) - datetime.fromisoformat(job["created_at"])
    assert waits == timedelta(minutes=90)
    assert '"note": "ü [bold]"' in cli("jobs", "show", str(added["id"])).out


def test_keys_limits_and_parents_of_a_job_are_stored(cli: Cli, db: Database) -> None:
    parents = [cli("enqueue", "t.noop", "--json").document["id"] for _ in range(2)]
    words = (
        "--ordering-key o --on-dead hold --concurrency-key c --concurrency-limit 3 --rate-key r --rate-limit 10"
        " --rate-period 1m --unique-key u --unique-for 1h --unique-state queued --unique-state done --after-failed run"
    )
    after = [word for parent in parents for word in ("--after", str(parent))]
    added = cli("enqueue", "t.noop", *words.split(), *after, "--json").document

    [gated] = db.rows(
        "select job_id, gate, ordering_key, ordering_hold, concurrency_key, concurrency_limit, rate_key, rate_limit,"
        " rate_period from supervisor.gated"
    )
    assert gated == (added["id"], 1, "o", True, "c", 3, "r", 10, timedelta(minutes=1))
    links = [(parent, added["id"], "run") for parent in parents]
    assert db.rows("select parent, child, failed from supervisor.job_after order by parent") == links
    [(key, holder, states, left)] = db.rows(
        "select unique_key, job_id, states, until - clock_timestamp() from supervisor.unique_hold"
    )
    assert (key, holder, states) == ("u", added["id"], ["queued", "done"])
    assert timedelta(minutes=55) < left <= timedelta(hours=1)
    shown = cli("jobs", "show", str(added["id"]), "--json").document
    assert (shown["status"], shown["ordering_key"], shown["waits_for"]) == ("queued", "o", "parents")


def test_a_time_without_zone_is_local(cli: Cli) -> None:
    added = cli("enqueue", "t.noop", "--at", "2031-02-03T04:05:06", "--json", TZ="Europe/Paris").document
    run_at = cli("jobs", "show", str(added["id"]), "--json").document["run_at"]
    assert datetime.fromisoformat(run_at) == datetime(2031, 2, 3, 3, 5, 6, tzinfo=UTC)


def test_unique_key_says_which_job_stands(cli: Cli) -> None:
    first = cli("enqueue", "t.noop", "--unique-key", "k", "--json").document
    again = cli("enqueue", "t.noop", "--unique-key", "k", "--json").document
    assert (again["id"], again["created"]) == (first["id"], False)
    cli("enqueue", "t.noop", "--unique-key", "k", "--on-conflict", "raise").refused(exits.FAILED, f"job {first['id']}")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["t.noop", "{"], "payload"),
        (["t.noop", "[1]"], "payload"),
        (["t.noop", '{"a": {"b": NaN}}'], "payload.a.b"),
        (["t.noop", '{"a": "\\u0000"}'], "payload.a"),
        (["a\nb"], "kind"),
        (["t.noop", "--queue", "q" * 129], "queue"),
        (["t.noop", "--priority", "101"], "priority"),
        (["t.noop", "--priority", "high"], "--priority"),
        (["t.noop", "--max-attempts", "0"], "max_attempts"),
        (["t.noop", "--in", "soon"], "--in"),
        (["t.noop", "--in", "5m", "--at", "2030-01-01"], "in_"),
        (["t.noop", "--at", "tomorrow"], "--at"),
        (["t.noop", "--header", "x"], "--header"),
        (["t.noop", "--on-conflict", "maybe"], "--on-conflict"),
        (["t.noop", "--on-dead", "hold"], "ordering_key"),
        (["t.noop", "--concurrency-key", "c", "--concurrency-limit", "0"], "concurrency_limit"),
        (["t.noop", "--rate-key", "r", "--rate-limit", "9", "--rate-period", "soon"], "--rate-period"),
        (["t.noop", "--unique-key", "u", "--unique-state", "gone"], "unique_states"),
        (["t.noop", "--after", "0"], "after"),
        ([], "kind"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_refused_before_the_database_is_asked(bare: Cli, words: list[str], named: str) -> None:
    away = "postgresql://127.0.0.1:1/none"
    bare("enqueue", *words, SUPERVISOR_DATABASE_URL=away).refused(exits.USAGE, named)


def test_a_parent_that_never_was_is_named(cli: Cli, db: Database) -> None:
    cli("enqueue", "t.noop", "--after", "99").refused(exits.USAGE, "job refused: after: no job has the id 99")
    assert db.statuses() == {}


# -- looking ----------------------------------------------------------------------------


def test_pages_hold_every_job_once_whatever_became_of_it(cli: Cli, db: Database) -> None:
    bury(db, 4)
    bury(db, 3, status="cancelled")
    db.execute("insert into supervisor.job (kind, queue) select 'mail', 'q' || i % 2 from generate_series(1, 6) i")
    db.execute(
        "insert into supervisor.history (id, finished_at, run_at, created_at, claims, attempts, max_attempts, crashes,"
        " max_crashes, priority, queue, kind) select 100 + i, now(), now(), now(), 1, 1, 3, 0, 3, 0, 'q0', 'mail'"
        " from generate_series(1, 5) i"
    )
    seen: list[int] = []
    before: list[str] = []
    while True:
        page = cli("jobs", "list", "--limit", "7", "--json", *before).document
        seen += [job["id"] for job in page["jobs"]]
        if page["next_before"] is None:
            break
        before = ["--before", str(page["next_before"])]

    assert seen == [row[0] for row in db.rows("select id from supervisor.jobs order by id desc")]
    assert len(seen) == 18
    for words, count in (
        (("--status", "dead"), 4),
        (("--status", "dead,cancelled"), 7),
        (("-s", "done", "-s", "queued", "--queue", "q0"), 8),
        (("--kind", "mail", "--queue", "q1"), 3),
        (("--status", "scheduled"), 0),
        (("--status", "running"), 0),
    ):
        assert len(cli("jobs", "list", "--json", *words).document["jobs"]) == count, words


def test_counts_stop_at_a_limit(cli: Cli, db: Database) -> None:
    """Never a full count: a queue of ten million must not feel that somebody looks at it."""
    db.execute(
        "insert into supervisor.job (kind, queue, priority, run_at)"
        " select 'mail', 'big', i % 2, now() - interval '1 hour' from generate_series(1, 30000) i"
    )
    db.execute(
        "insert into supervisor.job (kind, queue, run_at) select 'm', 'small', now() + interval '1 day'"
        " from generate_series(1, 3)"
    )

    big, small = cli("status", "--json").document["queues"]

    assert (big["queue"], big["due"], big["at_least"]) == ("big", 20_000, ["due"])
    assert 3600 <= big["oldest_due_s"] < 3700
    assert (small["due"], small["scheduled"], small["at_least"], small["oldest_due_s"]) == (0, 3, [], None)
    assert "20,000+" in cli("status").out


def test_stored_texts_cannot_act_on_the_terminal(cli: Cli, db: Database) -> None:
    [job_id] = bury(db, 1, kind="[red]k", error="\x1b[2Jgone\x07 [bold]x[/nope]\nsecond line")
    for words in (["status"], ["jobs", "list"], ["jobs", "show", str(job_id)]):
        ran = cli(*words)
        assert ran.code == 0, ran.err
        assert not {"\x1b", "\x07"} & set(ran.out)
        assert "[red]k" in ran.out
        assert "[bold]x[/nope]" in ran.out


def test_a_job_that_is_not_there(cli: Cli) -> None:
    cli("jobs", "show", "41").refused(exits.FAILED, "job 41")


# -- orders -----------------------------------------------------------------------------


def test_retry_puts_back_by_ids_and_names_those_it_cannot(cli: Cli, db: Database) -> None:
    one, two = bury(db, 2)
    [holder] = bury(db, 1, key="k")
    db.execute("insert into supervisor.job (kind, unique_key) values ('mail', 'k')")

    ran = cli("jobs", "retry", str(one), str(two), str(holder), "999")

    assert ran.code == exits.FAILED
    assert "2 put back" in ran.out
    assert f"job {holder}" in ran.err
    assert "job 999" in ran.err
    assert db.rows("select id, attempts from supervisor.job where id = any (%s) order by id", [[one, two]]) == [
        (one, 0),
        (two, 0),
    ]


def test_a_filter_needs_a_yes_and_works_in_batches(cli: Cli, db: Database) -> None:
    bury(db, 1200)
    bury(db, 5, kind="other")
    cli("jobs", "retry", "--kind", "mail").refused(exits.USAGE, "1,200 jobs", "--yes")
    cli("jobs", "retry").refused(exits.USAGE, "filter")
    cli("jobs", "retry", "7", "--kind", "mail").refused(exits.USAGE, "filter")
    cli("jobs", "cancel", "--status", "dead").refused(exits.USAGE, "--status")

    done = cli("jobs", "retry", "--kind", "mail", "--status", "dead", "--yes", "--json").document
    assert done == {"retried": 1200, "unique_key_taken": [], "missing": []}
    assert db.statuses() == {"dead": 5, "queued": 1200}

    done = cli("jobs", "cancel", "--kind", "mail", "-y", "--json").document
    assert done == {"cancelled": 1200, "asked": 0, "missing": []}
    assert db.statuses() == {"cancelled": 1200, "dead": 5}


def test_cancel_tells_a_running_job(cli: Cli, db: Database, service: Callable[..., Service]) -> None:
    service(processes=1)
    job_id = cli("enqueue", "t.sleep", '{"seconds": 60}', "--json").document["id"]
    db.wait_for("select count(*) from effects where job_id = %s", 1, params=[job_id])

    done = cli("jobs", "cancel", str(job_id), "--json").document

    assert done == {"cancelled": 0, "asked": 1, "missing": []}
    db.wait_for("select status from supervisor.jobs where id = %s", "cancelled", params=[job_id])


def test_reschedule_moves_queued_jobs_and_names_the_others(
    cli: Cli, db: Database, service: Callable[..., Service]
) -> None:
    first, second = (cli("enqueue", "t.effect", "--in", "1d", "--json").document["id"] for _ in range(2))
    [dead] = bury(db, 1)

    moved = cli("jobs", "reschedule", str(first), str(dead), "999", "--in", "2h", "--json")

    assert moved.code == exits.FAILED
    document = json.loads(moved.out)
    assert (document["rescheduled"][0]["id"], document["missing"]) == (first, [dead, 999])
    due = datetime.fromisoformat(document["rescheduled"][0]["run_at"])
    assert timedelta(minutes=119) < due - datetime.now(UTC) < timedelta(minutes=121)
    assert cli("jobs", "show", str(first), "--json").document["run_at"] == document["rescheduled"][0]["run_at"]
    at = cli("jobs", "reschedule", str(first), "--at", "2031-02-03T04:05:06+00:00", "--json").document
    assert at["rescheduled"][0]["run_at"] == "2031-02-03T04:05:06+00:00"
    service(processes=1)
    assert "is due" in cli("jobs", "reschedule", str(second)).out
    db.wait_for("select count(*)::int from effects where job_id = %s", 1, params=[second])
    cli("jobs", "reschedule", str(first), "--in", "1h", "--at", "2031-01-01").refused(exits.USAGE, "--in")
    cli("jobs", "reschedule", str(first), "--in", "soon").refused(exits.USAGE, "--in")
    cli("jobs", "reschedule", str(first), "--in", "9000d").refused(exits.USAGE, "ten years")


# -- drain ------------------------------------------------------------------------------


def test_drain_waits_for_what_runs(cli: Cli, db: Database, service: Callable[..., Service], tmp_path: Path) -> None:
    served = service(processes=2, concurrency=1, run_dir=tmp_path)
    cli("enqueue", "t.sleep", '{"seconds": 1}')
    db.wait_for("select count(*) from effects", 1)

    done = cli("drain", "--wait", "--json").document

    assert (done["pid"], done["state"]) == (served.parent_pid, "drained")
    assert db.statuses() == {"done": 1}
    cli("enqueue", "t.noop")
    assert served.alive
    assert cli("drain", "--wait", "--json").document["state"] == "drained"
    assert served.stop(signal.SIGTERM) == exits.OK
    assert db.statuses() == {"done": 1, "queued": 1}
    cli("drain").refused(exits.FAILED, "no supervisor runs here")


def test_status_tells_of_a_change_at_once(
    cli: Cli, db: Database, service: Callable[..., Service], tmp_path: Path
) -> None:
    """It once told the state of up to ten seconds ago: `starting` of a ready service, `ready` of a drained one."""

    def state() -> tuple[str, int]:
        [seen] = cli("status", "--json").document["supervisors"]
        return seen["state"], len([worker for worker in seen["workers"] if worker["state"] == "ready"])

    service(processes=2, run_dir=tmp_path)
    wait_until(lambda: state() == ("ready", 2), 3, "the service is shown ready")
    cli("drain", "--wait")
    wait_until(lambda: state() == ("draining", 0), 3, "the service is shown draining, without workers")


def test_drain_gives_up_in_time(cli: Cli, db: Database, service: Callable[..., Service], tmp_path: Path) -> None:
    served = service(processes=1, run_dir=tmp_path)
    cli("enqueue", "t.sleep", '{"seconds": 60}')
    db.wait_for("select count(*) from effects", 1)
    cli("drain", "--wait", "--timeout", "0.2").refused(exits.FAILED, f"pid {served.parent_pid}", "0.2 s")


def test_drain_leaves_a_stranger_with_the_pid_alone(bare: Cli, tmp_path: Path) -> None:
    """A killed parent leaves its file, and its pid goes to somebody else: SIGUSR1 would end that one."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        file = tmp_path / f"parent-{stranger.pid}.json"
        file.write_text(json.dumps({"pid": stranger.pid, "started": "1", "state": "ready"}))
        try:
            bare("drain").refused(exits.FAILED, "no supervisor runs here")
            assert stranger.poll() is None
            assert not file.exists()
        finally:
            stranger.kill()


def test_drain_asks_which_one_where_several_run(
    cli: Cli, db: Database, service: Callable[..., Service], tmp_path: Path
) -> None:
    """Two services of one user share a run directory: neither is drained by accident."""
    first, second = (service(processes=1, run_dir=tmp_path, name=name) for name in ("one", "two"))
    cli("drain").refused(exits.FAILED, "2 supervisors run here", str(first.parent_pid), str(second.parent_pid))
    cli("drain", "--wait", "--pid", str(first.parent_pid))
    assert first.events("supervisor.drained")
    assert not second.events("supervisor.drained")


def test_drain_is_heard_while_the_database_is_away(
    cli: Cli, db: Database, service: Callable[..., Service], tmp_path: Path
) -> None:
    """A preStop hook must not wait for a database that the service itself waits for."""
    away = Service(db, processes=1, run_dir=tmp_path, database_url="postgresql://u@127.0.0.1:1/none")
    with away:
        away.wait_event("database.unreachable", 20)
        cli("drain", "--wait", "--timeout", "10")
        assert away.stop() == exits.OK


# -- migrate, and a database that does not fit ------------------------------------------


def test_migrate_says_what_it_did(blank_db: Database, bare: Cli) -> None:
    url = blank_db.conninfo
    bare("status", SUPERVISOR_DATABASE_URL=url).refused(exits.CONFIG, "supervisor migrate")
    bare("enqueue", "t.noop", SUPERVISOR_DATABASE_URL=url).refused(exits.CONFIG, "supervisor migrate")

    done = bare("migrate", "--json", SUPERVISOR_DATABASE_URL=url).document
    again = bare("migrate", "--json", SUPERVISOR_DATABASE_URL=url).document

    assert (done["version_before"], again["version_before"]) == (0, done["version"])
    assert done["applied"][0] == "0001_queue"
    assert (again["applied"], again["functions_installed"]) == ([], False)
    assert "nothing to do" in bare("migrate", SUPERVISOR_DATABASE_URL=url).out
    assert "0001_queue" in bare("migrate", "--schema", "other", SUPERVISOR_DATABASE_URL=url).out


@pytest.mark.parametrize("words", ["status", "jobs list", "enqueue t.noop", "migrate", "jobs cancel 1", "demo --json"])
def test_a_database_that_is_away_is_one_line(bare: Cli, words: str) -> None:
    ran = bare(*words.split(), SUPERVISOR_DATABASE_URL="postgresql://u@127.0.0.1:1/none")
    lines = [line for line in ran.err.splitlines() if line.startswith("supervisor: ")]
    assert (ran.code, ran.out, len(lines)) == (exits.UNAVAILABLE, "", 1), ran
    assert "Traceback" not in ran.err


# -- secrets (B41) ----------------------------------------------------------------------

SECRET: Final = "s3kr1t@#%/?: x"
CODED: Final = quote(SECRET, safe="")
BAD_ADDRESSES: Final = {
    "wrong password": "postgresql://{role}:{coded}@{server}/postgres",
    "wrong password, raw": "postgresql://{role}:{secret}@{server}/postgres",
    "wrong password, pairs": "host=127.0.0.1 port={port} user={role} dbname=postgres password='{secret}'",
    "wrong host": "postgresql://u:{coded}@no-such-host.invalid/x",
    "bad port": "postgresql://u:{coded}@127.0.0.1:99999/x",
    "no scheme": "u:{coded}@127.0.0.1/x",
    "other scheme": "mysql://u:{coded}@127.0.0.1/x",
    "unknown option": "postgresql://u:{coded}@127.0.0.1/x?nosuch=1",
    "pairs, unquoted": "host=127.0.0.1 user=u password={secret}",
}


@pytest.mark.parametrize("way", ["environment", "file", "flag"])
@pytest.mark.parametrize("address", BAD_ADDRESSES.values(), ids=BAD_ADDRESSES)
def test_no_secret_is_shown(db: Database, bare: Cli, tmp_path: Path, way: str, address: str) -> None:
    port = str(db.server.port)
    text = address.format(role=ROLE, coded=CODED, secret=SECRET, server=f"127.0.0.1:{port}", port=port)
    if way == "file":
        (tmp_path / "url").write_text(text)
        ran = bare("status", SUPERVISOR_DATABASE_URL_FILE=str(tmp_path / "url"))
    elif way == "flag":
        ran = bare("status", "--database-url", text)
    else:
        ran = bare("status", SUPERVISOR_DATABASE_URL=text)
    assert ran.code in (exits.UNAVAILABLE, exits.CONFIG)
    ran.refused(ran.code)
    assert "s3kr1t" not in ran.err


def test_a_password_of_every_kind_connects(db: Database, bare: Cli) -> None:
    """The ordinary role of the tests has such a password; here it also comes raw, as pairs and as a flag."""
    raw = f"postgresql://{ROLE}:{PASSWORD}@127.0.0.1:{db.server.port}/{db.name}"
    quoted = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    pairs = f"host=127.0.0.1 port={db.server.port} user={ROLE} dbname={db.name} password='{quoted}'"
    for text in (db.conninfo, pairs):
        assert bare("status", "--json", "--database-url", text).document["schema"] == "supervisor"
    ran = bare("status", "--json", SUPERVISOR_DATABASE_URL=raw)
    assert ran.code == 0 or PASSWORD not in ran.err  # one that cannot be told apart is refused without quoting it


@pytest.fixture
def run_with_flag(db: Database, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ["run", "--database-url", db.conninfo, "--handlers", "tests.support.handlers", "-p", "1"]
    env = {**Cli(tmp_path).env, "EFFECTS_DATABASE_URL": db.conninfo}
    with subprocess.Popen(
        [*COMMAND, *words, "--health-port=off"], cwd=ROOT, env=env, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        yield process
        process.terminate()
        process.wait(20)


def test_an_address_given_as_a_flag_leaves_the_process_title(
    run_with_flag: subprocess.Popen[bytes], db: Database
) -> None:
    """`ps` shows every command line to every user of the machine."""
    db.wait_for("select count(*) from supervisor.parent", 1)
    titles = [proc.command_line(one.pid) for one in proc.in_session(run_with_flag.pid)]
    assert len(titles) >= 2
    assert "supervisor run" in titles[0].replace("\0", " ")
    secret = quote(PASSWORD, safe="")
    assert not [title for title in titles if secret in title or PASSWORD in title]


# -- small things -----------------------------------------------------------------------


def test_version_completion_and_typing_errors(bare: Cli) -> None:
    assert bare("--version").out.startswith("pg-supervisor ")
    script = bare("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_SUPERVISOR_COMPLETE" in script.out
    words = bare(_SUPERVISOR_COMPLETE="complete_bash", COMP_WORDS="supervisor jobs ", COMP_CWORD="2").out.split()
    assert words == ["list", "show", "story", "retry", "cancel", "reschedule", "release-order"]
    bare("nosuch").refused(exits.USAGE, "nosuch", "--help")
    bare("jobs", "list", "--status", "alive").refused(exits.USAGE, "--status")
    bare("run", "--processes", "0").refused(exits.CONFIG, "SUPERVISOR_PROCESSES", "0")
    bare("status", SUPERVISOR_SCHEMA="No Such").refused(exits.CONFIG, "SUPERVISOR_SCHEMA")


def test_a_reader_that_leaves_is_no_error(cli: Cli, db: Database) -> None:
    db.execute("insert into supervisor.job (kind) select 'mail' from generate_series(1, 3000)")
    with subprocess.Popen(
        [*COMMAND, "jobs", "list", "-n", "3000"], cwd=ROOT, env=cli.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        wait_until(lambda: listing.poll() is not None, 20, "the command has ended")
        assert (listing.returncode, listing.stderr.read()) == (exits.OK, b"")


def test_light_commands_load_nothing_of_the_service(bare: Cli) -> None:
    heavy = {"uvloop", "psycopg_pool", "supervisor.parent.service", "supervisor.settings", "rich.live"}
    asked = f"import sys, supervisor.cli.app; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, env=bare.env, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_an_address_commands_work_on_the_embedded_server(bare: Cli, tmp_path: Path) -> None:
    """As root its data is shared by the machine, so the test has a schema of its own there."""
    schema = f"cli_test_{os.getpid()}"
    env = {"SUPERVISOR_SCHEMA": schema, "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    try:
        added = bare("enqueue", "t.noop", '{"a": 1}', "--json", **env)
        assert added.document["created"] is True
        [said] = [json.loads(line) for line in added.err.splitlines() if "embedded_postgres.started" in line] or [
            json.loads(line) for line in added.err.splitlines() if "embedded_postgres.joined" in line
        ]
        assert "SUPERVISOR_DATABASE_URL" in said["reason"]
        assert Path(said["data_dir"]).is_dir()
        assert bare("status", "--json", **env).document["queues"][0]["due"] == 1
        assert bare("migrate", "--json", **env).document["applied"] == []
    finally:
        drop = (
            "import psycopg; from supervisor.db.embedded import EmbeddedPostgres as E\n"
            "with E() as server, psycopg.connect(server.start(), autocommit=True) as conn:\n"
            f"    conn.execute('drop schema {schema} cascade')"
        )
        subprocess.run([sys.executable, "-c", drop], cwd=ROOT, env={**bare.env, **env}, check=True, capture_output=True)
