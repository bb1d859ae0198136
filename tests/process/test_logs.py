"""Logs: a reader that is too slow stops nothing, and no password is ever in what the service says."""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from supervisor import exits
from tests.support import proc
from tests.support.database import Database
from tests.support.health import HealthWatch
from tests.support.jobs import enqueue, wait_done
from tests.support.servers import PASSWORD, ROLE
from tests.support.service import SLOW_PIPE_BYTES, Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]


def workers_of(one: Service) -> list[int]:
    """The workers as /proc shows them: the log lags behind here. The fork server is their parent."""
    forks = [child.pid for child in proc.children(one.parent_pid) if "forkserver" in proc.command_line(child.pid)]
    return [child.pid for fork_server in forks for child in proc.children(fork_server)]


@pytest.mark.timeout(240)
def test_a_slow_reader_of_the_log_stops_nothing(db: Database, service: Start, report: Callable[[str], None]) -> None:
    """B05: the log is read at 1 KB/s while workers are killed as fast as they come back, some by a segfault that
    wants to write its traceback there too, and hangups are sent in between."""
    one = service(processes=3, log_bytes_per_s=1024, restart_budget=10_000, health_port="auto", drain_timeout_s=10)
    port = one.health_port
    kills = 0
    began = time.monotonic()
    with HealthWatch(port) as watch:
        # Until the pipe is full for sure: that is the fault.
        while time.monotonic() - began < (60 if FULL else 8) or one.log_behind_s() < 2 * SLOW_PIPE_BYTES / 1024:
            for pid in workers_of(one):
                proc.kill(pid, random.choice([signal.SIGKILL, signal.SIGSEGV]))
                kills += 1
            one.send(signal.SIGHUP)
            wait_until(lambda: workers_of(one), 10, "a worker is back")
        ended = time.monotonic()
        wait_until(lambda: json.loads(one.get("/readyz")[1])["workers"]["ready"] == 3, 10, "three workers are ready")
        back_s = time.monotonic() - ended
        enqueue(db, "t.effect", count=20)
        wait_done(db, 20)
    assert watch.bad == []
    began = time.monotonic()
    one.send(signal.SIGTERM)
    wait_until(lambda: not one.alive, 30, "it has exited although nobody reads its log")
    stop_s = time.monotonic() - began
    one.read_log_at_once()
    assert one.wait_exit() == exits.OK
    dropped = sum(int(event["lines"]) for event in one.events("log.dropped"))
    report(
        f"B05: {kills} kills, longest silence of the health page {watch.longest_silence_s:.2f} s, workers back after"
        f" {back_s:.2f} s, SIGTERM to exit {stop_s:.1f} s, {dropped} lines dropped"
    )
    assert kills > 20
    assert watch.longest_silence_s < within(2, busy_s=4)
    assert not any("Traceback" in json.dumps(event) for event in one.log)
    assert not any("Traceback" in line for line in one.noise)


SECRET = "S3cr@t:/?#[]%20x ü'\"\\&=+y"
PIECES = ("S3cr", quote(SECRET, safe=""), quote(SECRET))


def everything_said(one: Service) -> Iterator[str]:
    """Each line of its log, its standard output, its pages, and the command lines of all its processes."""
    yield from (json.dumps(event, ensure_ascii=False) for event in one.log)
    yield from one.noise
    yield one.stdout()


def command_lines(one: Service) -> Iterator[str]:
    for process in one.processes():
        yield proc.command_line(process.pid)
        yield Path(f"/proc/{process.pid}/comm").read_text() if proc.look(process.pid) else ""


def hides(lines: Iterator[str], pieces: tuple[str, ...]) -> None:
    for line in lines:
        for piece in pieces:
            assert piece not in line, f"the password shows: {line[:2000]}"


@pytest.mark.parametrize("form", ["url", "key-value", "file"])
def test_a_password_with_any_character_connects_and_is_never_shown(
    form: str, db: Database, service: Start, tmp_path: Path
) -> None:
    """B41: it works in each form of address, and is on no page, in no line and in no process title, crash or not."""
    address = db.conninfo
    if form == "key-value":
        quoted = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
        address = f"host=127.0.0.1 port={db.server.port} dbname={db.name} user={ROLE} password='{quoted}'"
    more: dict[str, object] = {"database_url": address}
    if form == "file":
        file = tmp_path / "address"
        file.write_text(address + "\n")
        more = {"database_url": None, "env": {"SUPERVISOR_DATABASE_URL_FILE": str(file)}}
    one = Service(db, processes=2, health_port="auto", log_level="debug", **more)  # type: ignore[arg-type]
    if form == "file":
        del one.env["SUPERVISOR_DATABASE_URL"]
    with one:
        one.wait_ready()
        enqueue(db, "t.effect")
        enqueue(db, "t.exit", max_crashes=1)
        wait_done(db, 1)
        one.wait_event("worker.recovered")
        pieces = ("p@ss", quote(PASSWORD, safe=""), quote(PASSWORD))
        hides(command_lines(one), pieces)
        hides((one.get(path)[1] for path in ("/livez", "/readyz", "/metrics")), pieces)
        db.terminate_sessions("pg-supervisor%")  # connection errors like to quote the address
        one.wait_event("listener.listening", count=2)
        assert one.stop() == exits.OK
        hides(everything_said(one), pieces)


