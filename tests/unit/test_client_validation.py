"""Everything about a job is checked before the connection is touched (B20, B40)."""

import importlib.metadata
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from supervisor import NewJob, enqueue, enqueue_many, handler
from supervisor.db.enqueue import single
from supervisor.errors import InvalidJob, SettingsInvalid
from supervisor.newjob import Alike, elements
from supervisor.payload import EMPTY
from tests.unit.test_payload import jsonb

LIGHT = (
    "typer",
    "rich",
    "structlog",
    "uvloop",
    "psycopg_pool",
    "prometheus_client",
    "pydantic_settings",
    "multiprocessing",
)


class Untouched(psycopg.Connection[Any]):
    """A connection on which nothing can be done: all that psycopg does on one begins with its `pgconn`."""

    def __init__(self) -> None:
        pass  # no server behind it

    @property
    def pgconn(self) -> Any:
        raise AssertionError("the connection was used")

    @pgconn.setter
    def pgconn(self, value: Any) -> None: ...

    def __del__(self, _warn: Any = None, /) -> None: ...


@pytest.fixture
def conn() -> Untouched:
    return Untouched()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"kind": ""}, "kind"),
        ({"kind": "a\x00"}, "kind"),
        ({"kind": 5}, "kind"),
        ({"kind": "é" * 65}, "kind"),
        ({"queue": ""}, "queue"),
        ({"queue": "a\nb"}, "queue"),
        ({"queue": "x" * 200}, "queue"),
        ({"priority": -101}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": 2**63}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_crashes": 2**31}, "max_crashes"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": timedelta(days=1000)}, "timeout"),
        ({"in_": -1}, "in_"),
        ({"in_": float("inf")}, "in_"),
        ({"in_": "1"}, "in_"),
        ({"in_": 1, "run_at": datetime.now(UTC)}, "in_"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at"),  # noqa: DTZ001
        ({"run_at": "2026-01-01"}, "run_at"),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))}, "run_at"),
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "a\x00"}, "unique_key"),
        ({"unique_key": "x" * 1025}, "unique_key"),
        ({"on_conflict": "ignore"}, "on_conflict"),
        ({"headers": {"a": "\x00"}}, "headers.a"),
        ({"headers": [1]}, "headers"),
        ({"payload": {"a": ["\ud800"]}}, "payload.a[0]"),
        ({"payload": [1]}, "payload"),
        ({"schema": 'x"; drop table job; --'}, "schema"),
        ({"schema": ""}, "schema"),
        ({"schema": "X"}, "schema"),
    ],
)
def test_a_bad_job_is_refused_before_the_connection_is_touched(
    conn: Untouched, options: dict[str, Any], field: str
) -> None:
    given = {"kind": "mail", **options}
    with pytest.raises(InvalidJob) as caught:
        enqueue(conn, given.pop("kind"), given.pop("payload", None), **given)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"job refused: {field}: ")
    assert "\n" not in str(caught.value)


def test_a_handlers_arguments_are_checked_before_the_connection_is_touched(conn: Untouched) -> None:
    def work(n: int) -> None: ...

    declared = handler("validated")(work)
    for call in (
        lambda: declared.enqueue(conn, "x"),  # type: ignore[call-overload]
        lambda: declared.at(priority=500).enqueue(conn, 1),
        lambda: declared.enqueue_many(conn, [{"n": 1}, {"n": None}]),
        lambda: declared.enqueue_many(conn, [5]),  # type: ignore[list-item]
        lambda: enqueue(conn, declared, {"m": 1}),
        lambda: enqueue(conn, declared),
        lambda: enqueue_many(conn, [{"n": 1}]),  # type: ignore[list-item]
    ):
        with pytest.raises(InvalidJob):
            call()


def test_nothing_to_send_sends_nothing(conn: Untouched) -> None:
    assert enqueue_many(conn, []) == []


def test_an_unknown_option_is_a_type_error(conn: Untouched) -> None:
    with pytest.raises(TypeError, match="prio"):
        enqueue(conn, "mail", prio=1)  # type: ignore[call-overload]


@pytest.mark.parametrize("wrong", [None, "postgresql://x", object()])
def test_what_is_no_connection_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=f"conn: must be a psycopg Connection.*{type(wrong).__name__}"):
        enqueue(wrong, "mail")


def test_a_bad_schema_setting_is_a_setting(conn: Untouched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_SCHEMA", "a-b")
    with pytest.raises(SettingsInvalid, match="SUPERVISOR_SCHEMA"):
        enqueue(conn, "mail")


def test_a_job_is_what_it_was_when_made() -> None:
    payload = {"n": [1]}
    job = NewJob("mail", payload)
    payload["n"].append(2)
    assert job.payload_json == '{"n":[1]}'
    assert "payload" not in repr(job)


def test_an_element_of_a_bulk_holds_all_that_was_chosen() -> None:
    job = NewJob(
        'ma"il',
        {"n": 1e300, "s": 'a"\\'},
        queue="q'",
        priority=-3,
        run_at=datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
        max_attempts=2,
        max_crashes=1,
        timeout=1.5,
        unique_key="k}",
        headers={"t": 1},
    )
    assert jsonb(job.element("replace")) == {
        "kind": 'ma"il',
        "payload": {"n": 1e300, "s": 'a"\\'},
        "queue": "q'",
        "priority": -3,
        "run_at": "2025-12-31T23:00:00+00:00",
        "max_attempts": 2,
        "max_crashes": 1,
        "timeout": 1.5,
        "unique_key": "k}",
        "on_conflict": "replace",
        "headers": {"t": 1},
    }
    assert json.loads(NewJob("mail", in_=timedelta(seconds=2)).element("skip"))["delay"] == 2


def test_jobs_that_are_alike_are_those_made_one_by_one() -> None:
    options: dict[str, Any] = {"queue": "q", "unique_key": "k", "unique_for": 5, "headers": {"h": 1}}
    made = [NewJob("mail", {"n": n}, **options) for n in range(3)]
    alike = Alike(made[0], [job.payload_json for job in made])
    assert list(elements(alike, "skip")) == [job.element("skip") for job in made]
    assert [job.element("skip") for job in alike] == [job.element("skip") for job in alike[:]]
    assert [job.payload_json for job in alike] == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert (len(alike), alike[-1].payload_json, alike[1].more) == (3, '{"n":2}', {"unique_for": 5.0})


def test_what_is_as_usual_is_not_sent() -> None:
    assert jsonb(NewJob("mail").element("skip")) == {"kind": "mail", "payload": {}}
    assert single(NewJob("mail"), EMPTY, "raise")[1] == ("mail", "{}")
    text, args = single(NewJob("mail", priority=1, unique_key="k", on_dead="hold", ordering_key="o"), EMPTY, "skip")
    assert args == ("mail", "{}", 1, "o", "hold", "k", "skip")
    assert "priority => %s::int, ordering_key => %s::text, on_dead => %s::text, unique_key => %s::text" in text


def test_importing_the_package_loads_nothing_of_the_service() -> None:
    """Every producer and every worker imports it."""
    code = f"import sys, supervisor; print([m for m in {LIGHT!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_namesake_on_pypi_is_refused_with_the_remedy(tmp_path: Any) -> None:
    info = tmp_path / "supervisor-4.2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.2.5\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import supervisor"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the PyPI package 'supervisor' 4.2.5")
    assert "pip uninstall" in last
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("supervisor")
