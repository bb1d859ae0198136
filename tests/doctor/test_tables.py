"""The schema and what keeps its tables small: each condition really made, found, cured as printed."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from supervisor.db.migrate import known_version
from supervisor.doctor import CHECKS, Level, Limits
from supervisor.doctor.report import commands
from supervisor.doctor.shipped import shipped
from tests.doctor.conftest import Patient, matching
from tests.support.database import Database
from tests.support.proxy import Proxy
from tests.support.roles import Roles
from tests.support.servers import ROLE

WARNING, PROBLEM, NOTE, OK = Level.WARNING, Level.PROBLEM, Level.NOTE, Level.OK

# -- what is shipped ------------------------------------------------------------------------------


def test_what_is_read_from_the_migrations_is_what_they_make(db: Database) -> None:
    """Every table's storage parameters and every index, and nothing else."""
    there = db.rows(
        "select c.relname, coalesce(c.reloptions, '{}') from pg_class c where c.relkind = 'r'"
        " and c.relnamespace = 'supervisor'::regnamespace and c.relname !~ '_[0-9]{8}$'"
    )
    assert shipped().options == {name: dict(pair.split("=", 1) for pair in options) for name, options in there}
    indexes = db.rows(
        "select i.relname, t.relname from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class t"
        " on t.oid = x.indrelid where t.relnamespace = 'supervisor'::regnamespace and not t.relispartition"
    )
    assert {name: index.table for name, index in shipped().indexes.items()} == dict(indexes)


def definitions(db: Database) -> dict[str, str]:
    return dict(
        db.rows(
            "select i.relname, pg_get_indexdef(i.oid) from pg_index x join pg_class i on i.oid = x.indexrelid"
            " join pg_class t on t.oid = x.indrelid"
            " where t.relnamespace = 'supervisor'::regnamespace and not t.relispartition"
        )
    )


@pytest.mark.pg("15", "18")
def test_every_index_that_is_missing_is_made_again_as_printed(patient: Patient) -> None:
    db, before = patient.db, definitions(patient.db)
    for name, index in shipped().indexes.items():
        key = db.value("select count(*)::int from pg_constraint where conname = %s and contype = 'p'", [name])
        db.execute(
            f"alter table supervisor.{index.table} drop constraint {name} cascade" if key
            else f"drop index supervisor.{name}"
        )  # fmt: skip
    found = matching(patient.ask(), "indexes", PROBLEM, "is missing")
    assert len(found) == len(before)
    for finding in found:
        patient.cure(finding)
    patient.sees_nothing("indexes", PROBLEM)
    assert definitions(db) == before


# -- the schema ------------------------------------------------------------------------------------


@pytest.mark.pg("15", "18")
def test_a_database_without_the_schema(blank_db: Database) -> None:
    patient = Patient(blank_db)
    report = patient.ask()
    assert "leases" in report.skipped
    patient.is_cured_of("schema", PROBLEM, "is not in this database")
    assert patient.ask().skipped == ()


def test_an_older_schema_a_newer_one_and_functions_of_another_build(patient: Patient) -> None:
    db = patient.db
    db.execute("update supervisor.migration set functions = 'of before', functions_by = '0.0.1'")
    patient.is_cured_of("schema", PROBLEM, "needs version")
    db.execute("update supervisor.migration set functions = 'another build'")
    patient.is_cured_of("schema", WARNING, "another build")
    db.execute("insert into supervisor.migration (version, name) values (%s, 'later')", [known_version() + 1])
    patient.finds("schema", NOTE, f"this release knows up to {known_version()}")


@pytest.mark.pg("15", "16", "18")
def test_rights_that_the_role_lacks(db: Database, roles: Roles) -> None:
    """A login that was forgotten, a right that was taken away; each remedy makes it whole."""
    patient = Patient(db, roles.login())
    finding = patient.finds("rights", PROBLEM, "usage on schema supervisor")
    grant, again = commands(finding.remedy)
    db.server.execute(grant)
    patient.sees_nothing("rights", PROBLEM)
    db.execute(f"revoke update on supervisor.lane from {roles.prefix}_worker")
    db.execute(f"revoke execute on function supervisor.renew from {roles.prefix}_worker")
    finding = patient.finds("rights", PROBLEM, "update on table lane, execute on function supervisor.renew(")
    with roles.creating():
        Patient(db).cure(type(finding)(finding.check, finding.level, finding.what, f"`{again}`"))
    patient.sees_nothing("rights", PROBLEM)


