"""Checks of the way to the database: what stands in between, and whether notifications come through."""

from collections.abc import Iterable

from supervisor.db.examine import hears
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.errors import DatabaseUnavailable


async def pooler(look: Look) -> Iterable[Verdict]:
    """Whether the main address leads through a pooler."""
    if not await look.pooled():
        return [ok("the address leads to the server itself")]
    found = [
        note(
            "the address leads through a pooler: claims, results and enqueues work, statements are not prepared",
            "point SUPERVISOR_DATABASE_URL at the server itself where connections are not scarce",
        )
    ]
    if look.settings.wake and look.settings.listen_database_url is None:
        found.append(
            warning(
                "the address leads through a pooler, and LISTEN uses it too: notifications do not come through a "
                "pooler in transaction mode",
                "set SUPERVISOR_LISTEN_DATABASE_URL to the server's own address, or SUPERVISOR_WAKE=false to poll",
            )
        )
    return found


async def listening(look: Look) -> Iterable[Verdict]:
    """Whether a notification that is sent is heard, over the address that LISTEN uses."""
    if not look.settings.wake:
        return [ok("notifications are not used: SUPERVISOR_WAKE is off")]
    if look.address is None:
        return [ok("not tried here")]
    named = "SUPERVISOR_LISTEN_DATABASE_URL" if look.settings.listen_database_url else "SUPERVISOR_DATABASE_URL"
    try:
        heard = await hears(look.address, look.schema, connect_timeout_s=look.settings.connect_timeout_s)
    except DatabaseUnavailable as error:
        return [
            problem(
                f"LISTEN cannot be tried over {named}: {error.reason}",
                f"correct {named}: it must reach a server that takes writes",
            )
        ]
    if heard:
        return [ok(f"a notification sent over {named} was heard")]
    return [
        warning(
            f"a notification sent over {named} was not heard: a pooler in transaction mode stands in between. Jobs "
            f"are found by polling, up to {look.settings.poll_without_listen_s:g} s late",
            "set SUPERVISOR_LISTEN_DATABASE_URL to the server's own address, or SUPERVISOR_WAKE=false to poll",
        )
    ]
