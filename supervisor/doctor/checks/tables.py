"""Checks of the schema: its version, rights, storage parameters, indexes, the history's partitions, ids."""

from collections.abc import Iterable
from typing import Final

from supervisor.db.examine import identifier
from supervisor.db.migrate import check_version, functions_match, known_version
from supervisor.db.roles import FUNCTIONS, TABLES, names
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.doctor.shipped import shipped
from supervisor.errors import SchemaMissing, SchemaTooNew
from supervisor.release import older
from supervisor.wording import count, size

DAYS_WANTED: Final = 2
"""Today and tomorrow; supervisors make three days ahead, so one less would be told before anything is late."""


_ORDER: Final = ("schema", "table", "function")


async def schema(look: Look) -> Iterable[Verdict]:
    """Whether the schema and its functions are this release's."""
    found = await look.db.installed()
    try:
        check_version(found, look.schema)
    except SchemaMissing:
        what = f"has version {found.version}" if found.version is not None else "is not in this database"
        return [
            problem(
                f"schema {look.schema} {what}, this release needs version {known_version()} and its functions",
                "`supervisor migrate`, or point SUPERVISOR_DATABASE_URL and SUPERVISOR_SCHEMA at the right place",
            )
        ]
    except SchemaTooNew as newer:
        return [
            note(
                f"schema {look.schema} has version {newer.found}, this release knows up to {newer.known}: it goes on "
                "with what it knows",
                "deploy the release that migrated it",
            )
        ]
    if not functions_match(found, look.schema) and not older(None, found.functions_by):
        return [
            warning(
                f"the functions of schema {look.schema} are of another build of release {found.functions_by}",
                "`supervisor migrate` with the build that runs",
            )
        ]
    return [ok(f"schema {look.schema} is at version {found.version}")]


async def rights(look: Look) -> Iterable[Verdict]:
    """Whether this role may do what the service needs."""
    needed = [(table, right) for table, access in TABLES.items() for right in access.of(look.purpose)]
    lacks = await look.db.lacks(needed, [name for name, whose in FUNCTIONS.items() if look.purpose in whose])
    lacks.sort(key=lambda lack: (_ORDER.index(lack.what), lack.name, lack.right))
    server = await look.server()
    if not lacks:
        return [ok(f"role {server.role} has the rights of the {look.purpose} role")]
    said = ", ".join(f"{lack.right} on {lack.what} {lack.name}" for lack in lacks[:5])
    more = f" and {len(lacks) - 5} more" if len(lacks) > 5 else ""
    prefix = await look.db.role_prefix()
    if prefix is None:
        granted = identifier(names(look.schema)[look.purpose])
        remedy = f"`supervisor migrate --roles`, then `grant {granted} to {identifier(server.role)}`"
    else:
        remedy = (
            f"`grant {identifier(names(prefix)[look.purpose])} to {identifier(server.role)}`; if it has that role, "
            f"`supervisor migrate --roles --role-prefix {prefix}` grants it its rights again"
        )
    return [problem(f"role {server.role} lacks rights of the {look.purpose} role: {said}{more}", remedy)]


async def options(look: Look) -> Iterable[Verdict]:
    """Storage parameters as shipped: autovacuum of a queue's tables must be early and quick."""
    present, found = await look.db.options(), []
    for table, wanted in shipped().options.items():
        now = present.get(table)
        if now is None:
            continue
        named = f"{identifier(look.schema)}.{identifier(table)}"
        if now.get("autovacuum_enabled", "true") in ("false", "off", "no", "0"):
            found.append(
                problem(
                    f"autovacuum is switched off for table {table}: its dead rows are never removed",
                    f"`alter table {named} reset (autovacuum_enabled)`",
                )
            )
        other = {name: value for name, value in wanted.items() if now.get(name) != value}
        if other:
            said = ", ".join(f"{name}={now.get(name, 'unset')} (shipped: {value})" for name, value in other.items())
            put = ", ".join(f"{name} = {value}" for name, value in other.items())
            found.append(warning(f"table {table} has {said}", f"`alter table {named} set ({put})`"))
        extra = sorted(set(now) - set(wanted) - {"autovacuum_enabled"})
        if extra:
            said = ", ".join(f"{name}={now[name]}" for name in extra)
            found.append(
                note(
                    f"table {table} has {said}, which is not shipped",
                    f"`alter table {named} reset ({', '.join(extra)})`",
                )
            )
    return found or [ok("storage parameters are as shipped")]


