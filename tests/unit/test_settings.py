"""Settings: every problem told at once, in words that help; no secret told ever."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from supervisor import dsn
from supervisor.errors import SettingsInvalid
from supervisor.settings import QueueWeight, Settings, document, parse_queues, unknown_variables

PASSWORDS = [
    "p@ssw0rd!",
    "a#b%c/d",
    "q?r:s t",
    "@#%/?: x",
    "100%zz",
    "%41bc%",
    "it's \\ quoted",
    "ends@",
    "12/ab@cd",
    "x&y=z",
]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import os

    for name in list(os.environ):
        if name.startswith("SUPERVISOR_"):
            monkeypatch.delenv(name)
    known = set(dsn._known)
    yield
    dsn._known.clear()
    dsn._known.update(known)


def problems(**flags: Any) -> list[str]:
    with pytest.raises(SettingsInvalid) as caught:
        Settings.load(**flags)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return caught.value.problems


def quoted(password: str) -> str:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def test_defaults_hold_together() -> None:
    settings = Settings.load()
    assert settings.database_url is None
    assert settings.schema_ == "supervisor"
    assert settings.handlers == ("handlers",)
    assert settings.queues == (QueueWeight("*", 1),)
    assert settings.renew_every_s == pytest.approx(10.0)
    assert settings.processes >= 1


def test_flags_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_CONCURRENCY", "3")
    monkeypatch.setenv("SUPERVISOR_SCHEMA", "jobs")
    monkeypatch.setenv("SUPERVISOR_HANDLERS", "shop.jobs, mail")
    monkeypatch.setenv("SUPERVISOR_LOG_LEVEL", "WARNING")
    settings = Settings.load(concurrency=5, prefetch=None)
    assert (settings.concurrency, settings.prefetch, settings.schema_) == (5, None, "jobs")
    assert settings.handlers == ("shop.jobs", "mail")
    assert settings.log_level == "warning"
    assert Settings.load(schema="other").schema_ == "other"


def test_an_empty_variable_counts_as_unset_but_not_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty address in a deployment must not start an embedded database there."""
    monkeypatch.setenv("SUPERVISOR_CONCURRENCY", "")
    assert Settings.load().concurrency == 10
    monkeypatch.setenv("SUPERVISOR_DATABASE_URL", "")
    assert problems() == ["SUPERVISOR_DATABASE_URL is set but empty: unset it or give an address"]


def test_all_problems_are_told_at_once_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_CONCURRENCY", "0")
    monkeypatch.setenv("SUPERVISOR_LEASE_S", "soon")
    monkeypatch.setenv("SUPERVISOR_SCHEMA", 'a"b')
    monkeypatch.setenv("SUPERVISOR_QUEUES", "a,b*2,a")
    found = problems(max_jobs=0, colour="red")
    assert [line.partition("=")[0].partition(" ")[0] for line in found] == [
        "SUPERVISOR_SCHEMA",
        "SUPERVISOR_QUEUES",
        "SUPERVISOR_CONCURRENCY",
        "SUPERVISOR_LEASE_S",
        "SUPERVISOR_MAX_JOBS",
        "colour",
    ]
    assert "SUPERVISOR_QUEUES=a,b*2,a: queue 'a' is named twice" in found
    assert all("\n" not in line for line in found)


def test_settings_are_checked_against_each_other_with_numbers() -> None:
    assert problems(lease_s=3, renew_every_s=2) == [
        "lease_s=3 must be at least 3 x renew_every_s=2: one late renewal must not cost a running job its lease"
    ]
    assert Settings.load(lease_s=0.7).renew_every_s == pytest.approx(0.7 / 3)
    assert "retry_base_s=10 must not be above retry_cap_s=5" in problems(retry_base_s=10, retry_cap_s=5)
    [line] = problems(listen_database_url="postgresql://h/d")
    assert "listen_database_url is set but database_url is not" in line


