"""`supervisor relay` and `supervisor consume`: the roles of the outbox and the inbox, alone."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.options import DatabaseUrl, Schema

if TYPE_CHECKING:
    from supervisor.outbox.alone import Role

BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="ADDRESS",
        help="Address of the broker; with a password in it better given as a variable.",
        show_default=False,
    ),
]


def relay(
    url: BrokerUrl = None,
    batch: Annotated[int | None, typer.Option(help="Events on their way at most.  [default: 500]")] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
) -> None:
    """Publish the outbox's events to a broker until SIGTERM. See docs/outbox.md."""
    _serve("relay", database_url=database_url, schema=schema, outbox_url=url, outbox_batch=batch)


def consume(
    url: BrokerUrl = None,
    topics: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC=KIND,...", help="Topics and the kinds of their jobs.", show_default=False),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--name", help="Who consumes: those of one name share the events.  [default: pg-supervisor]"),
    ] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
) -> None:
    """Make a job of each event of these topics until SIGTERM. See docs/outbox.md."""
    _serve("consume", database_url=database_url, schema=schema, consume_url=url, consume=topics, consumer=consumer)


def _serve(role: "Role", **flags: Any) -> None:
    from supervisor import exits
    from supervisor.cli.failures import report, report_fault
    from supervisor.cli.service import database, leave, load
    from supervisor.errors import SupervisorError

    code: int = exits.SOFTWARE
    try:
        from supervisor.outbox import alone

        settings = load(**flags)
        with database(settings) as address:
            code = alone.run(role, settings, address)
    except SupervisorError as error:
        code = report(error)
    except Exception:
        code = report_fault()
    leave(code)
