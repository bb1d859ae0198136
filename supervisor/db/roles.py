"""Least-privilege roles: who may do what with the queue's tables and functions, as data.

    producer   adds jobs, by enqueue and enqueue_many alone
    worker     the running service: claims, results, leases, sweeps, retention
    operator   looks, and acts by functions: retry, cancel, ...
    reader     looks

They are group roles that cannot log in; a DBA grants them to roles that can. Their names are the schema's
with the purpose behind it (supervisor_producer), or begin with another prefix.

    migrate --roles --> create what is missing, revoke all, grant what stands here   (one transaction)
    migrate         --> the same grants again whenever it installed something; the prefix is in `migration`

Always true: after a grant the four roles have exactly the rights named here, and PUBLIC none. What is not
named is granted to nobody; a test names it. Functions of producers and operators run with their owner's
rights and a pinned search_path, so these roles change no table except through them.

Elsewhere: what migrate does before (migrate.py); the page for DBAs (docs/roles.md).
"""

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import errors, sql

from supervisor.db.statements import check_schema
from supervisor.errors import InvalidJob, SupervisorError

PURPOSES: Final = ("producer", "worker", "operator", "reader")
_PREFIX: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,53}")


class Access(NamedTuple):
    """The rights to one table, as GRANT spells them; "" grants nothing."""

    worker: str = ""
    look: str = ""
    """Of operator and reader alike."""

    def of(self, purpose: str) -> tuple[str, ...]:
        """The rights of a purpose."""
        words = self.worker if purpose == "worker" else self.look if purpose in ("operator", "reader") else ""
        return tuple(word.strip() for word in words.split(",") if word.strip())


TABLES: Final[dict[str, Access]] = {
    "job": Access(worker="select, update, delete", look="select"),
    "session": Access(worker="select, insert, update", look="select"),
    "lane": Access(worker="select, insert, update, delete", look="select"),
    "parent": Access(worker="select, insert, update, delete", look="select"),
    "waiting": Access(worker="select, insert, delete", look="select"),
    "dead_letter": Access(worker="select, insert", look="select"),
    "history": Access(worker="select, insert", look="select"),
    "history_default": Access(worker="select", look="select"),
    "tally": Access(worker="select, insert, update", look="select"),
    "queue": Access(worker="select, update", look="select"),
    "place": Access(worker="select, insert, delete", look="select"),
    "pace": Access(worker="select, insert, delete", look="select"),
    "outbox": Access(worker="select, update, delete", look="select"),
    "outbox_parked": Access(worker="select, insert", look="select"),
    "outbox_sent": Access(worker="select, insert", look="select"),
    "outbox_sent_default": Access(worker="select", look="select"),
    "outbox_part": Access(worker="select, update", look="select"),
    "relay": Access(worker="select, insert, update, delete", look="select"),
    "inbox": Access(worker="select, insert", look="select"),
    "inbox_parked": Access(worker="select, insert", look="select"),
    "schedule": Access(worker="select, insert, update, delete", look="select"),
    "schedule_version": Access(worker="select, insert, update, delete", look="select"),
    "result": Access(worker="select, insert, update", look="select"),
    "awaited": Access(worker="select", look="select"),
    "gated": Access(worker="select, update, delete", look="select"),
    "gate_note": Access(worker="select, insert, delete, update", look="select"),
    "job_after": Access(worker="select, delete", look="select"),
    "rate": Access(worker="select, insert, delete", look="select"),
    "unique_hold": Access(worker="select", look="select"),
    "rebuild": Access(worker="select, insert, update", look="select"),
    "migration": Access(worker="select", look="select"),
    "jobs": Access(worker="select", look="select"),
}
"""Tables and views. Partitions by day are reached through history."""

SEQUENCES: Final[tuple[str, ...]] = ("job_id_seq", "gate_note_id_seq", "outbox_id_seq", "inbox_parked_id_seq")
"""Of identity columns: nobody needs a right to them, and nobody has one."""