UNREACHABLE = {
    "wrong password, URL": "postgresql://{role}:{quoted}@127.0.0.1:{port}/{name}",
    "wrong password, key=value": "host=127.0.0.1 port={port} dbname={name} user={role} password='{escaped}'",
    "wrong host": "postgresql://{role}:{quoted}@no-such-host.invalid:{port}/{name}",
    "password not encoded": "postgresql://{role}:{secret}@127.0.0.1:1/{name}",
    "closed port": "postgresql://{role}:{quoted}@127.0.0.1:1/{name}",
    "wrong database": "postgresql://{role}:{quoted}@127.0.0.1:{port}/no_such_database",
}


@pytest.mark.parametrize(
    ("case", "way"),
    [
        *((case, "environment") for case in UNREACHABLE),
        *((case, way) for case in list(UNREACHABLE)[:3] for way in ("file", "flag")),
    ],
)
def test_an_address_that_does_not_connect_is_told_without_its_password(
    case: str, way: str, db: Database, tmp_path: Path
) -> None:
    """B41: the service waits for the database, says why, and hides the password in what the driver says."""
    escaped = SECRET.replace("\\", "\\\\").replace("'", "\\'")
    address = UNREACHABLE[case].format(
        role=ROLE, secret=SECRET, quoted=quote(SECRET, safe=""), escaped=escaped, port=db.server.port, name=db.name
    )
    file = tmp_path / "address"
    file.write_text(address)
    one = Service(
        db,
        processes=1,
        health_port="auto",
        log_level="debug",
        database_url=address,
        env={"SUPERVISOR_DATABASE_URL_FILE": str(file)} if way == "file" else None,
        arguments=("--database-url", address) if way == "flag" else (),
    )
    if way != "environment":
        del one.env["SUPERVISOR_DATABASE_URL"]
    with one:
        said = one.wait_event("database.unreachable", 15)
        assert said["reason"]
        hides(command_lines(one), PIECES)
        assert one.stop() == exits.OK
        hides(everything_said(one), PIECES)


def test_a_listening_address_that_does_not_connect_is_told_without_its_password(db: Database, service: Start) -> None:
    """B41: the second address there is. The service polls meanwhile and works."""
    address = f"postgresql://{ROLE}:{quote(SECRET, safe='')}@127.0.0.1:{db.server.port}/{db.name}"
    one = service(processes=1, listen_database_url=address, poll_without_listen_s=0.2, log_level="debug")
    one.wait_event("listener.lost")
    enqueue(db, "t.effect")
    wait_done(db, 1)
    assert one.stop() == exits.OK
    hides(everything_said(one), PIECES)


MALFORMED = {
    "no scheme": f"{ROLE}:{SECRET}@127.0.0.1/db",
    "another scheme": f"mysql://{ROLE}:{quote(SECRET, safe='')}@127.0.0.1/db",
    "bad port": f"postgresql://{ROLE}:{quote(SECRET, safe='')}@127.0.0.1:port/db",
    "open quote": f"host=127.0.0.1 user={ROLE} password='{SECRET}",
    "unknown keyword": f"host=127.0.0.1 usr={ROLE} password={SECRET}",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_address_is_refused_without_its_password(case: str, db: Database) -> None:
    """B41: in one line, with the exit code for wrong settings."""
    with Service(db, processes=1, database_url=MALFORMED[case]) as one:
        assert one.wait_exit(15) == exits.CONFIG
        text = "\n".join(everything_said(one))
        assert "SUPERVISOR_DATABASE_URL" in text
        assert "Traceback" not in text
        hides(everything_said(one), PIECES)


def test_what_handlers_say_of_the_address_hides_its_password(db: Database, service: Start) -> None:
    """B41: in their log lines, in errors nobody catches, and in the errors that the database keeps and every view
    shows: drivers quote addresses."""
    one = service(handlers="tests.support.leaky_handlers", processes=1, env={"LEAKED_ADDRESS": db.conninfo})
    enqueue(db, "k.logs")
    for kind in ("k.raises", "k.cancels", "k.driver"):
        enqueue(db, kind, max_attempts=1)
    wait_done(db, 1)
    wait_until(lambda: db.value("select count(*)::int from supervisor.dead_letter") == 3, 20, "three are dead")
    assert one.stop() == exits.OK
    said = {event["event"].split()[0] for event in one.log}
    assert said >= {"leak.structured", "leak.standard", "leak.exception", "leak.standard_exception", "thread.failed"}
    assert any("UserWarning" in event["event"] for event in one.log)
    assert one.noise == []
    pieces = ("p@ss", quote(PASSWORD, safe=""), quote(PASSWORD))
    hides(everything_said(one), pieces)
    kept = [row[0] for row in db.rows("select to_jsonb(j)::text from supervisor.jobs j")]
    assert any("***" in text for text in kept)
    hides(iter(kept), pieces)


def test_handlers_that_do_not_import_hide_the_password_they_quote(db: Database) -> None:
    """B41: the traceback is shown as it must be, the address in it without its password."""
    address = {"LEAKED_ADDRESS": db.conninfo}
    with Service(db, handlers="tests.support.leaky_import", processes=1, env=address) as one:
        assert one.wait_exit(20) == exits.CONFIG
        said = list(everything_said(one))
        assert any("cannot reach" in line for line in said)
        hides(iter(said), ("p@ss", quote(PASSWORD, safe=""), quote(PASSWORD)))


def test_a_secret_of_an_environment_is_in_no_command_line(db: Database, service: Start) -> None:
    """The parent hands its settings to the fork server and to workers by pipe, never as arguments."""
    one = service(processes=2)
    lines = list(command_lines(one))
    assert len(lines) >= 8, "parent, fork server, resource tracker, workers"
    hides(iter(lines), ("p@ss", quote(PASSWORD, safe=""), db.name))
    assert one.stop() == exits.OK
