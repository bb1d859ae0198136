"""B39: whatever stands in a job's data, in a name or in an address is shown as text, and nothing of it runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.support.browser import CANARY, Browser
from tests.support.dashboard import Dashboard
from tests.support.database import Database

Start = Callable[..., Dashboard]

_SET: Final = f"window.{CANARY}=1"
HOSTILE: Final = (
    f"<script>{_SET}</script>",
    f"<img src=x onerror={_SET}>",
    f'"><svg onload={_SET}>',
    f"'><body onload={_SET}>",
    f"</script><script>{_SET}</script>",
    f"</textarea></title><script>{_SET}</script>",
    f"javascript:{_SET}",
    "{{7*7}}{% raw %}${7*7}#{7*7}",
    f'" autofocus onfocus="{_SET}" x="',
    "</pre><iframe src='javascript:alert(1)'>",
    "<a id=list data-live>\u202egnp.exe\u0007</a>",
    "<!--<b>-->&lt;i&gt;&amp;",
)


def test_what_is_used_here_would_run(browser: Browser, tmp_path: Path) -> None:
    """The control: written into a page as it is, it does run, and `quiet` says so."""
    ran = 0
    for text in HOSTILE[:5]:
        page = tmp_path / "raw.html"
        page.write_text(f'<!doctype html><body><div title="{text}">{text}</div>', encoding="utf-8")
        browser.open(page.as_uri())
        ran += bool(browser.script(f"return window.{CANARY}"))
        if ran:
            with pytest.raises(AssertionError, match="injected script ran"):
                browser.quiet()
    assert ran >= 3


def test_hostile_data_in_every_field_is_shown_as_text(db: Database, dashboard: Start, browser: Browser) -> None:
    ids = {text: _everywhere(db, text, number) for number, text in enumerate(HOSTILE, 1)}
    page = dashboard()
    for path in ("/", "/jobs", "/queues", "/health", "/jobs?status=running", "/jobs?status=dead", "/jobs?status=done"):
        _harmless(browser, page, path)
    for text, own in ids.items():
        for one in own:
            _harmless(browser, page, f"/jobs/{one}")
            # Kind, queue, unique key, error, its event and attempt, payload and headers with their keys and values.
            shown = browser.text("main")
            wanted = text.replace("\u202e", "\\u202e").replace("\u0007", "\\u0007")
            assert shown.count(wanted) >= 5, f"{wanted!r} is not shown as it is: {shown}"
            assert "49" not in browser.text("h1"), "a template was evaluated"


def test_hostile_addresses_are_shown_as_text(db: Database, dashboard: Start, browser: Browser) -> None:
    page = dashboard()
    for number, text in enumerate(HOSTILE, 1):
        _everywhere(db, text, number)
        asked = quote(text, safe="")
        for path in (
            f"/jobs?queue={asked}",
            f"/jobs?kind={asked}&q={asked}",
            f"/jobs?status={asked}",
            f"/jobs?before={asked}",
            f"/jobs?said={asked}&done={asked}&{asked}={asked}",
            f"/{asked}",
            f"/jobs/{asked}",
            f"/queues?{asked}",
        ):
            _harmless(browser, page, path)
        browser.open(page.address + f"/jobs?q={asked}")
        assert browser.one("input[name=q]").get_attribute("value") == text.replace("\u202e", "\\u202e").replace(
            "\u0007", "\\u0007"
        )


def test_json_is_sent_as_json(db: Database, dashboard: Start, browser: Browser) -> None:
    """A browser that opens a JSON view shows text: its type is told, sniffing is off, < > & are escapes."""
    ids = {text: _everywhere(db, text, number) for number, text in enumerate(HOSTILE, 1)}
    page = dashboard()
    own = [f"/jobs/{one[0]}.json" for one in ids.values()]
    for path in ("/overview.json", "/jobs.json", "/queues.json", "/outbox.json", "/health.json", "/nothing.json", *own):
        answer = page.get(path)
        assert answer.headers["content-type"] == "application/json", path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not set("<>&") & set(answer.text), path
        json.loads(answer.text)
        browser.open(page.address + path)
        browser.quiet()
    for text, (first, *_) in ids.items():
        assert page.json(f"/jobs/{first}.json")["job"]["payload"] == {text: [text, {"deep": text}]}
        found = page.get("/jobs.json", params={"q": text}).json()["jobs"]
        assert first in {job["id"] for job in found}, f"the search for {text!r} finds the job that holds it"


def test_ids_of_any_size_are_shown_and_ordered(db: Database, dashboard: Start) -> None:
    page = dashboard()
    biggest = 2**63 - 2
    for job_id in (2**31 + 1, 2**53 + 1, biggest):
        db.execute("insert into supervisor.job (id, kind) values (%s, 'big')", [job_id])
        assert page.json(f"/jobs/{job_id}")["job"]["id"] == job_id
        assert page.order(id=str(job_id), order="reschedule", **{"in": "1", "unit": "h"}).status_code == 303
    assert [job["id"] for job in page.json("/jobs")["jobs"]] == [biggest, 2**53 + 1, 2**31 + 1]
    assert [job["id"] for job in page.json(f"/jobs?before={biggest}")["jobs"]] == [2**53 + 1, 2**31 + 1]
    assert page.get(f"/jobs/{10**30}").status_code == 404


def _harmless(browser: Browser, page: Dashboard, path: str) -> None:
    """Open a page; nothing of the data runs, and no markup of it became part of the page."""
    browser.open(page.address + path)
    browser.quiet()
    foreign = browser.script(
        "return [...document.querySelectorAll('*')].filter(one => one.matches('script:not([src]), iframe, style,"
        ' [onload], [onerror], [onfocus], a[href^="javascript:" i], main img, object, embed\')).length'
    )
    assert foreign == 0, f"markup of the data became part of {path}"
    assert len(browser.all("#list")) <= 1, "an id of the data took the place of ours"


def test_odd_jobs_are_shown(db: Database, dashboard: Start) -> None:
    """What plain SQL has stored need not look like what the service stores."""
    deep = "[" * 3000 + "]" * 3000
    rows: list[tuple[str, str, str]] = [
        ("{}", "{}", '{"not": "a list"}'),
        (json.dumps({"big": "x" * 700_000}), "{}", "[]"),
        (json.dumps({"long": ["y" * 50] * 6000}), '{"trace": {"a": [1, null]}}', '["text", 5, null, {"at": "never"}]'),
        (f'{{"deep": {deep}}}', "{}", '[{"at": "2026-01-01T00:00:00", "error": 5, "attempt": "x"}]'),
        ("[1, 2]", "[]", "[]"),
        ("null", "null", "null"),
    ]
    page = dashboard()
    for payload, headers, errors in rows:
        job_id = db.value(
            "insert into supervisor.job (kind, payload, headers, errors) values ('odd', %s, %s, %s) returning id",
            [payload, headers, errors],
        )
        answer = page.get(f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        assert len(answer.content) < 700_000, "a page has a size that browsers can take"
        assert page.get(f"/jobs/{job_id}.json").status_code == 200
    for words in ("q=%00", "queue=%00", "q=" + "x" * 2000, "before=-1", "before=9e9", "after=99999999999999999999"):
        assert page.get(f"/jobs?{words}").status_code == 400, words
    for words in (
        "q=%ff%fe",
        "q=%ED%A0%80",
        "q={",
        "q=[",
        "q=%22",
        "q=%5Cu0000",
        "q={%22a%22:%22%5Cu0000%22}",
        "q=1e999",
    ):
        assert page.get(f"/jobs?{words}").status_code == 200, words


def _everywhere(db: Database, text: str, number: int) -> list[int]:
    """A queued, a running, a dead and a done job, workers, supervisors and counts with *text* wherever it fits."""
    data = json.dumps({text: [text, {"deep": text}]})
    errors = json.dumps([{"at": "2026-01-01T00:00:00+00:00", "event": text, "attempt": text, "error": text}])
    values: dict[str, Any] = {"text": text, "data": data, "errors": errors, "session": 1000 * number}
    columns = "kind, queue, unique_key, payload, headers, last_error, errors"
    ids = [
        db.value(
            f"insert into supervisor.job ({columns}) values (%(text)s, %(text)s, %(text)s, %(data)s, %(data)s,"
            " %(text)s, %(errors)s) returning id",
            values,
        ),
        db.value(
            f"insert into supervisor.job ({columns}, lease, started_at) values (%(text)s, %(text)s, null, %(data)s,"
            " %(data)s, %(text)s, %(errors)s, %(session)s, now()) returning id",
            values,
        ),
    ]
    buried = db.value("insert into supervisor.job (kind) values ('k') returning id")
    db.execute("select supervisor.bury(%s, 'dead', 'attempts')", [buried])
    db.execute(
        "update supervisor.dead_letter set kind = %(text)s, queue = %(text)s, unique_key = %(text)s, reason = %(text)s,"
        " payload = %(data)s, headers = %(data)s, last_error = %(text)s, errors = %(errors)s where id = %(id)s",
        {**values, "id": buried},
    )
    done = buried + 100_000
    db.execute(
        "insert into supervisor.history (id, finished_at, run_at, created_at, claims, attempts, max_attempts, crashes,"
        " max_crashes, priority, queue, kind, unique_key, last_error, errors, payload, headers) values (%(id)s, now(),"
        " now(), now(), 1, 1, 1, 0, 1, 0, %(text)s, %(text)s, %(text)s, %(text)s, %(errors)s, %(data)s, %(data)s)",
        {**values, "id": done},
    )
    doing = {
        "slot": text, "pid": text, "state": text, "running": text,
        "jobs": [{"id": ids[1], "kind": text, "started": text}, {"id": text}, text, {"id": 5, "kind": text}],
    }  # fmt: skip
    db.execute(
        "insert into supervisor.parent (id, name, host, pid, version, state, detail, expires_at) values"
        " (%(session)s, %(text)s, %(text)s, 1, %(text)s, %(text)s, %(detail)s, now() + interval '1 h'),"
        " (%(session)s + 1, %(text)s, %(text)s, 1, %(text)s, %(text)s, '[]', now() - interval '1 s')",
        {**values, "detail": json.dumps({"workers": text, "listening": False})},
    )
    db.execute(
        "insert into supervisor.session (id, parent, name, expires_at, doing, seen_at) values"
        " (%(session)s, %(session)s, %(text)s, now() + interval '1 h', %(doing)s, now()),"
        " (%(session)s + 1, 9, %(text)s, now() + interval '1 h', %(odd)s, now()),"
        " (%(session)s + 2, %(session)s, %(text)s, now(), null, null)",
        {**values, "doing": json.dumps(doing), "odd": json.dumps(text)},
    )
    db.execute("insert into supervisor.lane (queue, priority) values (%(text)s, 0)", values)
    db.execute("insert into supervisor.tally values (date_trunc('minute', now()), %(text)s, 'done', 3)", values)
    db.execute("insert into supervisor.tally values (date_trunc('minute', now()), %(text)s, %(text)s, 3)", values)
    db.execute("insert into supervisor.queue (name, paused_at, paused_by) values (%(text)s, now(), %(text)s)", values)
    return [*ids, buried, done]
