"""The queue's roles: what each must not do is tried, as that role; what it must be able to do is done."""

import asyncio
import re
from typing import Any, Final

import psycopg
import pytest
from psycopg import errors

from supervisor.client import enqueue, enqueue_many
from supervisor.db import roles as rights
from supervisor.db.migrate import migrate
from supervisor.db.roles import FUNCTIONS, PURPOSES, SEQUENCES, TABLES, RolesRefused, names
from supervisor.errors import InvalidJob, UniqueConflict
from supervisor.newjob import NewJob
from tests.support.database import Database
from tests.support.queue import Holder
from tests.support.roles import Roles
from tests.support.servers import ROLE
from tests.support.service import ROOT

TABLE_RIGHTS: Final = ("select", "insert", "update", "delete", "truncate")
DAY: Final = re.compile(r"(history|outbox_sent)_\d{8}")
TRIGGERS: Final = ("job_enqueued", "outbox_added")
"""Functions that nobody can call."""


def relations(db: Database, kinds: str) -> set[str]:
    """Tables, views or sequences of the schema; partitions by day left out."""
    found = db.rows(
        "select relname from pg_class where relnamespace = %s::regnamespace and relkind = any (%s)",
        [db.schema, list(kinds)],
    )
    return {row[0] for row in found if not DAY.fullmatch(row[0])}


def functions(db: Database) -> list[tuple[str, str, bool, list[str]]]:
    """Name, a call with nulls of the right types, whether it runs with its owner's rights, its settings."""
    return [
        (name, f"{db.schema}.{name}({', '.join(f'null::{kind}' for kind in kinds)})", definer, settings or [])
        for name, kinds, definer, settings in db.rows(
            "select p.proname, array(select format_type(t, null) from unnest(p.proargtypes) as t), p.prosecdef,"
            " p.proconfig from pg_proc p where p.pronamespace = %s::regnamespace order by 1",
            [db.schema],
        )
    ]


def attempt(table: str, right: str, column: str) -> str:
    """A statement that needs this right to the table and no other, and would change nothing."""
    return {
        "select": f"select 1 from {table} limit 0",
        "insert": f"insert into {table} default values",
        "update": f"update {table} set {column} = null where false",
        "delete": f"delete from {table} where false",
        "truncate": f"truncate {table}",
    }[right]


def may(conn: psycopg.Connection[Any], statement: str) -> bool:
    """Whether the server lets this login do it; undone in any case."""
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                conn.execute(statement.encode())
        except errors.InsufficientPrivilege:
            return False
        except (errors.NotNullViolation, errors.FeatureNotSupported, errors.ObjectNotInPrerequisiteState):
            return True  # it came past the question of rights
    return True


def acls(db: Database) -> list[tuple[Any, ...]]:
    return db.rows(
        "select relname::text, relacl::text from pg_class where relnamespace = 'supervisor'::regnamespace union all"
        " select oid::regprocedure::text, proacl::text from pg_proc where pronamespace = 'supervisor'::regnamespace"
        " union all select nspname, nspacl::text from pg_namespace where nspname = 'supervisor' order by 1"
    )


# -- the data is complete, and stated for everything there is ------------------------------------


def test_every_table_view_and_function_has_its_rights_stated(db: Database) -> None:
    """Whoever adds one says in supervisor/db/roles.py who may use it; this names the one that was forgotten."""
    assert relations(db, "rpvm") == set(TABLES)
    assert relations(db, "S") == set(SEQUENCES)
    assert {name for name, *_ in functions(db)} == set(FUNCTIONS)


def test_functions_of_producers_and_operators_run_with_their_owners_rights_and_a_pinned_path(db: Database) -> None:
    for name, _, definer, settings in functions(db):
        if {"producer", "operator"} & set(FUNCTIONS[name]):
            assert definer, f"{name} must be SECURITY DEFINER: its callers have no right to change a table"
        if definer:
            assert "search_path=pg_catalog, pg_temp" in settings, f"{name} must pin its search_path"


