"""Migrations: from nothing, again, at once, under load, under any name, and never half."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from supervisor.db import migrate as migrate_module
from supervisor.db import statements
from supervisor.db.migrate import Installed, MigrationReport, check_version, known_version, migrate
from supervisor.errors import DatabaseUnavailable, InvalidJob, SchemaMissing, SchemaTooNew
from tests.support.database import Database
from tests.support.queue import Conn, Holder, new_session_id, open_session, work

KNOWN = known_version()


@pytest.fixture
def canary(blank_db: Database) -> Database:
    """An empty database with a table that nothing may touch."""
    blank_db.execute("create table canary (id int primary key)")
    blank_db.execute("insert into canary values (1)")
    return blank_db


def objects(db: Database, schema: str = "supervisor") -> list[Any]:
    """Everything in the schema, functions with their text."""
    return db.rows(
        "select c.relkind::text, c.relname::text, coalesce(c.reloptions::text, '') from pg_class c"
        " where c.relnamespace = %(s)s::regnamespace union all"
        " select 'f', p.oid::regprocedure::text, md5(prosrc) from pg_proc p where p.pronamespace = %(s)s::regnamespace"
        " order by 1, 2",
        {"s": sql.Identifier(schema).as_string(None)},
    )


def round_trip(conn: Conn, schema: str) -> int:
    """Enqueue, claim and acknowledge one job; its id."""
    named = sql.Identifier(schema)
    row = conn.execute(sql.SQL("select id from {}.enqueue('k', unique_key => 'u')").format(named)).fetchone()
    assert row is not None
    session = new_session_id()
    open_session(conn, session, schema=schema)
    claim = work(conn, session, 5, schema=schema)
    assert claim.ids == [row[0]]
    assert work(conn, session, 0, acks=claim.jobs, schema=schema).acked == 1
    return int(row[0])


# -- from nothing, and again --------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_from_nothing_and_again_with_nothing_left_to_do(canary: Database) -> None:
    first = migrate(canary.conninfo)
    assert (first.before, first.after, first.functions_installed) == (0, KNOWN, True)
    assert len(first.applied) == KNOWN
    made = objects(canary)
    second = migrate(canary.conninfo)
    assert (second.before, second.after, second.applied, second.functions_installed) == (KNOWN, KNOWN, (), False)
    assert objects(canary) == made
    round_trip(canary.connect(), "supervisor")
    assert canary.value("select count(*)::int from canary") == 1


@pytest.mark.pg("15", "16", "18")
def test_eight_at_once_make_one_schema(canary: Database) -> None:
    start = threading.Barrier(8)

    def one(_: int) -> bool:
        start.wait()
        return migrate(canary.conninfo).before == 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(8))) == [False] * 7 + [True]
    round_trip(canary.connect(), "supervisor")


def test_waiting_for_another_migration_is_not_cut_short_by_the_time_limit_of_a_role(canary: Database) -> None:
    canary.execute(f"alter role current_user in database {canary.name} set statement_timeout = '200ms'")
    other = canary.connect(autocommit=False)
    other.execute(b"set local statement_timeout = 0")
    other.execute(migrate_module._LOCK.encode(), ("supervisor",))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(migrate, canary.conninfo)
        held = (
            "select coalesce(bool_or(now() - query_start > interval '500 ms'), false) from pg_stat_activity"
            " where application_name = 'pg-supervisor migrate' and wait_event = 'advisory'"
        )
        canary.wait_for(held, True)
        other.rollback()
        assert waiting.result(60).after == KNOWN


# -- names --------------------------------------------------------------------------------------

ODD = ["select", "user", "table", "job", "enqueue", "excluded", "j", "id", "_", "a" * 48, "x1", "now", "kind", "pg"]
REFUSED = [
    "", "a'b", 'a"b', "a;b", "a--b", "$$", "a\\b", "a.b", "a\nb", "a%b", "{schema}", "Upper", "äccent", "a" * 49,
    "a" * 200, "a\0b", "1a", " a", "a ", "pg_catalog", "pg_supervisor", "information_schema",
]  # fmt: skip


@pytest.mark.parametrize("schema", ODD)
def test_any_plain_name_works_reserved_words_too(canary: Database, schema: str) -> None:
    """B40."""
    migrate(canary.conninfo, schema)
    assert migrate(canary.conninfo, schema).applied == ()
    conn = canary.connect()
    canary.execute(sql.SQL("insert into {}.waiting values (1)").format(sql.Identifier(schema)).as_string(None))
    conn.execute(sql.SQL("listen {}").format(sql.Identifier(schema)))
    job = round_trip(conn, schema)
    assert len(list(conn.notifies(timeout=5, stop_after=1))) == 1
    named = sql.Identifier(schema).as_string(None)
    assert canary.rows(f"select id, status from {named}.jobs") == [(job, "done")]
    for call in (
        "discover()", "prune('7 days', '30 days', 10)", "make_partitions(4)", "drop_partitions('1 day')", "reap()",
        "cancel_job('{1}')", "retry_job('{1}')",
        """enqueue_many('[{"kind": "k"}, {"kind": "k", "unique_key": "v"}]')""",
        "sweep_lanes('{default}', '{0}', '{1970-01-01}', '{0}', '{infinity}', '{0}', '{2001-01-01}', 1, 1, 10)",
    ):  # fmt: skip
        canary.rows(f"select {named}.{call}")
    assert canary.value("select count(*)::int from canary") == 1


@pytest.mark.parametrize("schema", REFUSED)
def test_a_name_that_needs_thinking_about_is_refused_before_anything_is_sent(canary: Database, schema: str) -> None:
    """B40: with a text, not with an error of the server."""
    before = canary.rows("select nspname from pg_namespace order by 1")
    with pytest.raises(InvalidJob, match="SUPERVISOR_SCHEMA"):
        migrate(canary.conninfo, schema)
    assert canary.rows("select nspname from pg_namespace order by 1") == before
    assert canary.value("select count(*)::int from canary") == 1


@pytest.mark.parametrize(
    "name",
    ["'", '"', ";", "--", "$$", "\\", ".", "\n", "%", "{schema}", "select", "Ü", "a" * 128, "{", "}", "\t", "NULL"],
)
def test_any_name_of_queue_and_kind_goes_through_every_statement(db: Database, name: str) -> None:
    """B40: names are values, in arrays, notifications and registries alike."""
    from supervisor.db.jobs import Lane

    lane = Lane(name, 0)
    conn = db.connect()
    db.execute("insert into supervisor.waiting values (1)")
    db.execute("create table canary as select 1 as id")
    row = conn.execute("select id from supervisor.enqueue(%s, queue => %s, unique_key => %s)", [name, name, name])
    [(job,)] = row.fetchall()
    conn.execute(statements.statement("discover", "supervisor"))
    assert db.rows("select queue from supervisor.lane") == [(name,)]
    holder = Holder(db)
    [held] = holder.claim(1, lanes=[lane]).jobs
    assert (held.id, held.kind, held.queue) == (job, name, name)
    holder.settle(held, "failed", error=name, reason=name, delay_s=0)
    [held] = holder.claim(1, lanes=[lane]).jobs
    holder.settle(held, "dead", error=name, reason=name)
    assert db.rows("select kind, queue, last_error, reason from supervisor.dead_letter") == [(name,) * 4]
    assert db.value("select count(*)::int from canary") == 1


# -- versions -----------------------------------------------------------------------------------


def test_a_newer_schema_is_left_alone(canary: Database) -> None:
    migrate(canary.conninfo)
    canary.execute("insert into supervisor.migration (version, name) values (9999, 'from the future')")
    canary.execute("drop function supervisor.reap()")
    before = objects(canary)
    with pytest.raises(SchemaTooNew) as error:
        migrate(canary.conninfo)
    assert (error.value.found, error.value.known) == (9999, KNOWN)
    assert objects(canary) == before


def test_a_release_works_only_with_a_schema_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_module, "VERSION", "0.10.0")
    check_version(Installed(KNOWN), "s")
    for missing in (None, KNOWN - 1):
        with pytest.raises(SchemaMissing):
            check_version(Installed(missing), "s")
    with pytest.raises(SchemaTooNew):
        check_version(Installed(KNOWN + 1, "other", "0.9"), "s")
    for served in (None, "0.10.0", "0.11.0", "1.0", "0+source", "nonsense"):
        check_version(Installed(KNOWN, "other", served), "s")
    for older in ("0.9.0", "0.10.0rc1", "0.10.0.dev3"):
        with pytest.raises(SchemaMissing, match="supervisor migrate"):
            check_version(Installed(KNOWN, "other", older), "s")


def test_an_older_release_does_not_take_back_the_functions_of_a_newer_one(
    canary: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two releases may share a schema version: which of them migrates last must not matter."""

    def by(release: str, number: int) -> MigrationReport:
        with monkeypatch.context() as patched:
            patched.setattr(migrate_module, "VERSION", release)
            text = f"create or replace function {{schema}}.extra() returns int language sql as 'select {number}'"
            _scripts(patched, "functions", [("999_extra", text)])
            return migrate(canary.conninfo)

    assert by("0.9.0", 9).functions_installed
    assert by("0.10.0", 10).functions_installed
    for release in ("0.9.0", "0.10.0rc2", "0.9.0"):
        report = by(release, 9)
        assert (report.functions_installed, report.functions_of) == (False, "0.10.0")
        assert canary.value("select supervisor.extra()") == 10
    assert by("0.10.0", 10) == MigrationReport("supervisor", KNOWN, KNOWN, (), False)
    assert by("0.10.1", 11).functions_installed
    assert canary.value("select supervisor.extra()") == 11
    assert by("0+source", 12).functions_installed, "a source tree is whatever it is"
    assert by("0.10.0", 10).functions_installed


