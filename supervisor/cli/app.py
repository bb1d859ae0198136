"""The commands, put together."""

from typing import Annotated

import typer

from supervisor import exits
from supervisor.cli.service import leave, serve
from supervisor.errors import SupervisorError
from supervisor.settings import Settings

app = typer.Typer(name="supervisor", no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Background jobs out of PostgreSQL."""


@app.command()
def run(
    migrate: Annotated[bool, typer.Option("--migrate", help="Create or upgrade the schema first.")] = False,
) -> None:
    """Run the service until SIGTERM."""
    try:
        code = serve(Settings.load(), migrate_first=migrate)
    except SupervisorError as error:
        typer.echo(f"supervisor: {error}", err=True)
        code = exits.CONFIG
    leave(code)


def main() -> None:
    """The entry point."""
    app()