async def indexes(look: Look) -> Iterable[Verdict]:
    """Indexes that are missing, unusable, bloated, or in the way of a claim."""
    present, limits = await look.db.indexes(), look.limits
    where, found = identifier(look.schema), []
    valid = {index.name for index in present if index.valid}
    wanted, tables = shipped().indexes, {*await look.db.options(), *{index.table for index in present}}
    for name, index in wanted.items():
        if index.table in tables and name not in {one.name for one in present}:
            found.append(
                problem(
                    f"index {name} is missing: statements that need it read the whole table",
                    f"`{index.made_by.format(schema=where)}`",
                )
            )
    for one in present:
        named = f"{where}.{identifier(one.name)}"
        if not one.valid and one.building:
            found.append(
                note(
                    f"index {one.name} of table {one.table} is being built, or left to be dropped after that",
                    "look again when that has ended: a supervisor that rebuilds a bloated index says rebuild.done",
                )
            )
        elif not one.valid:
            known = one.name in wanted
            found.append(
                problem(
                    f"index {one.name} of table {one.table} cannot be used: its build failed",
                    f"`reindex index concurrently {named}`" if known else f"`drop index concurrently {named}`",
                )
            )
        if one.claimed:
            found.append(
                warning(
                    f"index {one.name} of table {one.table} covers a column that every claim changes: claims "
                    "write all indexes and leave a dead entry in each",
                    f"`drop index concurrently {named}`",
                )
            )
    for fat in (await look.health()).indexes:
        bloat = fat.bloat_bytes or 0
        if fat.name in valid and bloat > limits.bloat_bytes and bloat > limits.bloat_share * fat.bytes:
            found.append(
                warning(
                    f"index {fat.name} has {size(fat.bytes)}, of which about {size(bloat)} are not needed",
                    "supervisors rebuild it by themselves unless something is in the way, which their log names "
                    f"(rebuild.waits, rebuild.refused, rebuild.failed); by hand: "
                    f"`reindex index concurrently {where}.{identifier(fat.name)}`",
                )
            )
    return found or [ok(f"all {len(wanted)} indexes are there and can be used")]


async def history(look: Look) -> Iterable[Verdict]:
    """Partitions of the history: made ahead, and nothing beside them."""
    limit = look.limits.strays
    facts = await look.db.history(days=DAYS_WANTED, limit=limit + 1)
    where, found = identifier(look.schema), []
    strays = count(min(facts.strays, limit), facts.strays > limit)
    if facts.missing and not facts.strays:
        days = ", ".join(str(day) for day in facts.missing)
        found.append(
            warning(
                f"the history has no partition for {days} (UTC): nobody makes them",
                f"run a supervisor, or `select {where}.make_partitions(3)`",
            )
        )
    elif facts.missing:
        days = ", ".join(str(day) for day in facts.missing)
        found.append(
            warning(
                f"the history has no partition for {days} (UTC), and {strays} jobs lie in its "
                "default partition, from where they cannot be dropped by the day",
                f"move them: `begin; lock table {where}.history_default in share row exclusive mode; "
                f"create temp table moved on commit drop as select * from {where}.history_default; "
                f"delete from {where}.history_default; select {where}.make_partitions(3); "
                f"insert into {where}.history select * from moved; commit`",
            )
        )
    elif facts.strays:
        found.append(
            note(
                f"{strays} finished jobs lie in the history's default "
                "partition: when they finished their day had none. They leave it one by one when their time has come"
            )
        )
    return found or [ok("the history has partitions for the days to come")]


async def ids(look: Look) -> Iterable[Verdict]:
    """Whether numbers for jobs run out."""
    where, found = identifier(look.schema), []
    for name, share, kind, cycles in await look.db.ids():
        named = f"{where}.{identifier(name)}"
        if share is not None and share > look.limits.ids:
            found.append(
                problem(
                    f"sequence {name} ({kind}) has given out {share:.0%} of its numbers: after the last one no job "
                    "can be added",
                    f"`alter sequence {named} as bigint no maxvalue`",
                )
            )
        elif cycles:
            found.append(problem(f"sequence {name} begins anew at its end", f"`alter sequence {named} no cycle`"))
    return found or [ok("there are ids enough")]
