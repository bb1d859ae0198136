"""Bring a database's schema to this version's.

Migrations go forward only and each is applied once, all in one transaction under an advisory lock, so
any number of processes may migrate at once and a failure leaves the schema as it was. Functions are
installed again whenever a migration was applied or their text differs from what is installed, unless a
newer release installed them: two releases may share a schema version and differ in their functions.

Always true: a schema or functions newer than this code are never touched. Old supervisors go on running
beside them: migrations only add, and functions keep their names and parameters until no released
version calls them (docs/upgrades.md).
"""

import hashlib
from dataclasses import dataclass
from typing import Final, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from supervisor.db import roles, statements
from supervisor.errors import DatabaseUnavailable, SchemaMissing, SchemaTooNew
from supervisor.release import VERSION, older

_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('pg-supervisor migrate ' || %s, 0))"
_PARTITIONS_AHEAD: Final = 3


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What migrate did: the version before and after, the migrations applied, whether functions were.

    Attributes:
        functions_of: The newer release whose functions were left as they are; None if there is none.
        roles: The roles that were granted their rights.
    """

    schema: str
    before: int
    after: int
    applied: tuple[str, ...]
    functions_installed: bool
    functions_of: str | None = None
    roles: tuple[str, ...] = ()


class Installed(NamedTuple):
    """What is in a database: the schema's version, its functions' digest, the release that installed them."""

    version: int | None
    functions: str | None = None
    functions_by: str | None = None


def known_version() -> int:
    """The newest schema version that this code knows."""
    return max(int(name.split("_", 1)[0]) for name, _ in statements.scripts("migrations"))


def _functions_digest(schema: str) -> str:
    digest = hashlib.sha256()
    for name, text in statements.scripts("functions"):
        digest.update(f"{name}\0{statements.render(text, schema)}\0".encode())
    return digest.hexdigest()


def migrate(
    conninfo: str, schema: str = "supervisor", *, lock_timeout_s: float = 10.0, role_prefix: str | None = None
) -> MigrationReport:
    """Create or upgrade *schema* to this version, in one transaction.

    Args:
        lock_timeout_s: How long one statement may wait for a table lock before the whole migration
            is undone, in seconds. Waiting longer would queue every claim behind it.
        role_prefix: Create the roles of this prefix too, and grant them what roles.py says. None: roles
            that were set up before are granted their rights again when something was installed.

    Raises:
        SchemaTooNew: the schema is newer than this code; nothing was changed.
        RolesRefused: the roles cannot be created; nothing was changed.
        DatabaseUnavailable: the server could not be reached or a lock could not be had in time;
            nothing was changed.
    """
    statements.check_schema(schema)
    try:
        with psycopg.connect(conninfo, autocommit=False, application_name="pg-supervisor migrate") as conn:
            conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return _migrate(conn, schema, lock_timeout_s, role_prefix)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"migration undone: {_first_line(error)}", 0.0) from error


def _migrate(conn: psycopg.Connection, schema: str, lock_timeout_s: float, role_prefix: str | None) -> MigrationReport:
    cur = conn.cursor(row_factory=tuple_row)
    # The role's own limits are meant for other work. Another migration is waited for as long as it takes.
    cur.execute("select set_config(name, '0', true) from unnest(array['statement_timeout', 'lock_timeout']) as name")
    cur.execute(_LOCK, (schema,))
    cur.execute("select set_config('lock_timeout', %s, true)", (f"{int(lock_timeout_s * 1000)}ms",))
    name = sql.Identifier(schema)
    cur.execute("select 1 from pg_catalog.pg_namespace where nspname = %s", (schema,))
    if cur.fetchone() is None:  # "if not exists" would ask for the right to create even when it does
        cur.execute(sql.SQL("create schema {}").format(name))
    cur.execute(
        sql.SQL(
            "create table if not exists {}.migration (version integer primary key, name text not null, "
            "applied_at timestamptz not null default clock_timestamp(), functions text)"
        ).format(name)
    )
    cur.execute(sql.SQL("alter table {}.migration add column if not exists functions_by text").format(name))
    cur.execute(sql.SQL("select coalesce(max(version), 0) from {}.migration").format(name))
    row = cur.fetchone()
    before = int(row[0]) if row else 0
    known = known_version()
    if before > known:
        raise SchemaTooNew(schema, before, known)
    applied = []
    for script, text in statements.scripts("migrations"):
        version = int(script.split("_", 1)[0])
        if version <= before:
            continue
        cur.execute(statements.render(text, schema).encode())
        cur.execute(sql.SQL("insert into {}.migration (version, name) values (%s, %s)").format(name), (version, script))
        applied.append(script)
    digest = _functions_digest(schema)
    cur.execute(sql.SQL("select functions, functions_by from {}.migration where version = %s").format(name), (known,))
    row = cur.fetchone()
    functions, by = row or (None, None)
    kept = by if functions not in (None, digest) and older(VERSION, by) else None
    install = functions != digest and kept is None
    if install:
        for _, text in statements.scripts("functions"):
            cur.execute(statements.render(text, schema).encode())
        cur.execute(
            sql.SQL("update {}.migration set functions = %s, functions_by = %s where version = %s").format(name),
            (digest, VERSION, known),
        )
    cur.execute(sql.SQL("select {}.make_partitions(%s)").format(name), (_PARTITIONS_AHEAD,))
    granted = roles.apply(cur, schema, role_prefix, renewed=bool(applied) or install, functions_of=kept)
    return MigrationReport(schema, before, known, tuple(applied), install, kept, granted)


def functions_match(found: Installed, schema: str) -> bool:
    """Whether the functions in the database are those of this code, to the letter."""
    return found.functions == _functions_digest(schema)


def check_version(found: Installed, schema: str) -> None:
    """Raise SchemaMissing or SchemaTooNew unless what was *found* can be worked with.

    Functions that a newer release installed serve this one. Those of an older one may lack what this one
    calls; between builds of one release nothing tells which is older, and they are let be.
    """
    known = known_version()
    if found.version is None or found.version < known:
        raise SchemaMissing(schema)
    if found.version > known:
        raise SchemaTooNew(schema, found.version, known)
    if found.functions != _functions_digest(schema) and older(found.functions_by, VERSION):
        raise SchemaMissing(schema)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
