"""Who may look, from where, and whose forms are taken."""

import subprocess
import sys
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from supervisor import exits
from supervisor.dashboard.headers import HEADERS
from tests.support.browser import Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.jobs import enqueue, job
from tests.support.service import ROOT, Service

Start = Callable[..., Dashboard]
TOKEN = "0123456789abcdef-token"
PAGES = ("/", "/jobs", "/queues", "/health", "/overview.json", "/jobs.json", "/jobs/1", "/nothing")


def refused_start(db: Database, *arguments: str, command: str = "dashboard", **settings: Any) -> str:
    """Start something that must not start; its one line."""
    env = Service(db, **settings).env
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", command, *arguments], cwd=ROOT, env=env, capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip
    assert done.returncode == exits.CONFIG, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_it_does_not_start_open_to_other_machines(db: Database, host: str) -> None:
    for command in ("dashboard", "run"):
        line = refused_start(db, command=command, dashboard_host=host, dashboard_port="auto")
        assert host in line
        assert "SUPERVISOR_DASHBOARD_TOKEN" in line


def test_settings_that_do_not_fit_are_told_in_one_line(db: Database) -> None:
    assert "shorter than 16" in refused_start(db, dashboard_token="short")
    assert "belong together" in refused_start(db, dashboard_user="me")
    secret = "a word that nobody may see"
    line = refused_start(db, dashboard_token=secret, dashboard_token_file="/nowhere")
    assert "both set" in line
    assert secret not in line


def test_a_port_in_use_is_told_in_one_line(db: Database, dashboard: Start) -> None:
    port = dashboard().address.rpartition(":")[2]
    assert f"SUPERVISOR_DASHBOARD_PORT={port}: in use on 127.0.0.1" in refused_start(db, "--port", port)


