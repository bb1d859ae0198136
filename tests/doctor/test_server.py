"""The server and the way to it: each condition really made, found, cured as printed."""

from collections.abc import Callable

import psycopg
import pytest

from supervisor.doctor import Level, Limits
from tests.doctor.conftest import Patient, matching
from tests.support.database import Database
from tests.support.pgbouncer import PgBouncer
from tests.support.replicas import Replicas
from tests.support.roles import Roles
from tests.support.servers import ROLE, Server

WARNING, PROBLEM, NOTE, OK = Level.WARNING, Level.PROBLEM, Level.NOTE, Level.OK
Put = Callable[..., None]


@pytest.mark.pg("15", "16", "18")
def test_a_fresh_and_sound_system_has_no_warning(sound: Server, patient: Patient) -> None:
    report = patient.ask(listen=True, kinds=frozenset({"t.noop"}))
    assert report.at_least(WARNING) == ()
    assert report.skipped == ()
    assert {finding.check for finding in report.findings if finding.level is NOTE} <= {
        "drain", "horizon", "presence", "memory",
    }  # fmt: skip


def test_durability_that_was_traded_away(patient: Patient, setting: Put) -> None:
    setting(fsync="off", full_page_writes="off")
    patient.is_cured_of("durability", WARNING, "fsync is off")
    patient.is_cured_of("durability", WARNING, "full_page_writes is off")
    patient.db.execute(f"alter role {ROLE} in database {patient.db.name} set synchronous_commit = off")
    patient.is_cured_of("durability", WARNING, "synchronous_commit is off")


@pytest.mark.pg("18")  # transaction_timeout came with 17
@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("default_transaction_isolation", "'serializable'", NOTE),
        ("statement_timeout", "'3s'", NOTE),
        ("idle_session_timeout", "'1h'", WARNING),
        ("transaction_timeout", "'1h'", WARNING),
        ("default_transaction_read_only", "on", NOTE),
    ],
)
def test_what_a_roles_sessions_begin_with(patient: Patient, name: str, value: str, level: Level) -> None:
    patient.db.server.execute(f"alter role {ROLE} in database {patient.db.name} set {name} = {value}")
    words = {
        "default_transaction_isolation": "begins transactions as serializable",
        "default_transaction_read_only": "begins read-only transactions",
    }
    patient.is_cured_of("role", level, words.get(name, name))


def test_behind_a_pooler(patient: Patient) -> None:
    """It is seen, notifications do not come through, and a role's own settings count then."""
    db = patient.db
    with PgBouncer(db.server) as pooler:
        behind = Patient(db, pooler.conninfo(db.name))
        behind.finds("pooler", NOTE, "leads through a pooler")
        behind.finds("pooler", WARNING, "LISTEN uses it too")
        heard = behind.finds("listening", WARNING, "was not heard", listen=True)
        assert "SUPERVISOR_LISTEN_DATABASE_URL" in heard.remedy
        report = behind.ask(listen=True, listen_database_url=db.conninfo)
        assert matching(report, "listening", OK, "SUPERVISOR_LISTEN_DATABASE_URL was heard")
        assert not matching(report, "pooler", WARNING)
        assert matching(behind.ask(listen=True, wake=False), "listening", OK)
    db.execute(f"alter role {ROLE} in database {db.name} set default_transaction_isolation = 'repeatable read'")
    db.execute(f"alter role {ROLE} in database {db.name} set idle_in_transaction_session_timeout = '3s'")
    with PgBouncer(db.server) as pooler:
        behind = Patient(db, pooler.conninfo(db.name))
        patient.cure(behind.finds("role", PROBLEM, "begins transactions as repeatable read"))
        patient.cure(behind.finds("role", WARNING, "idle_in_transaction_session_timeout of 3 s"))
    with PgBouncer(db.server) as pooler:
        report = Patient(db, pooler.conninfo(db.name)).ask()
        assert [finding for finding in report.at_least(WARNING) if finding.check == "role"] == []


