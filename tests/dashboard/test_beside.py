"""The dashboard beside the workers, and inside of other applications."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from supervisor import exits
from supervisor.dashboard import dashboard_app
from supervisor.errors import SettingsInvalid
from supervisor.settings import Settings
from tests.support import proc
from tests.support.browser import Browser
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.service import ROOT, Service
from tests.support.waiting import wait_until

# -- a child of the service -------------------------------------------------------------


def test_it_is_served_beside_the_workers_and_stops_with_them(db: Database, service: Callable[..., Service]) -> None:
    one = service(processes=1, dashboard_port="auto", dashboard_token="a token of many letters")
    address = one.wait_event("dashboard.serving")["address"]
    sent = {"authorization": "Bearer a token of many letters"}
    [supervisor] = httpx.get(f"{address}overview.json", headers=sent).json()["supervisors"]
    assert supervisor["pid"] == one.parent_pid
    assert httpx.get(f"{address}overview.json").status_code == 401
    assert one.stop() == exits.OK
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    assert "a token of many letters" not in one.tail(1000)
    assert not one.events("dashboard.killed")


def test_the_parent_knows_nothing_of_it(db: Database, service: Callable[..., Service]) -> None:
    """No package of the dashboard is loaded where jobs are supervised, nor where they run."""
    one = service(processes=1, dashboard_port="auto")
    one.wait_event("dashboard.serving")
    child = int(one.wait_event("dashboard.started")["pid"])
    for process in one.processes():
        loaded = _mapped(process.pid) + proc.command_line(process.pid)
        assert ("supervisor.dashboard" in loaded) == (process.pid == child)
    done = subprocess.run(
        [sys.executable, "-c", "import sys, supervisor.parent.service; print([n for n in sys.modules if n in "
         "('starlette', 'jinja2', 'uvicorn') or n.startswith('supervisor.dashboard')])"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def _mapped(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_its_death_touches_no_worker_and_it_is_started_again(
    sig: signal.Signals, db: Database, service: Callable[..., Service]
) -> None:
    one = service(processes=2, dashboard_port="auto")
    [job_id] = enqueue(db, "t.sleep", {"seconds": 3})
    db.wait_for("select count(*)::int from effects where note = 'start'", 1)
    before = one.worker_pids()
    one.wait_event("dashboard.serving")

    os.kill(int(one.wait_event("dashboard.started")["pid"]), sig)

    address = one.wait_event("dashboard.serving", count=2)["address"]
    assert httpx.get(f"{address}jobs.json").status_code == 200
    assert one.worker_pids() == before
    db.wait_for("select count(*)::int from effects where note = 'done' and attempt = 1", 1)
    assert db.value("select claims from supervisor.history where id = %s", [job_id]) == 1
    assert one.stop() == exits.OK


def test_crashes_beyond_its_budget_are_restarted_later(db: Database, service: Callable[..., Service]) -> None:
    one = service(processes=1, dashboard_port="auto", restart_budget=1, restart_backoff_s=1, restart_backoff_cap_s=1)
    for count in (1, 2):
        one.wait_event("dashboard.serving", count=count)
        os.kill(int(one.wait_event("dashboard.started", count=count)["pid"]), signal.SIGKILL)
    assert one.wait_event("dashboard.exited")["restart_in_s"] == 0
    assert 0.7 < one.wait_event("dashboard.exited", count=2)["restart_in_s"] < 1.3
    one.wait_event("dashboard.serving", count=3)


def test_one_that_cannot_start_is_left_and_the_workers_go_on(db: Database, service: Callable[..., Service]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one = service(processes=1, dashboard_port=port)
        assert f"{port}: in use" in one.wait_event("dashboard.refused_settings")["reason"]
        one.wait_event("dashboard.given_up")
    enqueue(db, "t.effect")
    db.wait_for("select count(*)::int from effects", 1)
    assert len(one.events("dashboard.started")) == 1


def test_it_ends_when_its_parent_is_killed(db: Database, service: Callable[..., Service]) -> None:
    one = service(processes=1, dashboard_port="auto")
    one.wait_event("dashboard.serving")
    child = int(one.wait_event("dashboard.started")["pid"])
    one.kill()
    wait_until(lambda: child not in {process.pid for process in one.processes()}, 10, "the dashboard has left")


def test_it_is_there_while_the_database_is_away(blank_db: Database, service: Callable[..., Service]) -> None:
    """It is wanted most when nothing else comes up."""
    db = blank_db
    one = Service(db, processes=1, dashboard_port="auto", env={"SUPERVISOR_DATABASE_URL": _nowhere(db.conninfo)})
    with one:
        address = one.wait_event("dashboard.serving")["address"]
        answer = httpx.get(address, timeout=20)
        assert answer.status_code == 503
        assert "The database does not answer" in answer.text
        assert one.stop() == exits.OK


def _nowhere(conninfo: str) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return re.sub(r"port=\d+", f"port={free.getsockname()[1]}", conninfo)


# -- mounted ----------------------------------------------------------------------------


@contextmanager
def shop(db: Database, mount: str, **env: str) -> Iterator[httpx.Client]:
    """An application with the dashboard in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {key: value for key, value in Service(db).env.items() if key != "SUPERVISOR_HEALTH_PORT"}
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "tests.support.mounted:app", "--port", str(port), "--log-level", "warning"],
        cwd=ROOT, env={**base, "MOUNT": mount, **env},
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:

            def up() -> bool:
                try:
                    return client.get("/").text == "the shop"
                except httpx.ConnectError:
                    return False

            wait_until(up, 20, "the shop is open")
            yield client
    finally:
        process.terminate()
        process.wait(10)


