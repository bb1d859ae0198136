"""`supervisor dashboard`: the dashboard by itself."""

from typing import Annotated

import typer

from supervisor.cli.options import DatabaseUrl, Schema


def dashboard(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where it listens.  [default: 127.0.0.1]")] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Its port; auto for a free one.  [default: 9180]")
    ] = None,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="Show, and change nothing.")] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
) -> None:
    """Serve the dashboard until SIGTERM or SIGINT. Jobs are run by `supervisor run`, not by this."""
    import uvloop

    from supervisor.cli.service import database, load
    from supervisor.dashboard import require_packages

    require_packages()
    from supervisor.dashboard.serve import serve

    settings = load(
        dashboard_host=host,
        dashboard_port=port,
        dashboard_read_only=read_only,
        database_url=database_url,
        schema=schema,
    )
    with database(settings) as url:
        uvloop.run(serve(settings, url, on_serving=_say))


def _say(address: str) -> None:
    typer.echo(address)
