"""`supervisor jobs reschedule`: give queued jobs another time."""

from __future__ import annotations

from typing import Annotated

import typer

from supervisor.cli.batches import BATCH
from supervisor.cli.options import DatabaseUrl, Json, Schema

_LONGEST_S = 10 * 366 * 86400.0


def reschedule(
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="The jobs.", show_default=False)],
    in_: Annotated[
        str | None, typer.Option("--in", metavar="LENGTH", help="So long from now: 90, 10s, 5m, 1h30m, 2d.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Then: 2030-01-31T09:00:00+01:00.")] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Give queued jobs another time; with neither --in nor --at it is now. Jobs that run are left alone."""
    from supervisor import exits
    from supervisor.cli import output
    from supervisor.cli.enqueue import point, read_option, seconds
    from supervisor.cli.failures import say, wrong_use
    from supervisor.cli.service import connection, load
    from supervisor.db import operate

    if in_ is not None and at is not None:
        raise wrong_use("--in", "and --at: give one of the two")
    delay_s = None if in_ is None else read_option("--in", in_, seconds)
    if delay_s is not None and delay_s > _LONGEST_S:
        raise wrong_use("--in", "is above ten years")
    when = None if at is None else read_option("--at", at, point)
    settings = load(database_url=database_url, schema=schema)
    distinct = sorted(set(ids))
    moved = {}
    with connection(settings) as conn:
        for start in range(0, len(distinct), BATCH):
            batch = distinct[start : start + BATCH]
            moved.update(operate.reschedule(conn, settings.schema_, batch, at=when, delay_s=delay_s))
    missing = [job_id for job_id in distinct if job_id not in moved]
    if as_json:
        output.print_json(
            {"rescheduled": [{"id": job_id, "run_at": run_at} for job_id, run_at in moved.items()], "missing": missing}
        )
    else:
        for job_id, run_at in moved.items():
            output.console().print(f"job {job_id} is due {output.ago(run_at)}", style="green")
        if missing:
            say(f"not queued: {', '.join(map(str, missing[:10]))}" + (" ..." if len(missing) > 10 else ""))
    if missing:
        raise typer.Exit(exits.FAILED)