def test_rights_where_no_roles_were_ever_made(patient: Patient) -> None:
    db = patient.db
    made = Roles(db)
    address = made.login()
    schema_roles = [f"supervisor_{purpose}" for purpose in ("producer", "worker", "operator", "reader")]
    try:
        db.server.execute(f"grant usage on schema supervisor to {made.name_of(address)}", db.name)
        finding = Patient(db, address).finds("rights", PROBLEM, "and ", "more")
        with made.creating():
            Patient(db).cure(finding)
        Patient(db, address).sees_nothing("rights", PROBLEM)
    finally:
        db.server.execute(f"drop owned by {', '.join(schema_roles)}", db.name)
        for name in schema_roles:
            db.server.execute(f"drop role {name}")
        made.drop()


@pytest.mark.parametrize("purpose", ["operator", "reader", "producer"])
def test_other_roles_can_be_examined_too(db: Database, roles: Roles, purpose: str) -> None:
    """What they may not look at is said and is no end."""
    patient = Patient(db, roles.login(purpose))
    report = patient.ask(purpose=purpose)
    assert matching(report, "rights", OK, f"has the rights of the {purpose} role")
    assert report.skipped == ()
    refused = {finding.check for finding in report.findings if "permission denied" in finding.what}
    assert (refused >= {"schema", "history", "presence", "leases", "kinds"}) if purpose == "producer" else not refused
    assert all(finding.level is NOTE for finding in report.findings if "permission denied" in finding.what)
    assert matching(patient.ask(purpose="worker"), "rights", PROBLEM, "lacks rights of the worker role")


# -- storage parameters and indexes ----------------------------------------------------------------


def test_storage_parameters_that_were_changed(patient: Patient) -> None:
    db = patient.db
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    patient.is_cured_of("options", PROBLEM, "autovacuum is switched off for table job")
    db.execute("alter table supervisor.job reset (fillfactor, autovacuum_vacuum_scale_factor)")
    patient.is_cured_of("options", WARNING, "fillfactor=unset (shipped: 45)", "autovacuum_vacuum_scale_factor=unset")
    db.execute("alter table supervisor.session set (fillfactor = 100)")
    patient.is_cured_of("options", WARNING, "fillfactor=100 (shipped: 20)")
    db.execute("alter table supervisor.lane set (parallel_workers = 2)")
    patient.is_cured_of("options", NOTE, "parallel_workers=2")
    assert matching(patient.ask(), "options", OK)


