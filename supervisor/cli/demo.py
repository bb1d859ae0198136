"""`supervisor demo`: the whole life of 500 jobs, measured."""

import typer

from supervisor.cli.options import DatabaseUrl, Json


def demo(database_url: DatabaseUrl = None, as_json: Json = False) -> None:
    """Run 500 jobs through the real service, kill a worker, stop it in the middle, and check every figure."""
    from supervisor import exits
    from supervisor.cli import output
    from supervisor.cli.service import database, load
    from supervisor.demo.lab import run_lab

    settings = load(database_url=database_url)
    screen = output.console(stderr=as_json)
    where = "a fresh schema of your database" if settings.database_url else "the embedded PostgreSQL"
    screen.print(f"The life of 500 jobs through the real service, on {where}", style="bold")
    with database(settings, migrated=False) as url:
        report = run_lab(url, screen)
    if as_json:
        output.print_json(report.document())
    if not report.ok:
        raise typer.Exit(exits.FAILED)