_WORKER: Final = ("worker",)
_OPERATOR: Final = ("operator",)
_WORKER_AND_OPERATOR: Final = ("worker", "operator")
FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {
    "enqueue": ("producer", "worker"),
    "enqueue_many": ("producer", "worker"),
    "enqueue_batch": ("producer", "worker"),
    "after_problem": ("producer", "worker"),
    "problem": (),
    "options_problem": (),
    "parents_problem": (),
    "circle_problem": (),
    "order_links": (),
    "names_gate": (),
    "key_holder": (),
    "hold_key": (),
    "key_of": (),
    "prune_holds": (),
    "add_keyed": (),
    "job_enqueued": (),
    "wake": _WORKER,
    "open_session": _WORKER,
    "renew": _WORKER,
    "close_session": _WORKER,
    "move_session": _WORKER,
    "reap": _WORKER,
    "work": _WORKER,
    "claims_key": _WORKER,
    "await_claims": _WORKER_AND_OPERATOR,
    "running_of": _WORKER_AND_OPERATOR,
    "count_queue": _WORKER_AND_OPERATOR,
    "held_places": ("worker", "operator", "reader"),
    "free_places": ("worker", "operator", "reader"),
    "pace_of": ("worker", "operator", "reader"),
    "note_starts": _WORKER,
    "starts_again": _WORKER,
    "hold_places": _WORKER,
    "take_places": _WORKER,
    "check_queue": (),
    "tell_queue": _WORKER,
    "forget_queue": (),
    "pause_queue": _OPERATOR,
    "resume_queue": _OPERATOR,
    "set_queue": _OPERATOR,
    "unset_queue": _OPERATOR,
    "backoff": _WORKER,
    "own_priority": _WORKER,
    "noted": _WORKER,
    "bury": _WORKER,
    "move": _WORKER,
    "settle": _WORKER,
    "discover": _WORKER,
    "low_water": _WORKER,
    "put_back": _WORKER,
    "sweep": _WORKER,
    "sweep_lanes": _WORKER,
    "make_partitions": _WORKER,
    "drop_partitions": _WORKER,
    "prune": _WORKER,
    "parked_at": _WORKER,
    "next_gate": _WORKER,
    "rate_step": _WORKER,
    "tell_gates": _WORKER,
    "lock_keys": _WORKER,
    "hold_row": _WORKER,
    "advance": _WORKER,
    "tell_let_in": _WORKER,
    "pass_order": _WORKER,
    "pass_concurrency": _WORKER,
    "pass_rate": _WORKER,
    "pass_parents": _WORKER,
    "pass_gates": _WORKER,
    "pass_notes": _WORKER,
    "cancel_child": _WORKER,
    "freed": _WORKER,
    "go_back": _WORKER,
    "buried": _WORKER,
    "run_started": _WORKER,
    "run_ended": _WORKER,
    "parents_ended": _WORKER,
    "add_gated": (),
    "add_gated_many": (),
    "ungate": (),
    "enter_gates": (),
    "set_due": (),
    "cancel_waiting": (),
    "prune_gates": (),
    "release_order": _OPERATOR,
    "publish": ("producer", "worker"),
    "publish_many": ("producer", "worker"),
    "event_problem": (),
    "outbox_added": (),
    "read_outbox": _WORKER,
    "lead_parts": _WORKER,
    "give_parts": _WORKER,
    "relay_gone": _WORKER,
    "raise_low": _WORKER,
    "confirm_events": _WORKER,
    "refuse_events": _WORKER,
    "held_keys": _WORKER,
    "first_seen": ("producer", "worker"),
    "receive": _WORKER,
    "park_received": _WORKER,
    "tidy_outbox": _WORKER,
    "replay_events": _OPERATOR,
    "drop_events": _OPERATOR,
    "finish_with_results": _WORKER,
    "tell_awaited": _WORKER,
    "await_results": ("producer", "worker", "operator"),
    "forget_awaited": ("producer", "worker", "operator"),
    "say_progress": _WORKER,
    "retry_job": _OPERATOR,
    "cancel_job": _OPERATOR,
    "cancels_of": _WORKER,
    "matching": ("operator", "reader"),
    "cancel_jobs": _OPERATOR,
    "retry_jobs": _OPERATOR,
    "reschedule_job": _OPERATOR,
    "cron_problem": (),
    "check_schedule": (),
    "declare_schedules": _WORKER,
    "plan_schedule": _WORKER,
    "schedule_job": _WORKER,
    "fire_schedule": _WORKER,
    "pause_schedule": _OPERATOR,
    "resume_schedule": _OPERATOR,
    "run_schedule": _OPERATOR,
    "set_schedule": _OPERATOR,
    "unset_schedule": _OPERATOR,
}
"""Who may execute each function; those of nobody are called by others, with these one's rights."""


class RolesRefused(SupervisorError):
    """Roles cannot be set up as asked; nothing was changed.

    Attributes:
        reason: Why, and what to do.
        statements: What somebody who may create roles has to run first; none when that is not the reason.
    """

    def __init__(self, reason: str, statements: Iterable[str] = ()) -> None:
        super().__init__(reason, tuple(statements))
        self.reason = reason
        self.statements = tuple(statements)

    def __str__(self) -> str:
        if not self.statements:
            return f"{self.reason}; nothing was changed"
        return (
            f"{self.reason}, and nothing was changed: have a DBA run {' '.join(self.statements)} and repeat this "
            "(`supervisor migrate --roles --print` prints all of it)"
        )


# By name: a function may have a form of the release before beside its own.
_CALLS: Final = """do $$
declare
    f regprocedure;
begin
    for f in select p.oid from pg_catalog.pg_proc p
              where p.pronamespace = '{schema}'::regnamespace and p.proname = any ('{{{functions}}}') loop
        execute format('grant execute on function %s to {role}', f);
    end loop;
end $$;"""


# PostgreSQL 17 and later know a right to vacuum what one does not own.
_MAINTENANCE: Final = """do $$
begin
    if current_setting('server_version_num')::integer >= 170000 then
        execute 'grant maintain on {tables} to {role}';
    end if;
end $$;"""