def test_notifications_over_an_address_that_leads_nowhere(patient: Patient) -> None:
    report = patient.ask(listen=True, listen_database_url="postgresql://u:hunter2secret@127.0.0.1:1/none")
    [found] = matching(report, "listening", PROBLEM, "SUPERVISOR_LISTEN_DATABASE_URL")
    assert "hunter2secret" not in str(report.document())
    assert "Connection refused" in found.what


def test_too_few_connections(patient: Patient) -> None:
    patient.finds("connections", PROBLEM, "may open 306 connections", "the server allows 197", processes=100)
    patient.db.server.execute(f"alter role {ROLE} connection limit 6")
    try:
        patient.is_cured_of("connections", PROBLEM, f"role {ROLE} is limited to 6")
    finally:
        patient.db.server.execute(f"alter role {ROLE} connection limit -1")
    patient.db.server.execute(f"alter database {patient.db.name} connection limit 7")
    patient.is_cured_of("connections", PROBLEM, f"database {patient.db.name} is limited to 7")


def test_connections_that_others_use(patient: Patient) -> None:
    for _ in range(12):
        patient.db.connect()
    patient.sees_nothing("connections", WARNING, processes=60)
    for _ in range(160):
        patient.db.connect()
    patient.finds("connections", WARNING, "of 200 connections are in use", processes=60)


def test_a_listener_that_does_not_read(patient: Patient) -> None:
    """A session that listens and sits in a transaction keeps every notification of the server."""
    limits = Limits(notices=0.0002)
    deaf = patient.db.connect(autocommit=False)
    deaf.execute("listen supervisor")
    deaf.commit()
    deaf.execute("select 1")
    conn = patient.db.connect()
    for _ in range(400):
        conn.execute("select pg_notify('other', repeat('x', 7000) || gen_random_uuid())")
    patient.is_cured_of("notifications", WARNING, "the notification queue is", limits=limits)


def test_a_replication_slot_that_nobody_reads(patient: Patient) -> None:
    server = patient.db.server
    server.execute("select pg_create_physical_replication_slot('left_behind', true)")
    try:
        patient.db.execute("create table filler as select repeat('x', 100) from generate_series(1, 30000)")
        limits = Limits(slot_bytes=1_000_000)
        patient.is_cured_of("slots", WARNING, "left_behind (physical) is read by nobody and keeps", limits=limits)
    finally:
        server.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


def test_transaction_ids_that_are_not_frozen(db: Database, patient: Patient, setting: Put) -> None:
    setting(autovacuum_freeze_max_age="100000", autovacuum="off")
    db.server.restart()
    db.execute("create table burnt (n int)")
    with db.connect(autocommit=True) as conn:
        conn.execute(
            "do $$ begin for i in 1..125000 loop begin insert into burnt values (i); exception when others then null;"
            " end; end loop; end $$"
        )
    try:
        patient.is_cured_of("wraparound", WARNING, "should have frozen it at 100,000")
    finally:
        db.server.execute("alter system reset autovacuum_freeze_max_age")
        db.server.restart()


def test_a_standby_is_told_from_a_server_that_takes_writes(patient: Patient) -> None:
    """As it is behind an address that names the wrong host after a failover."""
    with Replicas() as pair:
        report = Patient(patient.db, f"postgresql://postgres@127.0.0.1:{pair.ports[1]}/postgres").ask()
        [found] = matching(report, "version", PROBLEM, "is a standby and takes no writes")
        assert "host1,host2" in found.remedy


def test_who_may_not_see_others_sessions_is_told_so(db: Database, patient: Patient) -> None:
    """And once it may, it sees who holds vacuum back."""
    limits = Limits(long_s=0.0)
    with psycopg.connect(db.server.superuser_conninfo(db.name, application_name="backup")) as other:
        other.execute("create table held (n int)")
        patient.sees_nothing("horizon", WARNING, "backup", limits=limits)
        roles = Roles(db)
        try:
            roles.make()
            address = roles.login("worker")
            seer = Patient(db, address)
            finding = seer.finds("horizon", NOTE, "does not see the transactions of others", limits=limits)
            seer.cure(finding)
            seer.sees_nothing("horizon", NOTE, limits=limits)
            seer.finds("horizon", WARNING, f"pid {other.info.backend_pid}", "user postgres", "backup", limits=limits)
        finally:
            other.rollback()
            roles.drop()