def _scripts(monkeypatch: pytest.MonkeyPatch, folder: str, extra: list[tuple[str, str]]) -> None:
    real = statements.scripts
    monkeypatch.setattr(statements, "scripts", lambda name: real(name) + (extra if name == folder else []))


def test_functions_are_replaced_when_their_text_changed(canary: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(canary.conninfo)
    with monkeypatch.context() as patched:
        text = "create or replace function {schema}.extra() returns int language sql as 'select 1'"
        _scripts(patched, "functions", [("999_extra", text)])
        report = migrate(canary.conninfo)
        assert (report.applied, report.functions_installed) == ((), True)
        assert canary.value("select supervisor.extra()") == 1
        assert not migrate(canary.conninfo).functions_installed
    assert migrate(canary.conninfo).functions_installed


@pytest.mark.parametrize("folder", ["migrations", "functions"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_nothing_behind(
    canary: Database, monkeypatch: pytest.MonkeyPatch, folder: str, existing: bool
) -> None:
    if existing:
        migrate(canary.conninfo)
        before = objects(canary)
    text = "create table {schema}.half (id int); alter table {schema}.half add constraint broken check (nonsense > 1)"
    with monkeypatch.context() as patched:
        _scripts(patched, folder, [("9998_half", text)])
        with pytest.raises(psycopg.errors.UndefinedColumn):
            migrate(canary.conninfo)
    if existing:
        assert objects(canary) == before
    else:
        assert canary.rows("select from pg_namespace where nspname = 'supervisor'") == []
    assert migrate(canary.conninfo).after == KNOWN
    round_trip(canary.connect(), "supervisor")


def test_a_migration_that_cannot_have_its_lock_gives_up_whole_and_in_time(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every claim would queue behind it."""
    before = objects(db)
    _scripts(monkeypatch, "migrations", [("9998_more", "alter table {schema}.job add column more int")])
    dump = db.connect(autocommit=False)
    dump.execute("lock table supervisor.job in access share mode")
    with pytest.raises(DatabaseUnavailable, match="lock timeout"):
        migrate(db.conninfo, lock_timeout_s=0.3)
    assert objects(db) == before
    dump.rollback()
    assert migrate(db.conninfo, lock_timeout_s=10).applied == ("9998_more",)


# -- beside a running service -------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_claims_go_on_without_an_error_while_the_schema_is_migrated(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With functions replaced and a column added under them, ten times."""
    db.execute("insert into supervisor.job (kind) select 'k' from generate_series(1, 20000)")
    stop = threading.Event()
    done = 0

    def worker() -> int:
        holder = Holder(db)
        count = 0
        held: list[Any] = []
        while not stop.is_set():
            claim = holder.claim(5, acks=held[1:])
            holder.settle(held[:1], "released")
            held = claim.jobs
            count += len(held)
        return count

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(worker) for _ in range(2)]
        try:
            for number in range(10):
                with monkeypatch.context() as patched:
                    column = f"alter table {{schema}}.job add column more{number} int"
                    extra = [
                        (f"{100 + before:04}_more", column if before == number else "select 1")
                        for before in range(number + 1)
                    ]
                    text = (
                        f"create or replace function {{schema}}.extra() returns int language sql as 'select {number}'"
                    )
                    _scripts(patched, "migrations", extra)
                    _scripts(patched, "functions", [("999_extra", text)])
                    report = migrate(db.conninfo)
                    assert report.applied == (f"{100 + number:04}_more",)
                    assert report.functions_installed
        finally:
            stop.set()
        done = sum(one.result(30) for one in workers)
    assert done > 100
    assert db.value("select coalesce(sum(crashes), 0)::int from supervisor.job") == 0


# -- rights -------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_an_owner_without_the_right_to_create_schemas_can_migrate_one_made_for_it(canary: Database) -> None:
    canary.server.execute("drop role if exists plain_owner")
    canary.server.execute("create role plain_owner login password 'p'")
    try:
        canary.server.execute('create schema "supervisor" authorization plain_owner', canary.name)
        conninfo = psycopg.conninfo.make_conninfo(
            canary.server.superuser_conninfo(canary.name), options="-c role=plain_owner"
        )
        assert migrate(conninfo).after == KNOWN
        assert migrate(conninfo).applied == ()
        owners = canary.rows(
            "select distinct relowner::regrole::text from pg_class where relnamespace = 'supervisor'::regnamespace"
        )
        assert owners == [("plain_owner",)]
        with psycopg.connect(conninfo, autocommit=True) as conn:
            round_trip(conn, "supervisor")
    finally:
        canary.server.execute("drop schema if exists supervisor cascade", canary.name)
        canary.server.execute("drop role plain_owner")


def test_the_texts_hold_no_placeholder_that_is_not_known() -> None:
    for folder in ("migrations", "functions", "sql"):
        for name, text in statements.scripts(folder):
            left = set(re.findall(r"\{[a-z_]+\}", text)) - {"{schema}", "{schema_literal}", "{channel}"}
            assert not left, f"{folder}/{name}: {left}"