def check_prefix(prefix: str) -> str:
    """Return *prefix*, or raise InvalidJob when it cannot begin the names of roles."""
    if not _PREFIX.fullmatch(prefix):
        raise InvalidJob(
            "role_prefix", "must be 1 to 54 of a-z, 0-9 and _, not starting with a digit or pg_ (give --role-prefix)"
        )
    return prefix


def names(prefix: str) -> dict[str, str]:
    """The name of each purpose's role."""
    return {purpose: f"{check_prefix(prefix)}_{purpose}" for purpose in PURPOSES}


def creations(missing: Iterable[str]) -> list[str]:
    """Statements that create the roles *missing*, one each."""
    return [f"create role {_quoted(name)} nologin;" for name in missing]


def grants(schema: str, roles: dict[str, str]) -> list[str]:
    """Statements that leave *roles* (name by purpose) with exactly the rights above, and PUBLIC with none."""
    where = _quoted(check_schema(schema))
    everyone = ", ".join(["public", *map(_quoted, roles.values())])
    made = [
        f"revoke all on {kind} {where} from {everyone};"
        for kind in ("schema", "all tables in schema", "all sequences in schema", "all functions in schema")
    ]
    if roles:
        made.append(f"grant usage on schema {where} to {', '.join(map(_quoted, roles.values()))};")
    for table, access in TABLES.items():
        made += [
            f"grant {', '.join(rights)} on {where}.{_quoted(table)} to {_quoted(name)};"
            for purpose, name in roles.items()
            if (rights := access.of(purpose))
        ]
    if "worker" in roles:
        worn = ", ".join(f"{where}.{_quoted(table)}" for table, access in TABLES.items() if "delete" in access.worker)
        made.append(_MAINTENANCE.format(tables=worn, role=_quoted(roles["worker"])))
    for purpose, name in roles.items():
        calls = [function for function, whose in FUNCTIONS.items() if purpose in whose]
        if calls:
            made.append(_CALLS.format(schema=schema, functions=",".join(calls), role=_quoted(name)))
    return made


def script(schema: str, prefix: str) -> str:
    """All of it as one script for psql, which may be run again; the schema must have been migrated."""
    roles = names(prefix)
    made = [
        "-- The roles of pg-supervisor: run this as the owner of the schema, who may create roles, or as a superuser.",
        "begin;",
        *(
            f"do $$ begin {create} exception when duplicate_object then null; end $$;"
            for create in creations(roles.values())
        ),
        *grants(schema, roles),
        f"alter table {_quoted(schema)}.migration add column if not exists roles text;",
        f"update {_quoted(schema)}.migration set roles = {sql.Literal(prefix).as_string(None)};",
        "commit;",
        "",
    ]
    return "\n".join(made)


def apply(
    cur: psycopg.Cursor[tuple[Any, ...]], schema: str, prefix: str | None, *, renewed: bool, functions_of: str | None
) -> tuple[str, ...]:
    """Create and grant the roles of *prefix*, in the caller's transaction; the names granted to.

    Args:
        prefix: None grants again to those of before, if there were any and *renewed* says that there is a reason.
        functions_of: the newer release that the functions are of; its rights are not this one's to give.

    Raises:
        RolesRefused: a role is missing and may not be created, or the functions are a newer release's.
    """
    where = sql.Identifier(schema)
    cur.execute(sql.SQL("alter table {}.migration add column if not exists roles text").format(where))
    if functions_of is not None:
        if prefix is not None:
            raise RolesRefused(
                f"the functions are of release {functions_of}, which is newer: use its `migrate --roles`"
            )
        return ()
    if prefix is None:
        cur.execute(
            sql.SQL("select roles from {}.migration where roles is not null order by version desc limit 1").format(
                where
            )
        )
        recorded = cur.fetchone()
        if recorded is None or not renewed:
            return ()
        roles = names(recorded[0])
        present = _present(cur, roles.values())
        roles = {purpose: name for purpose, name in roles.items() if name in present}
    else:
        roles = names(prefix)
        present = _present(cur, roles.values())
        _create(cur, [name for name in roles.values() if name not in present])
        cur.execute(sql.SQL("update {}.migration set roles = %s").format(where), (prefix,))
    for statement in grants(schema, roles):
        cur.execute(statement.encode())
    return tuple(roles.values())


def _present(cur: psycopg.Cursor[tuple[Any, ...]], wanted: Iterable[str]) -> set[str]:
    cur.execute("select rolname from pg_catalog.pg_roles where rolname = any (%s)", (list(wanted),))
    return {row[0] for row in cur.fetchall()}


def _create(cur: psycopg.Cursor[tuple[Any, ...]], missing: list[str]) -> None:
    for statement in creations(missing):
        try:
            with cur.connection.transaction():
                cur.execute(statement.encode())
        except (errors.DuplicateObject, errors.UniqueViolation):
            pass  # made at the same time from another database of this server
        except errors.InsufficientPrivilege as error:
            row = cur.execute("select current_user").fetchone()
            me = row[0] if row else "?"
            raise RolesRefused(f"role {me!r} may not create roles", creations(missing)) from error


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)
