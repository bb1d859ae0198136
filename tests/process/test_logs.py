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
from tests.support.service import Service
from tests.support.sizes import FULL
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
        while time.monotonic() - began < (60 if FULL else 20):
            for pid in workers_of(one):
                proc.kill(pid, random.choice([signal.SIGKILL, signal.SIGSEGV]))
                kills += 1
            one.send(signal.SIGHUP)
            wait_until(lambda: workers_of(one), 10, "a worker is back")
        ended = time.monotonic()
        wait_until(lambda: json.loads(one.get("/readyz")[1])["workers"]["ready"] == 3, 15, "three workers are ready")
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
    assert watch.longest_silence_s < 2.0
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


@pytest.mark.parametrize("case", UNREACHABLE)
def test_an_address_that_does_not_connect_is_told_without_its_password(case: str, db: Database) -> None:
    """B41: the service waits for the database, says why, and hides the password in what the driver says."""
    escaped = SECRET.replace("\\", "\\\\").replace("'", "\\'")
    address = UNREACHABLE[case].format(
        role=ROLE, secret=SECRET, quoted=quote(SECRET, safe=""), escaped=escaped, port=db.server.port, name=db.name
    )
    with Service(db, processes=1, health_port="auto", database_url=address, log_level="debug") as one:
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


def test_a_secret_of_an_environment_is_in_no_command_line(db: Database, service: Start) -> None:
    """The parent hands its settings to the fork server and to workers by pipe, never as arguments."""
    one = service(processes=2)
    lines = list(command_lines(one))
    assert len(lines) >= 8, "parent, fork server, resource tracker, workers"
    hides(iter(lines), ("p@ss", quote(PASSWORD, safe=""), db.name))
    assert one.stop() == exits.OK
