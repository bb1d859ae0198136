"""Options that several commands have, declared once. Light: every command imports it."""

from typing import Annotated

import typer

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of the database; better given as SUPERVISOR_DATABASE_URL. Neither: an embedded PostgreSQL.",
        show_default=False,
    ),
]
Schema = Annotated[
    str | None, typer.Option(metavar="NAME", help="Schema of the queue.  [default: supervisor]", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueFilter = Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.", show_default=False)]
KindFilter = Annotated[str | None, typer.Option("--kind", help="Only jobs of this kind.", show_default=False)]
RunDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory of the service's run file.", show_default=False)
]