def test_a_missing_package_is_told_with_the_command_that_brings_it(db: Database) -> None:
    hidden = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name in ('starlette', 'uvicorn') else real(name, *rest)\n"
        "import importlib.util; importlib.util.find_spec = u.find_spec\n"
        "sys.argv = ['supervisor', *sys.argv[1:]]\n"
        "from supervisor.cli.app import main; main()\n"
    )
    for command in ("dashboard", "run"):
        env = Service(db, dashboard_port="auto").env
        done = subprocess.run(
            [sys.executable, "-c", hidden, command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == exits.CONFIG, done.stderr
        assert "pip install 'pg-supervisor[dashboard]'" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


# -- tokens and passwords ---------------------------------------------------------------


def test_nothing_is_shown_without_the_token(db: Database, dashboard: Start) -> None:
    enqueue(db, "t.secret_kind")
    page = dashboard(dashboard_token=TOKEN)
    for path in PAGES:
        answer = page.get(path, headers={"accept": "application/json"})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="supervisor"'), path
        assert "secret_kind" not in answer.text
        html = page.get(path, headers={"accept": "text/html"})
        assert html.status_code in (303, 401)
        assert "secret_kind" not in html.text
    for word in (".", "x" * len(TOKEN), TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é" * 30):
        sent = {"authorization": f"Bearer {word}".encode()}
        assert page.get("/jobs.json", headers=sent).status_code == 401, word
    assert page.get("/jobs.json", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert page.get("/static/style.css").status_code == 200
    assert "dashboard.refused" in page.log()
    assert TOKEN not in page.log()


def test_the_login_page_leads_to_where_one_wanted_to_go(dashboard: Start) -> None:
    page = dashboard(dashboard_token=TOKEN)
    sent = page.get("/jobs?status=dead&q=a%26b")
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?to=%2Fjobs%3Fstatus%3Ddead%26q%3Da%2526b")
    wrong = page.order("/login", form_page="/login", token="no such token at all", to="/jobs")
    assert wrong.status_code == 403
    assert "That is not the token" in wrong.text

    done = page.order("/login", form_page="/login", token=TOKEN, to="/jobs?status=dead")

    assert (done.status_code, done.headers["location"]) == (303, "/jobs?status=dead")
    cookie = SimpleCookie(done.headers["set-cookie"])["supervisor_session"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "strict", "/", "")
    assert TOKEN not in done.headers["set-cookie"]
    assert page.get("/jobs").status_code == 200
    page.order("/logout")
    assert page.get("/jobs").status_code == 303


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\n"]
)
def test_the_login_page_leads_nowhere_else(dashboard: Start, to: str) -> None:
    page = dashboard(dashboard_token=TOKEN)
    done = page.order("/login", form_page="/login", token=TOKEN, to=to)
    assert (done.status_code, done.headers["location"]) == (303, "/")


def test_a_session_ends_by_its_time_and_with_its_token(dashboard: Start) -> None:
    page = dashboard(dashboard_token=TOKEN)
    page.order("/login", form_page="/login", token=TOKEN)
    cookie = page.client.cookies["supervisor_session"]
    until, _, signature = cookie.partition(".")
    assert 11 * 3600 < int(until) - time.time() < 13 * 3600
    forged = (
        f"{int(until) + 1}.{signature}",
        f"{until}.{'0' * 64}",
        f"{until}.",
        "",
        ".",
        f"9{until}.{signature}",
        "x",
    )
    for value in forged:
        assert httpx.get(f"{page.address}/jobs", cookies={"supervisor_session": value}).status_code == 303, value
    assert httpx.get(f"{page.address}/jobs", cookies={"supervisor_session": cookie}).status_code == 200
    other = dashboard(dashboard_token=TOKEN + "2")
    assert httpx.get(f"{other.address}/jobs", cookies={"supervisor_session": cookie}).status_code == 303


def test_basic_authentication(dashboard: Start) -> None:
    page = dashboard(dashboard_user="ops", dashboard_password="päss:word")
    assert page.get("/").headers["www-authenticate"].startswith("Basic ")
    assert page.get("/", auth=("ops", "päss:word")).status_code == 200
    for user, word in (("ops", "päss"), ("op", "päss:word"), ("", ""), ("ops", "")):
        assert page.get("/", auth=(user, word)).status_code == 401
    for broken in ("Basic", "Basic !!!", "Basic b3Bz", "Bearer päss:word", "Digest x"):
        assert page.get("/", headers={"authorization": broken.encode()}).status_code == 401, broken
    assert page.get("/login").status_code == 404
    # A browser sends it by itself, so it does not stand for a form of ours.
    refused = page.client.post("/jobs/order", data={"id": "1", "order": "cancel"}, auth=("ops", "päss:word"))
    assert refused.status_code == 403


# -- where requests come from -----------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9180", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_without_authentication_only_this_machines_names_are_answered(
    db: Database, dashboard: Start, host: str
) -> None:
    """A name that an attacker points at 127.0.0.1 must not open the queue to the attacker's page."""
    enqueue(db, "t.secret_kind")
    page = dashboard()
    for path in PAGES:
        answer = page.get(path, headers={"host": host})
        assert answer.status_code in (400, 403), path
        assert "secret_kind" not in answer.text
    for fine in ("localhost", "127.0.0.1:1", "[::1]:9180", "LOCALHOST:80"):
        assert page.get("/jobs", headers={"host": fine}).status_code == 200, fine


def test_a_proxys_name_is_answered_when_it_is_set(dashboard: Start) -> None:
    page = dashboard(dashboard_allowed_hosts="ops.example, other.example")
    assert page.get("/jobs", headers={"host": "ops.example"}).status_code == 200
    assert page.get("/jobs", headers={"host": "evil.example"}).status_code == 403
    guarded = dashboard(dashboard_token=TOKEN)
    sent = {"host": "ops.example", "authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/jobs", headers=sent).status_code == 200


def test_forged_forms_are_refused(db: Database, dashboard: Start) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    token = page.form_token()
    data = {"id": str(job_id), "order": "cancel", "form_token": token}
    tried: list[tuple[str, dict[str, str], dict[str, str]]] = [
        ("no token", {**data, "form_token": ""}, {}),
        ("another token", {**data, "form_token": "0" * 64}, {}),
        ("from another site", data, {"origin": "https://evil.example"}),
        ("from a sandboxed page", data, {"origin": "null"}),
        ("another port of this machine", data, {"origin": "http://127.0.0.1:1"}),
        ("the browser says so", data, {"sec-fetch-site": "cross-site"}),
        ("a sibling domain", data, {"sec-fetch-site": "same-site"}),
        ("not a form", data, {"content-type": "text/plain"}),
    ]
    for what, fields, headers in tried:
        answer = page.client.post("/jobs/order", data=fields, headers=headers)
        assert answer.status_code in (400, 403), what
        assert "Nothing was done" in answer.text or answer.status_code == 400, what
    without = httpx.post(f"{page.address}/jobs/order", data=data)
    assert without.status_code == 403, "a token without its cookie"
    other = Dashboard.__new__(Dashboard)
    other.client = httpx.Client(base_url=page.address)
    other.form_token()
    assert other.client.post("/jobs/order", data=data).status_code == 403, "a token with another's cookie"
    other.client.close()
    for path in (f"/jobs/order?id={job_id}&order=cancel", "/queues/order?queue=default&order=pause"):
        assert page.get(path).status_code == 405, "nothing is changed by GET"
    assert job(db, job_id)["status"] == "queued"

    assert page.client.post("/jobs/order", data=data).status_code == 303
    assert job(db, job_id)["status"] == "cancelled"


def test_a_form_of_another_site_does_nothing_in_a_real_browser(
    db: Database, dashboard: Start, browser: Browser, tmp_path: Path
) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard()
    browser.open(f"{page.address}/jobs")  # so that it has the cookie
    evil = tmp_path / "evil.html"
    evil.write_text(
        f"<form method=post action='{page.address}/jobs/order'><input name=id value={job_id}>"
        "<input name=order value=cancel><button id=go>win a prize</button></form>"
    )
    browser.open(evil.as_uri())
    browser.one("#go").click()
    browser.wait_text("Nothing was done: the order came from another site.")
    assert job(db, job_id)["status"] == "queued"


def test_programs_need_the_token_alone(db: Database, dashboard: Start) -> None:
    """curl -H 'Authorization: Bearer ...' -d order=retry -d id=7 .../jobs/order"""
    first, second = enqueue(db, "t.noop", count=2, delay=3600)
    page = dashboard(dashboard_token=TOKEN)
    sent = {"authorization": f"Bearer {TOKEN}", "accept": "application/json"}
    for _ in range(2):
        answer = page.client.post("/jobs/order", data={"id": str(first), "order": "cancel"}, headers=sent)
    assert (answer.status_code, answer.json()["missing"]) == (409, 1)
    late = page.client.post(
        "/jobs/order", data={"id": str(second), "order": "reschedule", "in": "5", "unit": "d"}, headers=sent
    )
    assert (late.status_code, late.json()) == (
        200,
        {"text": "1 job given another time.", "said": "reschedule", "done": 1},
    )
    wrong = page.client.post("/jobs/order", data={"id": "1", "order": "drop table"}, headers=sent)
    assert (wrong.status_code, wrong.headers["content-type"]) == (400, "application/json")


def test_read_only_changes_nothing(db: Database, dashboard: Start) -> None:
    [job_id] = enqueue(db, "t.noop", delay=3600)
    page = dashboard("--read-only")
    assert '<form method="post"' not in page.get(f"/jobs/{job_id}").text
    for path in ("/queues", "/"):
        assert '<form method="post"' not in page.get(path).text
    answer = page.order(id=str(job_id), order="cancel")
    assert answer.status_code == 403
    assert "read-only" in answer.text
    assert page.order("/queues/order", queue="default", order="pause").status_code == 403
    assert job(db, job_id)["status"] == "queued"
    assert db.value("select count(*)::int from supervisor.queue") == 0


# -- headers ----------------------------------------------------------------------------


def test_every_answer_carries_the_policy(db: Database, dashboard: Start) -> None:
    page = dashboard()
    for path in (*PAGES, "/static/style.css", "/static/nothing.css", "/static/../app.py", "/static/%2e%2e/app.py"):
        answer = page.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert page.get("/static/%2e%2e/app.py").status_code == 404
    assert page.client.request("TRACE", "/").status_code == 405
    assert "server" not in page.get("/").headers


def test_large_and_odd_requests_are_refused(dashboard: Start) -> None:
    page = dashboard()
    token = page.form_token()
    for body in (b"x" * 100_000, b"a=%ff&" * 10, b"&".join(b"id=1" for _ in range(2000))):
        answer = page.client.post(
            "/jobs/order", content=body, headers={"content-type": "application/x-www-form-urlencoded"}
        )
        assert answer.status_code in (400, 403), body[:20]
    for ids in ([], ["x"], ["-1"], ["9" * 30], [str(n) for n in range(300)]):
        answer = page.client.post("/jobs/order", data={"form_token": token, "id": ids, "order": "cancel"})
        assert answer.status_code == 400, ids
    for fields in (
        {"at": "tomorrow"},
        {"in": "x"},
        {"in": "1", "unit": "y"},
        {"in": "-1"},
        {"in": "nan"},
        {"in": "1e99"},
        {"at": "0001-01-01"},
        {"at": "2030-01-01", "in": "1"},
    ):
        answer = page.client.post("/jobs/order", data={"form_token": token, "id": "1", "order": "reschedule", **fields})
        assert answer.status_code == 400, fields