def test_mounted_under_a_path_every_link_stays_below_it(db: Database, browser: Browser) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    with shop(db, "/admin/jobs-of-ours", GUARDED="1") as client:
        root = "/admin/jobs-of-ours"
        for path in ("/", "/jobs", "/queues", "/health", f"/jobs/{job_id}", "/nothing"):
            text = client.get(root + path).text
            links = re.findall(r'(?:href|src|action)="([^"]*)"', text)
            assert len(links) > 8
            for link in links:
                assert link.startswith((root + "/", "#main")), f"{link} on {path}"
            for link in links:
                if not link.startswith("#") and "/order" not in link:
                    assert client.get(link).status_code == 200, link
        browser.open(f"{str(client.base_url).rstrip('/')}{root}/jobs/{job_id}")
        browser.one("#orders button[value=cancel]").click()
        browser.wait_text("1 job cancelled.")
        assert browser.driver.current_url.endswith(f"{root}/jobs/{job_id}?said=cancel&done=1")
        browser.quiet()
        assert client.get("/").text == "the shop"
        assert client.get(root).status_code == 307


def test_mounted_it_asks_for_its_own_token(db: Database) -> None:
    with shop(db, "/ops", SUPERVISOR_DASHBOARD_TOKEN="a token of many letters") as client:
        sent = client.get("/ops/jobs?status=dead")
        assert sent.headers["location"] == "/ops/login?to=%2Fjobs%3Fstatus%3Ddead"
        token = re.search(r'name="form_token" value="(\w+)"', client.get("/ops/login").text)
        assert token is not None
        data = {"form_token": token[1], "token": "a token of many letters", "to": "/jobs?status=dead"}
        done = client.post("/ops/login", data=data)
        assert done.headers["location"] == "/ops/jobs?status=dead"
        assert "Path=/ops;" in done.headers["set-cookie"]
        assert client.get("/ops/jobs").status_code == 200


def test_mounted_it_is_not_open_by_oversight(db: Database) -> None:
    settings = Settings.load(database_url=db.conninfo)
    with pytest.raises(SettingsInvalid, match="guarded_elsewhere=True"):
        dashboard_app(settings)
    with pytest.raises(SettingsInvalid, match="SUPERVISOR_DATABASE_URL"):
        dashboard_app(Settings.load(), guarded_elsewhere=True)
    assert callable(dashboard_app(settings, guarded_elsewhere=True))


def test_behind_a_proxy_that_strips_a_path(db: Database, dashboard: Callable[..., Any]) -> None:
    page = dashboard(dashboard_root_path="/ops/jobs")
    text = httpx.get(page.address.removesuffix("/ops/jobs") + "/jobs").text
    links = re.findall(r'(?:href|src|action)="([^"#]*)"', text)
    assert links
    assert all(link.startswith("/ops/jobs/") for link in links), links
    answer = httpx.get(page.address.removesuffix("/ops/jobs") + "/static/style.css")
    assert answer.status_code == 200


# -- idle -------------------------------------------------------------------------------


def test_nobody_looks_then_nothing_is_asked(db: Database, dashboard: Callable[..., Any]) -> None:
    """A dashboard that nobody has opened holds no connection."""
    dashboard()
    began = time.monotonic()
    seen = db.server_sessions("pg-supervisor dashboard%")
    assert seen == []
    assert time.monotonic() - began < 60
