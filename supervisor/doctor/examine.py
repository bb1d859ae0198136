"""All checks, one after the other, on one connection.

    CHECKS --run, each by itself--> verdicts --named, without secrets--> Report

A check that needs the database is left out, and named, when there is none; one that needs the schema, when that
is missing. A server that stops to answer in the middle ends the questions, not the report.
"""

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from supervisor.db.examine import Asker
from supervisor.db.jobs import Connection
from supervisor.db.link import DatabaseError, answered, first_line
from supervisor.doctor.checks import gates, jobs, local, outbox, path, schedules, server, tables, vacuum
from supervisor.doctor.look import CGROUP, Limits, Look
from supervisor.doctor.report import Finding, Level, Report, Verdict, note, problem, warning
from supervisor.dsn import mask
from supervisor.settings import Settings
from supervisor.wording import clean


class Needs(Enum):
    """What a check cannot do without."""

    NOTHING = 0
    SERVER = 1
    SCHEMA = 2


class Check(NamedTuple):
    """One check."""

    name: str
    needs: Needs
    run: Callable[[Look], Awaitable[Iterable[Verdict]]]


CHECKS: Final[tuple[Check, ...]] = (
    Check("settings", Needs.NOTHING, local.settings),
    Check("drain", Needs.NOTHING, local.drain),
    Check("memory", Needs.NOTHING, local.memory),
    Check("version", Needs.SERVER, server.version),
    Check("role", Needs.SERVER, server.role),
    Check("durability", Needs.SERVER, server.durability),
    Check("clock", Needs.SERVER, server.clock),
    Check("pooler", Needs.SERVER, path.pooler),
    Check("listening", Needs.SERVER, path.listening),
    Check("schema", Needs.SERVER, tables.schema),
    Check("rights", Needs.SCHEMA, tables.rights),
    Check("connections", Needs.SERVER, server.connections),
    Check("notifications", Needs.SERVER, server.notifications),
    Check("wraparound", Needs.SERVER, server.wraparound),
    Check("slots", Needs.SERVER, server.slots),
    Check("horizon", Needs.SERVER, vacuum.horizon),
    Check("autovacuum", Needs.SERVER, vacuum.autovacuum),
    Check("options", Needs.SCHEMA, tables.options),
    Check("indexes", Needs.SCHEMA, tables.indexes),
    Check("history", Needs.SCHEMA, tables.history),
    Check("ids", Needs.SCHEMA, tables.ids),
    Check("presence", Needs.SCHEMA, jobs.presence),
    Check("leases", Needs.SCHEMA, jobs.leases),
    Check("kinds", Needs.SCHEMA, jobs.kinds),
    Check("queues", Needs.SCHEMA, gates.queues),
    Check("keys", Needs.SCHEMA, gates.keys),
    Check("parents", Needs.SCHEMA, gates.parents),
    Check("gates", Needs.SCHEMA, gates.odd),
    Check("schedules", Needs.SCHEMA, schedules.schedules),
    Check("outbox", Needs.SCHEMA, outbox.outbox),
)


async def examine(
    conn: Connection | None,
    settings: Settings,
    *,
    address: str | None = None,
    kinds: frozenset[str] | None = None,
    purpose: str = "worker",
    limits: Limits | None = None,
    unreachable: str | None = None,
    cgroup: Path | None = None,
) -> Report:
    """Make every check that can be made; never raises for what it finds.

    Args:
        conn: where to ask, on no work of its own. None: the database is away, for the reason *unreachable*.
        address: where LISTEN is tried, over connections of its own, for up to 3 s; None does not try.
        kinds: what the handlers of these settings know; None: not known.
        purpose: whose rights the role of *conn* must have: worker, operator, reader or producer.
        cgroup: where this container's limits are read.
    """
    limits = limits or Limits()
    ask = None if conn is None else Asker(conn, settings.schema_, patience_s=limits.patience_s)
    look = Look(settings, ask, address, kinds, purpose, limits, cgroup or CGROUP)
    findings: list[Finding] = []
    skipped: list[str] = []
    missing = False

    def tell(name: str, verdicts: Iterable[Verdict]) -> None:
        findings.extend(
            Finding(name, level, clean(mask(what)), clean(mask(remedy))) for level, what, remedy in verdicts
        )

    if conn is None:
        tell("database", [_away(unreachable or "no connection")])
    for check in CHECKS:
        if check.needs is not Needs.NOTHING and (conn is None or (missing and check.needs is Needs.SCHEMA)):
            skipped.append(check.name)
            continue
        try:
            if check.needs is Needs.NOTHING or conn is None:
                verdicts = list(await check.run(look))
            else:
                verdicts = list(await answered(conn, _as_coroutine(check, look), limits.check_s))
        except TimeoutError:
            tell("database", [_away(f"no answer within {limits.check_s:g} s to check {check.name}")])
            conn = None
        except DatabaseError as error:
            if conn is None or conn.closed or conn.broken:
                tell("database", [_away(first_line(error))])
                conn = None
            else:
                tell(check.name, [_refused(error)])
        else:
            tell(check.name, verdicts)
            missing = missing or (check.name == "schema" and any(v.level is Level.PROBLEM for v in verdicts))
    if skipped:
        tell("skipped", [note(f"not checked: {', '.join(skipped)}")])
    return Report(tuple(findings), tuple(skipped))


async def _as_coroutine(check: Check, look: Look) -> Iterable[Verdict]:
    return await check.run(look)


def _away(reason: str) -> Verdict:
    return problem(
        f"the database cannot be asked: {reason}",
        "see that the server is up, that SUPERVISOR_DATABASE_URL is right, and that a firewall lets this host through",
    )


def _refused(error: DatabaseError) -> Verdict:
    said = first_line(error)
    if error.sqlstate == "42501":
        return note(f"could not be checked: {said}", "run this as a role that may, such as the owner of the schema")
    if error.sqlstate in ("57014", "55P03"):
        return warning(
            f"could not be checked in time: {said}", "look what the server is busy with; a lock may be held for long"
        )
    return warning(f"could not be checked: {said}", "see the server's log")