def test_the_page_names_what_producers_may_call() -> None:
    page = (ROOT / "docs" / "roles.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith("| `supervisor_producer`")]
    for name, whose in FUNCTIONS.items():
        assert (f"`{name}`" in line) == ("producer" in whose), name


@pytest.mark.pg("15", "16", "18")
def test_each_role_has_exactly_the_rights_stated(db: Database, roles: Roles) -> None:
    """Every table by every right and every function is tried by every role."""
    columns: dict[str, str] = dict(
        db.rows(
            "select distinct on (attrelid) attrelid::regclass::text, quote_ident(attname) from pg_attribute"
            " where attrelid::regclass::text like 'supervisor.%%' and attnum > 0 and attgenerated = ''"
            " and attidentity = '' order by attrelid, attnum",
            [],
        )
    )
    days = [row[0] for row in db.rows("select relname from pg_class where relname ~ '^history_[0-9]{8}$' limit 1")]
    assert days
    for purpose in PURPOSES:
        conn = roles.connect(purpose)
        wrong = [
            f"{purpose}: {right} on {table}, stated: {stated}"
            for table in (*TABLES, *days)
            for stated in [TABLES[table].of(purpose) if table in TABLES else ()]
            for right in (TABLE_RIGHTS if table != "jobs" else ("select",))
            if may(conn, attempt(f"supervisor.{table}", right, columns.get(f"supervisor.{table}", "id")))
            != (right in stated)
        ]
        wrong += [
            f"{purpose}: may call {name}"
            for name, call, _, _ in functions(db)
            if purpose not in FUNCTIONS[name] and name not in TRIGGERS and may(conn, f"select * from {call}")
        ]
        assert wrong == []
        granted = db.rows(
            "select distinct p.proname from pg_proc p where p.pronamespace = %s::regnamespace"
            " and has_function_privilege(%s, p.oid, 'execute') order by 1",
            [db.schema, names(roles.prefix)[purpose]],
        )
        assert [row[0] for row in granted] == sorted(name for name, whose in FUNCTIONS.items() if purpose in whose)


CHANGES: Final = (
    "create table supervisor.mine ()",
    "create function supervisor.mine() returns int language sql as 'select 1'",
    "drop table supervisor.job",
    "drop function supervisor.backoff",
    "alter table supervisor.job add column mine int",
    "create trigger mine after insert on supervisor.job execute function supervisor.job_enqueued()",
    "create index on supervisor.job (kind)",
    "alter table supervisor.history detach partition supervisor.history_default",
    "select nextval('supervisor.job_id_seq')",
    "select setval('supervisor.job_id_seq', 1)",
    "copy supervisor.job (kind) from stdin",
    "alter role current_user createrole",
)


@pytest.mark.parametrize("purpose", [*PURPOSES, "nobody"])
def test_no_role_changes_what_there_is(db: Database, roles: Roles, purpose: str) -> None:
    before = acls(db)
    conn = roles.connect(*([] if purpose == "nobody" else [purpose]))
    assert [statement for statement in CHANGES if may(conn, statement)] == []
    if purpose in ("worker", "operator", "reader"):  # a grant of what is not one's own is a warning and no error
        conn.execute("grant select on supervisor.jobs to public")
        assert acls(db) == before


@pytest.mark.pg("15", "16", "18")
def test_public_has_nothing(db: Database, roles: Roles) -> None:
    """Not even a role that was let into the schema by somebody else may call or read anything in it."""
    conn = roles.connect()
    assert not may(conn, "select id from supervisor.enqueue('k')")
    assert not may(conn, "select 1 from supervisor.jobs")
    db.execute("grant usage on schema supervisor to public")
    for name, call, _, _ in functions(db):
        assert name in TRIGGERS or not may(conn, f"select * from {call}"), name
    for table in TABLES:
        assert not may(conn, f"select 1 from supervisor.{table}"), table


# -- migrate --roles ------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_again_changes_nothing_and_takes_back_what_is_not_stated(db: Database, roles: Roles) -> None:
    before = acls(db)
    report = roles.make()
    assert report.roles == tuple(names(roles.prefix).values())
    assert acls(db) == before
    worker, reader = names(roles.prefix)["worker"], names(roles.prefix)["reader"]
    db.execute(f"grant truncate on supervisor.job to {worker}")
    db.execute(f"grant execute on function supervisor.enqueue to {reader}")
    db.execute("grant execute on function supervisor.settle to public")
    assert acls(db) != before
    roles.make()
    assert acls(db) == before


def test_a_plain_migrate_grants_again_what_it_installs(db: Database, roles: Roles) -> None:
    """The next release brings functions: its workers must not meet a refusal because nobody thought of the roles."""
    before = acls(db)
    worker = names(roles.prefix)["worker"]
    db.execute("drop function supervisor.own_priority")
    db.execute(f"revoke all on supervisor.lane from {worker}")
    assert migrate(db.conninfo).roles == ()  # nothing was installed
    db.execute("update supervisor.migration set functions = 'of before'")
    report = migrate(db.conninfo)
    assert report.functions_installed
    assert report.roles == tuple(names(roles.prefix).values())
    assert acls(db) == before


def test_a_role_that_was_dropped_does_not_come_back_by_itself(db: Database, roles: Roles) -> None:
    dropped = names(roles.prefix)["reader"]
    db.server.execute(f"drop owned by {dropped}", db.name)
    db.server.execute(f"drop role {dropped}")
    db.execute("update supervisor.migration set functions = 'of before'")
    assert dropped not in migrate(db.conninfo).roles
    roles.make()
    assert db.value("select count(*)::int from pg_roles where rolname = %s", [dropped]) == 1


def test_without_the_right_to_create_roles_the_sql_for_a_dba_is_in_the_error(blank_db: Database) -> None:
    """Nothing is changed; with what it names run by a superuser, the same command works."""
    made = Roles(blank_db)
    try:
        with pytest.raises(RolesRefused, match=f"role '{ROLE}' may not create roles, and nothing was changed") as error:
            migrate(blank_db.conninfo, role_prefix=made.prefix)
        assert blank_db.value("select count(*)::int from pg_namespace where nspname = 'supervisor'") == 0
        assert len(error.value.statements) == len(PURPOSES)
        for statement in error.value.statements:
            assert statement in str(error.value)
            blank_db.server.execute(statement)
        assert len(migrate(blank_db.conninfo, role_prefix=made.prefix).roles) == len(PURPOSES)
    finally:
        made.drop()


@pytest.mark.pg("15", "18")
def test_the_printed_script_makes_the_same(db: Database) -> None:
    """Run twice by a superuser, as a DBA might."""
    made = Roles(db)
    try:
        for _ in range(2):
            with psycopg.connect(db.server.superuser_conninfo(db.name), autocommit=True) as conn:
                conn.execute(rights.script("supervisor", made.prefix).encode())
        printed = acls(db)
        made.make()
        assert acls(db) == printed
        assert made.connect("producer").execute("select created from supervisor.enqueue('k')").fetchone() == (True,)
    finally:
        made.drop()


def test_functions_of_a_newer_release_keep_the_rights_it_gave(db: Database, roles: Roles) -> None:
    """The newer release may know functions that this one does not: taking the right to them would stop its workers."""
    db.execute("update supervisor.migration set functions = 'newer', functions_by = '99.0.0'")
    before = acls(db)
    assert migrate(db.conninfo).roles == ()
    with pytest.raises(RolesRefused, match=r"release 99\.0\.0, which is newer"):
        roles.make()
    assert acls(db) == before


@pytest.mark.parametrize("prefix", ["", "pg_mine", 'a"b', "Shop", "x" * 55, "1st", "a b"])
def test_a_prefix_that_needs_thinking_about_is_refused(db: Database, prefix: str) -> None:
    with pytest.raises(InvalidJob, match="role_prefix"):
        migrate(db.conninfo, role_prefix=prefix)


# -- producers ------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_a_producer_adds_jobs_in_its_own_transaction_by_every_way_the_client_has(db: Database, roles: Roles) -> None:
    conn = psycopg.connect(roles.login("producer"))
    with conn:
        one = enqueue(conn, "k", {"n": 1})
        conn.rollback()
        assert db.statuses() == {}
        one = enqueue(conn, "k", {"n": 1})
        assert enqueue(conn, "k", unique_key="a").created
        assert not enqueue(conn, "k", unique_key="a").created
        assert not enqueue(conn, "new", unique_key="a", on_conflict="replace").created
        with pytest.raises(UniqueConflict):
            enqueue(conn, "k", unique_key="a", on_conflict="raise")
        with pytest.raises(UniqueConflict):
            enqueue_many(conn, [NewJob("k", unique_key="b"), NewJob("k", unique_key="a")], on_conflict="raise")
        few = enqueue_many(conn, [NewJob("few") for _ in range(10)])
        many = enqueue_many(conn, [NewJob("many", {"n": n}) for n in range(2500)])
        assert db.statuses() == {}
        conn.commit()
    assert db.statuses() == {"queued": 2 + 10 + 2500}
    assert db.rows("select kind from supervisor.job where unique_key is not null") == [("new",)]
    stored = db.rows("select id, (payload->>'n')::int from supervisor.job where kind = 'many' order by id")
    assert stored == [(job.id, n) for n, job in enumerate(many)]
    assert len({one.id, *(job.id for job in few), *(job.id for job in many)}) == 2511


async def test_the_async_client_does_as_well_and_a_bulk_in_parts_is_whole_or_not_at_all(
    db: Database, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.client.MAX_DOCUMENT_BYTES", 20_000)
    address = roles.login("producer")
    jobs = [NewJob("k", {"n": n}) for n in range(2500)]
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as conn:
        assert (await enqueue(conn, "k")).created
        added = await enqueue_many(conn, jobs)
        assert [job.id for job in added] == sorted({job.id for job in added})
        assert db.value("select count(*)::int from supervisor.job") == 2501
        # The last part is refused by the database: no part stays.
        db.execute("alter table supervisor.job add constraint no_last check (payload <> '{\"n\": 2499}') not valid")
        with pytest.raises(psycopg.errors.CheckViolation):
            await enqueue_many(conn, jobs)
    assert db.value("select count(*)::int from supervisor.job") == 2501
    with psycopg.connect(address, autocommit=True) as sync:
        with pytest.raises(psycopg.errors.CheckViolation):
            enqueue_many(sync, jobs)
        assert len(enqueue_many(sync, jobs[:-1])) == 2499
    assert db.value("select count(*)::int from supervisor.job") == 5000


async def test_whoever_waits_hears_of_a_producers_job(db: Database, roles: Roles) -> None:
    """The trigger looks at a table that a producer may not see."""
    db.execute("insert into supervisor.waiting values (1)")
    async with await db.aconnect() as hearing, await psycopg.AsyncConnection.connect(roles.login("producer")) as conn:
        await hearing.execute("listen supervisor")
        await enqueue(conn, "k", queue="q")
        await conn.commit()
        async with asyncio.timeout(10):
            async for notice in hearing.notifies():
                assert '"queue" : "q"' in notice.payload
                break


@pytest.mark.parametrize(
    ("purpose", "statement"),
    [
        ("producer", "select created from supervisor.enqueue('k', unique_key => 'u', on_conflict => 'replace')"),
        ("producer", 'select created from supervisor.enqueue_many(\'[{"kind": "k"}]\')'),
        ("operator", "select supervisor.retry_job('{1}')"),
        ("operator", "select what from supervisor.cancel_job('{1}')"),
        ("worker", "select supervisor.make_partitions(40)"),
        ("worker", "select supervisor.drop_partitions('1 day')"),
        ("worker", "select supervisor.prune('1 day', '1 day', 10)"),
    ],
)
def test_names_put_in_the_way_are_not_run_with_the_owners_rights(
    db: Database, roles: Roles, purpose: str, statement: str
) -> None:
    """A login that may create things elsewhere shadows functions, operators and tables by its own search_path."""
    address = roles.login(purpose)
    login = roles.name_of(address)
    db.server.execute(f"create schema evil authorization {login}", db.name)
    db.server.execute("grant usage on schema evil to public", db.name)
    db.execute("create table canary (by text)")
    db.execute("grant insert on canary to public")
    db.execute("insert into supervisor.job (kind, unique_key) values ('k', 'u')")
    assert db.value("select id from supervisor.job") == 1
    with psycopg.connect(address, autocommit=True) as conn:
        for shadow, answer in (
            ("clock_timestamp() returns timestamptz", "return null;"),
            ("pg_notify(text, text) returns void", ""),
            ("jsonb_typeof(jsonb) returns text", "return null;"),
            ("octet_length(text) returns integer", "return null;"),
            ("format(text, text) returns text", "return null;"),
            ("current_setting(text, boolean) returns text", "return null;"),
            ("cardinality(smallint[]) returns integer", "return null;"),
            ("to_char(date, text) returns text", "return null;"),
            ("before(timestamptz, timestamptz) returns boolean", "return true;"),
        ):
            conn.execute(
                f"create function evil.{shadow} language plpgsql as"
                f" $$ begin insert into public.canary values (current_user); {answer} end $$".encode()
            )
        conn.execute("create operator evil.< (leftarg = timestamptz, rightarg = timestamptz, function = evil.before)")
        conn.execute("create temp table job (kind text)")
        conn.execute("set search_path = evil, pg_temp, pg_catalog, supervisor")
        conn.execute(statement.encode())
    assert db.rows("select * from canary") == []


# -- workers --------------------------------------------------------------------------------------


def test_retention_is_not_a_way_around_missing_rights(db: Database, roles: Roles) -> None:
    """Ages below nothing drop no day that has not ended, and nobody can have a thousand partitions made."""
    conn = roles.connect("worker")
    days = "select count(*)::int from pg_inherits where inhparent = 'supervisor.history'::regclass"
    before = db.value(days)
    assert conn.execute("select supervisor.drop_partitions('-100 years')").fetchall() == []
    assert db.value(days) == before
    conn.execute("select supervisor.make_partitions(1000000)")
    assert db.value(days) == 1 + 32  # the default one; today and 31 days
    made = db.rows(
        "select distinct pg_get_userbyid(relowner)::text from pg_class where relnamespace = 'supervisor'::regnamespace"
    )
    assert made == [(ROLE,)]


@pytest.mark.pg("15", "16", "18")
def test_a_worker_drops_a_day_that_is_past_its_time(db: Database, roles: Roles) -> None:
    db.execute(
        "create table supervisor.history_20200101 partition of supervisor.history"
        " for values from ('2020-01-01 00:00:00+00') to ('2020-01-02 00:00:00+00')"
    )
    conn = roles.connect("worker")
    assert conn.execute("select supervisor.drop_partitions('7 days')").fetchall() == [("history_20200101",)]


# -- operators ------------------------------------------------------------------------------------


@pytest.mark.pg("15", "16", "18")
def test_an_operator_retries_and_cancels_by_function(db: Database, roles: Roles) -> None:
    conn = roles.connect("operator")
    db.execute("insert into supervisor.job (id, kind) values (11, 'k'), (12, 'k')")
    [held] = Holder(db).claim().jobs
    assert held.id == 11
    assert conn.execute("select id, what from supervisor.cancel_job('{11,12}')").fetchall() == [
        (12, "cancelled"), (11, "asked"),
    ]  # fmt: skip
    assert conn.execute("select supervisor.retry_job('{12}')").fetchall() == [(12,)]
    assert db.statuses() == {"queued": 1, "running": 1}
    reader = roles.connect("reader")
    assert reader.execute("select id, status from supervisor.jobs order by 1").fetchall() == [
        (11, "running"), (12, "queued"),
    ]  # fmt: skip
    assert not may(reader, "select supervisor.cancel_job('{12}')")
    assert not may(reader, "select supervisor.retry_job('{12}')")
