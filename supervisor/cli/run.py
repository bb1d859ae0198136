"""`supervisor run` and `supervisor migrate`."""

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from supervisor.cli.options import DatabaseUrl, Json, RunDir, Schema

_LEVELS = "debug, info, warning or error"


def run(
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    handlers: Annotated[
        str | None, typer.Option(metavar="MODULES", help="Modules with handlers.  [default: handlers]")
    ] = None,
    queues: Annotated[
        str | None, typer.Option(metavar="QUEUES", help="As in critical*4,default*2,bulk.  [default: *, all]")
    ] = None,
    processes: Annotated[int | None, typer.Option("--processes", "-p", help="Workers.  [default: the CPUs]")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", help="Jobs a worker runs at once.  [default: 10]")
    ] = None,
    prefetch: Annotated[
        int | None, typer.Option(help="Jobs a worker claims beyond those.  [default: by their length]")
    ] = None,
    lease_s: Annotated[float | None, typer.Option(help="Lease of a worker's jobs.  [default: 30]")] = None,
    drain_timeout_s: Annotated[
        float | None, typer.Option(help="How long running jobs may go on after SIGTERM.  [default: 25]")
    ] = None,
    health_port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Of /metrics, /livez, /readyz; off, auto.  [default: 9090]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Label of this service.  [default: the host's name]")] = None,
    run_dir: RunDir = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.  [default: by the terminal]")] = None,
    log_level: Annotated[str | None, typer.Option(help=f"{_LEVELS}.  [default: info]")] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="Create or upgrade the schema first.")] = False,
) -> None:
    """Run the service until SIGTERM. Every setting is also a variable SUPERVISOR_...: see docs/settings.md."""
    from supervisor import exits
    from supervisor.cli.failures import report, report_fault
    from supervisor.cli.service import leave, load, serve
    from supervisor.errors import SupervisorError

    code: int = exits.SOFTWARE
    try:
        settings = load(
            database_url=database_url,
            schema=schema,
            handlers=handlers,
            queues=queues,
            processes=processes,
            concurrency=concurrency,
            prefetch=prefetch,
            lease_s=lease_s,
            drain_timeout_s=drain_timeout_s,
            health_port=health_port,
            name=name,
            run_dir=run_dir,
            log_format=log_format,
            log_level=log_level,
        )
        code = serve(settings, migrate_first=migrate)
    except SupervisorError as error:
        code = report(error)
    except Exception:
        code = report_fault()
    leave(code)


def migrate(
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    roles: Annotated[
        bool, typer.Option("--roles", help="Create the database roles too, and grant them their rights.")
    ] = False,
    role_prefix: Annotated[
        str | None, typer.Option(metavar="NAME", help="How their names begin.  [default: the schema's name]")
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="With --roles: print the SQL for a DBA and change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the schema, or upgrade it to this release."""
    from supervisor.cli import output
    from supervisor.cli.failures import wrong_use
    from supervisor.cli.service import database, load
    from supervisor.db.migrate import migrate as apply
    from supervisor.db.operate import refusals
    from supervisor.db.roles import script as role_script

    if (role_prefix is not None or print_only) and not roles:
        raise wrong_use("--print" if print_only else "--role-prefix", "goes with --roles")
    if print_only and as_json:
        raise wrong_use("--json", "does not go with --print")
    settings = load(database_url=database_url, schema=schema)
    prefix = (role_prefix or settings.schema_) if roles else None
    if prefix is not None and print_only:
        sys.stdout.write(role_script(settings.schema_, prefix))
        return
    screen = output.console(stderr=True)
    waiting = screen.status(f"migrating schema {settings.schema_}") if screen.is_terminal else nullcontext()
    with database(settings, migrated=False) as url, waiting, refusals(settings.schema_):
        report = apply(url, settings.schema_, role_prefix=prefix)
    if as_json:
        output.print_json(
            {
                "schema": report.schema,
                "version_before": report.before,
                "version": report.after,
                "applied": list(report.applied),
                "functions_installed": report.functions_installed,
                "functions_of": report.functions_of,
                "roles": list(report.roles),
            }
        )
        return
    out = output.console()
    for script in report.applied:
        out.print(f"applied   {script}", style="green")
    if report.functions_installed:
        out.print("installed functions")
    if report.before == report.after:
        changed = "functions renewed" if report.functions_installed else "nothing to do"
        if report.functions_of is not None:
            changed = f"left the functions of release {report.functions_of}, which is newer than this one"
        out.print(f"schema {report.schema} is at version {report.after}: {changed}")
    else:
        out.print(f"schema {report.schema} went from version {report.before} to {report.after}")
    for role in report.roles:
        out.print(f"granted   {role}")