def test_indexes_that_cannot_be_used(patient: Patient) -> None:
    """One that a failed build left behind, and one of ours."""
    db = patient.db
    db.execute("insert into supervisor.job (kind) values ('k'), ('k')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute('create unique index concurrently "left Behind" on supervisor.job (kind)')
    patient.is_cured_of("indexes", PROBLEM, "left Behind of table job cannot be used")
    assert '"left Behind"' not in str(definitions(db))
    db.server.execute(
        "update pg_index set indisvalid = false where indexrelid = 'supervisor.job_lane'::regclass", db.name
    )
    patient.is_cured_of("indexes", PROBLEM, "job_lane of table job cannot be used")
    assert "job_lane" in definitions(db)


def test_an_index_that_is_being_rebuilt_is_no_problem(patient: Patient) -> None:
    db = patient.db
    with db.connect(autocommit=False) as writer, ThreadPoolExecutor() as threads:
        writer.execute("lock table supervisor.job in row exclusive mode")
        rebuilt = threads.submit(db.connect().execute, b"reindex index concurrently supervisor.job_lane")
        db.wait_for("select count(*)::int from pg_index where not indisvalid", 1)
        patient.finds("indexes", NOTE, "job_lane_ccnew of table job is being built")
        patient.sees_nothing("indexes", PROBLEM, "job_lane_ccnew")
        writer.rollback()
        rebuilt.result(30)
    patient.sees_nothing("indexes", NOTE, "job_lane_ccnew")


@pytest.mark.parametrize(
    "index", ["(lease)", "(kind) where lease is null", "(queue, (attempts + 1))", "(kind) include (started_at)"]
)
def test_an_index_in_the_way_of_every_claim(patient: Patient, index: str) -> None:
    patient.db.execute(f"create index mine on supervisor.job {index}")
    patient.is_cured_of("indexes", WARNING, "index mine of table job covers a column that every claim changes")


def test_a_bloated_index(patient: Patient) -> None:
    db, limits = patient.db, Limits(bloat_bytes=200_000)
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    db.execute(
        "insert into supervisor.job (kind, unique_key) select 'k', md5(i::text) from generate_series(1, 20000) i"
    )
    db.execute("delete from supervisor.job where id % 50 <> 0")
    db.execute("vacuum (analyze) supervisor.job")
    found = matching(patient.ask(limits=limits), "indexes", WARNING, "are not needed")
    assert {finding.what.split()[1] for finding in found} >= {"job_unique"}
    for finding in found:
        patient.cure(finding)
    patient.sees_nothing("indexes", WARNING, "are not needed", limits=limits)


def test_dead_rows_that_nobody_removes(patient: Patient) -> None:
    db, limits = patient.db, Limits(dead_rows=1000, vacuum_s=3600)
    db.execute("alter table supervisor.dead_letter set (autovacuum_enabled = off)")
    db.execute(
        "insert into supervisor.dead_letter (id, status, reason, finished_at, run_at, created_at, claims, attempts,"
        " max_attempts, crashes, max_crashes, priority, queue, kind, payload, headers, errors)"
        " select i, 'dead', 'attempts', now(), now(), now(), 1, 1, 1, 0, 3, 0, 'q', 'k', '{}', '{}', '[]'"
        " from generate_series(1, 3000) i"
    )
    db.execute("delete from supervisor.dead_letter where id > 1")
    db.execute("select pg_stat_force_next_flush()")
    db.wait_for(
        "select n_dead_tup > 2000 from pg_stat_all_tables where relid = 'supervisor.dead_letter'::regclass", True
    )
    finding = patient.finds("autovacuum", WARNING, "table dead_letter has 2,999 dead rows", "never", limits=limits)
    patient.cure(finding)
    db.wait_for("select n_dead_tup from pg_stat_all_tables where relid = 'supervisor.dead_letter'::regclass", 0)
    patient.sees_nothing("autovacuum", WARNING, limits=limits)


def test_autovacuum_that_is_switched_off(patient: Patient) -> None:
    server = patient.db.server
    try:
        for name in ("autovacuum", "track_counts"):
            server.execute(f"alter system set {name} = off")
        server.reload()
        patient.db.wait_for("select setting from pg_settings where name = 'autovacuum'", "off")
        patient.is_cured_of("autovacuum", PROBLEM, "autovacuum is off")
        patient.is_cured_of("autovacuum", PROBLEM, "track_counts is off")
    finally:
        for name in ("autovacuum", "track_counts"):
            server.execute(f"alter system reset {name}")
        server.reload()


# -- who holds vacuum back --------------------------------------------------------------------------


@pytest.mark.pg("15", "18")
def test_a_transaction_that_is_open_for_long(patient: Patient) -> None:
    limits = Limits(long_s=0.3, very_long_s=3600)
    idle = patient.db.connect(autocommit=False, application_name="report \x1b[31m[bold]x")
    idle.execute("create table held (n int)")
    pid = idle.info.backend_pid
    patient.db.wait_for(
        f"select clock_timestamp() - xact_start > '0.3 s' from pg_stat_activity where pid = {pid}", True
    )
    finding = patient.is_cured_of(
        "horizon", WARNING, f"pid {pid}, user {ROLE}, application report", "idle in transaction", limits=limits
    )
    assert "\x1b" not in finding.what
    idle = patient.db.connect(autocommit=False)
    idle.execute("create table held (n int)")
    patient.is_cured_of("horizon", PROBLEM, f"pid {idle.info.backend_pid}", limits=Limits(long_s=0, very_long_s=0))


def test_a_prepared_transaction_that_was_forgotten(patient: Patient) -> None:
    conn = patient.db.connect(autocommit=False)
    conn.execute("create table held (n int)")
    conn.execute("prepare transaction 'it''s \"forgotten\"'")
    limits = Limits(long_s=0.0, very_long_s=3600)
    try:
        finding = patient.finds("horizon", WARNING, "prepared transaction it's", limits=limits)
        patient.db.execute(next(iter(commands(finding.remedy))))
        patient.sees_nothing("horizon", WARNING, "prepared", limits=limits)
    finally:
        for (gid,) in patient.db.rows("select gid from pg_prepared_xacts"):
            patient.db.execute("rollback prepared '" + gid.replace("'", "''") + "'")


# -- the history and ids ----------------------------------------------------------------------------


def today(days: int = 0) -> str:
    return f"{datetime.now(UTC) + timedelta(days=days):%Y%m%d}"


@pytest.mark.pg("15", "18")
def test_days_of_the_history_that_nobody_has_made(patient: Patient) -> None:
    patient.db.execute(f"drop table supervisor.history_{today(1)}")
    patient.is_cured_of("history", WARNING, "has no partition for")


@pytest.mark.pg("15", "18")
def test_finished_jobs_that_lie_in_no_day(patient: Patient) -> None:
    """They keep their day from being made, until they are moved as printed."""
    db = patient.db
    db.execute(f"drop table supervisor.history_{today()}")
    db.execute(
        "insert into supervisor.history (id, finished_at, run_at, created_at, claims, attempts, max_attempts, crashes,"
        " max_crashes, priority, queue, kind) select i, now(), now(), now(), 1, 1, 1, 0, 3, 0, 'q', 'k'"
        " from generate_series(1, 10) i"
    )
    assert db.value("select count(*)::int from supervisor.history_default") == 10
    patient.is_cured_of("history", WARNING, "10 jobs lie in its default partition")
    assert db.value("select count(*)::int from supervisor.history_default") == 0
    assert db.value("select count(*)::int from supervisor.history") == 10
    db.execute("update supervisor.history set finished_at = '2020-01-01'")
    patient.finds("history", NOTE, "10 finished jobs lie in the history's default partition")


def test_numbers_that_run_out(patient: Patient) -> None:
    db = patient.db
    db.execute("alter sequence supervisor.job_id_seq as bigint maxvalue 2147483647 restart 2000000000")
    db.execute("insert into supervisor.job (kind) values ('k')")
    patient.is_cured_of("ids", PROBLEM, "sequence job_id_seq (bigint) has given out 93%")
    db.execute("alter sequence supervisor.job_id_seq cycle")
    patient.is_cured_of("ids", PROBLEM, "begins anew at its end")


# -- one check that cannot be made is not the end ---------------------------------------------------


def test_a_table_that_is_locked_is_a_finding_and_the_others_go_on(patient: Patient) -> None:
    holder = patient.db.connect(autocommit=False)
    holder.execute("lock table supervisor.history_default in access exclusive mode")
    report = patient.ask()
    assert matching(report, "history", WARNING, "could not be checked in time")
    assert matching(report, "ids", OK)
    assert report.skipped == ()
    holder.rollback()
    assert matching(patient.ask(), "history", OK)


@pytest.mark.parametrize(
    ("fate", "words"),
    [("silent", "no answer within 1 s to check history"), ("reset", "server closed the connection unexpectedly")],
)
def test_a_server_that_is_lost_ends_the_questions_and_not_the_report(patient: Patient, fate: str, words: str) -> None:
    with Proxy(patient.db.conninfo) as proxy:

        def lose(text: str) -> str | None:
            if "history_default" not in text:
                return None
            if fate == "reset":
                return fate
            proxy._open.clear()  # as `freeze` does, which waits for the loop that this runs in
            return None

        proxy.lose(lose)
        report = Patient(patient.db, proxy.conninfo).ask(limits=Limits(check_s=1.0))
    assert matching(report, "database", PROBLEM, words), report.findings
    assert matching(report, "indexes", OK)
    names = [check.name for check in CHECKS]
    assert list(report.skipped) == names[names.index("history") + 1 :]
    assert matching(report, "skipped", NOTE, "not checked: ids, presence, leases, kinds")
