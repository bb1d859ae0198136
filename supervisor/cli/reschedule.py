"""`supervisor jobs reschedule`: give queued jobs another time, by ids or all that a filter names."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.batches import Answered, Order, carry_out
from supervisor.cli.options import DatabaseUrl, Json, KindFilter, QueueFilter, Schema, Yes
from supervisor.cli.orders import DryRun, Ids, Key, Older, say_found, some, wanted_of

if TYPE_CHECKING:
    from psycopg import Connection

_LONGEST_S = 10 * 366 * 86400.0
_TOLD_ONE_BY_ONE = 20


def reschedule(
    ids: Ids = None,
    in_: Annotated[
        str | None, typer.Option("--in", metavar="LENGTH", help="So long from now: 90, 10s, 5m, 1h30m, 2d.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Then: 2030-01-31T09:00:00+01:00.")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", "-s", help="queued or scheduled.", show_default=False)
    ] = None,
    queue: QueueFilter = None,
    kind: KindFilter = None,
    older_than: Older = None,
    key: Key = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Give queued jobs another time; with neither --in nor --at it is now. Jobs that run are left alone."""
    from supervisor import exits
    from supervisor.cli import output
    from supervisor.cli.enqueue import point, read_option, seconds
    from supervisor.cli.failures import say, wrong_use
    from supervisor.cli.service import load
    from supervisor.db import operate

    if in_ is not None and at is not None:
        raise wrong_use("--in", "and --at: give one of the two")
    delay_s = None if in_ is None else read_option("--in", in_, seconds)
    if delay_s is not None and delay_s > _LONGEST_S:
        raise wrong_use("--in", "is above ten years")
    when = None if at is None else read_option("--at", at, point)
    moved: dict[int, datetime] = {}

    def send(conn: Connection, schema: str, batch: list[int]) -> Answered:
        done = operate.reschedule(conn, schema, batch, at=when, delay_s=delay_s)
        moved.update(done)
        return Answered(done)

    wanted = wanted_of(ids, status, ("queued",), queue, kind, older_than, key)
    settings = load(database_url=database_url, schema=schema)
    order = Order("reschedule", living=True, send=send)
    if dry_run:
        say_found(order, settings, wanted, as_json=as_json)
        return
    missing = carry_out(order, settings, ids, wanted, yes=yes)
    if as_json:
        output.print_json(
            {"rescheduled": [{"id": job_id, "run_at": run_at} for job_id, run_at in moved.items()], "missing": missing}
        )
    else:
        if len(moved) > _TOLD_ONE_BY_ONE or not moved:
            due = f", due {output.ago(next(iter(moved.values())))}" if moved else ""
            output.console().print(f"{output.count(len(moved))} given another time{due}", style="green")
        else:
            for job_id, run_at in moved.items():
                output.console().print(f"job {job_id} is due {output.ago(run_at)}", style="green")
        if missing:
            say(f"not queued: {some(missing)}")
    if missing:
        raise typer.Exit(exits.FAILED)