@pytest.mark.parametrize("bad", ["nan", "inf", "-1", "1e99"])
def test_lengths_of_time_are_finite_and_sane(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("SUPERVISOR_DRAIN_TIMEOUT_S", bad)
    [line] = problems()
    assert line.startswith(f"SUPERVISOR_DRAIN_TIMEOUT_S={bad}: ")


def test_health_port_words() -> None:
    assert [Settings.load(health_port=port).health_port for port in (0, "off", "none", "auto", "8080")] == [
        None,
        None,
        None,
        0,
        8080,
    ]


def test_a_variable_that_kubernetes_set_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service named supervisor-health makes Kubernetes set SUPERVISOR_HEALTH_PORT in every pod."""
    monkeypatch.setenv("SUPERVISOR_HEALTH_PORT", "tcp://10.0.0.7:9090")
    [line] = problems()
    assert "enableServiceLinks: false" in line


def test_misspelt_variables_are_told_and_strangers_are_not() -> None:
    lines = unknown_variables({"SUPERVISOR_CONCURENCY": "4", "SUPERVISOR_PORT": "tcp://1.2.3.4:1", "PATH": "/bin"})
    assert lines == ["SUPERVISOR_CONCURENCY is not a setting and has no effect: is SUPERVISOR_CONCURRENCY meant?"]


def test_queues() -> None:
    assert parse_queues("critical*4, default*2,bulk") == (("critical", 4), ("default", 2), ("bulk", 1))
    assert parse_queues("a*b,**3") == (("a*b", 1), ("*", 3))
    for bad in ("", "a,,b", "a*0", "a*-1", "a*2.5", "a*+1", "a*1001", "a\nb", "x" * 129):
        with pytest.raises(ValueError, match="queue"):
            parse_queues(bad)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("form", ["raw URL", "encoded URL", "pairs"])
def test_any_password_reaches_the_driver_whole(password: str, form: str) -> None:
    text = {
        "raw URL": f"postgresql://bob:{password}@db.example:5433,db2/shop?sslmode=disable",
        "encoded URL": f"postgres://bob:{quote(password, safe='')}@db.example:5433,db2/shop?sslmode=disable",
        "pairs": f"user=bob  password = {quoted(password)} host='db.example,db2' dbname=shop",
    }[form]
    address = dsn.parse(text)
    known = conninfo_to_dict(address.text)
    # A raw %41 is read as an A: a URL that is valid as it stands means what it says.
    assert known["password"] == password
    assert (known["user"], known["host"], known["dbname"]) == ("bob", "db.example,db2", "shop")
    assert address.secrets == (password,)


@pytest.mark.parametrize(
    "text",
    [
        "bob:s3cretPart@db/shop",
        "mysql://bob:s3cretPart@db/shop",
        "postgresql+psycopg://bob:s3cretPart@db/shop",
        "postgresql://bob:s3cretPart@db:99999/shop",
        "postgresql://bob:s3cretPart@db:port/shop",
        "postgresql://bob:s3cretPart@db/shop?s3cretPart=1",
        "postgresql://bob:s3cretPart",
        "host=db password=my s3cretPart",
        "host=db password=my s3cretPart=x",
        "host=db password='s3cretPart",
        "host=db password=s3cretPart port=s3cretPart",
        "s3cretPart",
        "host=db password=s3cretPart\nx",
    ],
)
@pytest.mark.parametrize("way", ["flag", "environment", "file"])
def test_a_malformed_address_is_refused_without_a_word_of_it(
    text: str, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = {}
    if way == "flag":
        flags["database_url"] = text
    elif way == "environment":
        monkeypatch.setenv("SUPERVISOR_DATABASE_URL", text)
    else:
        (tmp_path / "url").write_text(text)
        monkeypatch.setenv("SUPERVISOR_DATABASE_URL_FILE", str(tmp_path / "url"))
    [line] = problems(**flags)
    assert line.startswith("SUPERVISOR_DATABASE_URL: ")
    assert "s3cretPart" not in line


def test_a_secret_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text("postgresql://bob:fromTheFile@db/shop\n")
    monkeypatch.setenv("SUPERVISOR_DATABASE_URL_FILE", str(path))
    url = Settings.load().database_url
    assert url is not None
    assert url.get_secret_value() == "postgresql://bob:fromTheFile@db/shop"
    flag = Settings.load(database_url="postgresql://other/x").database_url
    assert flag is not None
    assert flag.get_secret_value() == "postgresql://other/x"

    monkeypatch.setenv("SUPERVISOR_DATABASE_URL", "postgresql://h/d")
    assert problems() == ["SUPERVISOR_DATABASE_URL and SUPERVISOR_DATABASE_URL_FILE are both set: keep one"]
    monkeypatch.delenv("SUPERVISOR_DATABASE_URL")
    path.write_text("\n")
    assert problems() == [f"SUPERVISOR_DATABASE_URL_FILE={path}: the file is empty"]
    path.unlink()
    assert problems() == [f"SUPERVISOR_DATABASE_URL_FILE={path}: cannot be read: No such file or directory"]


def test_no_view_of_the_settings_shows_a_secret() -> None:
    settings = Settings.load(
        database_url="postgresql://bob:v3ry/S3cret@db/shop", listen_database_url="host=db password='oth3r S3cret'"
    )
    for view in (repr(settings), str(settings), str(settings.redacted()), settings.model_dump_json()):
        assert "S3cret" not in view
    assert settings.redacted()["database_url"] == "postgresql://bob:***@db/shop"
    assert settings.redacted()["schema"] == "supervisor"


def test_settings_travel_to_workers_and_take_the_hiding_along() -> None:
    settings = Settings.load(database_url="postgresql://bob:tr4vellingS3cret@db/shop", queues="a*2,b", lease_s=9)
    data = pickle.dumps(settings)
    dsn._known.clear()
    assert dsn.mask("tr4vellingS3cret") == "tr4vellingS3cret"
    again = pickle.loads(data)
    assert again == settings
    assert dsn.mask("FATAL: tr4vellingS3cret") == "FATAL: ***"


def test_the_page_of_settings_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == document(), "run python -m supervisor.settings"


@pytest.mark.parametrize("schema", ["pg_queue", "information_schema"])
def test_schema_names_of_the_server_are_refused_at_the_start(schema: str) -> None:
    with pytest.raises(SettingsInvalid, match="keeps for itself"):
        Settings.load(schema=schema, database_url="postgresql://u@h/d")
