"""`supervisor status`: queues, supervisors with their workers, and what died last."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.options import DatabaseUrl, Json, Schema

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from supervisor.db.overview import DeadJob, Ended, ParentRow, QueueDepth


def status(
    dead: Annotated[int, typer.Option(min=0, max=1000, help="How many of the latest dead jobs to show.")] = 5,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Show the queues, the supervisors with their workers, and the jobs that died last."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.db import overview

    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn:
        queues = overview.depths(conn, settings.schema_)
        ended = overview.ended(conn, settings.schema_)
        parents = overview.parents(conn, settings.schema_)
        latest = overview.recent_dead(conn, settings.schema_, limit=dead)
    if as_json:
        output.print_json(document(settings.schema_, queues, ended, parents, latest))
        return
    out = output.console()
    _show_queues(out, queues, ended)
    _show_parents(out, parents)
    _show_dead(out, latest)


def document(
    schema: str, queues: list[QueueDepth], ended: Ended, parents: list[ParentRow], latest: list[DeadJob]
) -> dict[str, Any]:
    """The answer for programs. Counts stop at a limit; `at_least` names those that did."""
    return {
        "schema": schema,
        "queues": [asdict(queue) for queue in queues],
        "ended": asdict(ended),
        "supervisors": [
            {
                "name": parent.name,
                "host": parent.host,
                "pid": parent.pid,
                "version": parent.version,
                "state": parent.state,
                "alive": parent.alive,
                "started_at": parent.started_at,
                "listening": parent.detail.get("listening"),
                "workers": parent.detail.get("workers", []),
            }
            for parent in parents
        ],
        "recent_dead": [asdict(job) for job in latest],
    }


def _show_queues(out: Console, queues: list[QueueDepth], ended: Ended) -> None:
    from supervisor.cli import output

    gated = any(queue.waiting != 0 for queue in queues)
    numbers = ("due", "oldest", "scheduled", *(("waiting",) if gated else ()), "running", "dead")
    shown = any(queue.paused or queue.max_running or queue.rate_limit for queue in queues)
    settings = ("claims", "at most", "starts") if shown else ()
    table = output.table("Queues", ("queue", *numbers, *settings), right=(*numbers, "at most", "starts"))
    for queue in queues:
        capped = queue.at_least
        table.add_row(
            output.cell(queue.queue, "bold"),
            output.count(queue.due, "due" in capped),
            output.length(queue.oldest_due_s),
            output.count(queue.scheduled, "scheduled" in capped),
            *((_waiting(queue),) if gated else ()),
            output.cell("?", "yellow") if queue.running is None else output.cell(output.count(queue.running), "blue"),
            output.cell(output.count(queue.dead, "dead" in capped), "bold red" if queue.dead else ""),
            *_settings(queue, shown=bool(settings)),
        )
    if queues:
        out.print(table)
        if any(queue.running is None or queue.waiting is None for queue in queues):
            out.print("? counting took too long; an old transaction may hold up vacuum", style="yellow")
    else:
        out.print("no queue has jobs", style="dim")
    done, dead, cancelled = (
        output.count(getattr(ended, name), name in ended.at_least) for name in ("done", "dead", "cancelled")
    )
    out.print(f"done {done} (in the history) · dead {dead} · cancelled {cancelled}\n")


def _waiting(queue: QueueDepth) -> Text:
    from supervisor.cli import output

    if queue.waiting is None:
        return output.cell("?", "yellow")
    return output.cell(output.count(queue.waiting, "waiting" in queue.at_least))


def _settings(queue: QueueDepth, *, shown: bool) -> tuple[Text, ...]:
    from supervisor.cli import output

    if not shown:
        return ()
    claims = output.cell("paused", "yellow") if queue.paused else output.cell("open", "green")
    return (
        claims,
        output.cell(queue.max_running),
        output.cell(output.rate(queue.rate_limit, queue.rate_period_s)),
    )


def _show_parents(out: Console, parents: list[ParentRow]) -> None:
    from supervisor.cli import output

    if not parents:
        out.print("no supervisor runs: start one with `supervisor run`\n", style="yellow")
        return
    right = ("pid", "workers", "running")
    columns = ("supervisor", "host", "pid", "state", "up", "version", "workers", "running", "finds jobs by")
    table = output.table("Supervisors", columns, right=right)
    for parent in parents:
        workers = parent.detail.get("workers", [])
        ready = sum(worker.get("state") == "ready" for worker in workers)
        table.add_row(
            output.cell(parent.name, "bold"),
            output.cell(parent.host),
            str(parent.pid),
            output.status_cell(parent.state if parent.alive else "lost"),
            output.ago(parent.started_at).removesuffix(" ago") if parent.alive else "-",
            output.cell(parent.version),
            f"{ready}/{len(workers)} ready" if parent.alive else "-",
            str(sum(int(worker.get("running", 0)) for worker in workers)) if parent.alive else "-",
            ("notifications" if parent.detail.get("listening") else "polling") if parent.alive else "-",
        )
    out.print(table)


def _show_dead(out: Console, latest: list[DeadJob]) -> None:
    from supervisor.cli import output

    if not latest:
        return
    columns = ("id", "kind", "queue", "reason", "attempts", "crashes", "died", "error")
    table = output.table("Latest dead jobs", columns, right=("id", "attempts", "crashes"), fold=("error",))
    for job in latest:
        table.add_row(
            str(job.id),
            output.cell(job.kind),
            output.cell(job.queue),
            output.cell(job.reason, "red"),
            str(job.attempts),
            str(job.crashes),
            output.ago(job.finished_at),
            output.cell(output.first_line(job.last_error)),
        )
    out.print(table)
    out.print("look closer: supervisor jobs show ID · put back: supervisor jobs retry ID\n", style="dim")
