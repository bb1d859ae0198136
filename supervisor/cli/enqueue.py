"""`supervisor enqueue`: one job from a shell."""

import re
import sys
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from supervisor.cli.options import DatabaseUrl, Json, Schema

_LENGTH = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


def seconds(text: str) -> float:
    """`90`, `10s`, `5m`, `1h30m`, `2d` as seconds; raises ValueError."""
    match = _LENGTH.fullmatch(text.strip())
    if not text.strip() or match is None:
        raise ValueError("is not a length of time: write 90 (seconds), 10s, 5m, 1h30m or 2d")
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)


def point(text: str) -> datetime:
    """An ISO date and time as an aware datetime, local where no zone is given; raises ValueError."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("is not a time: write 2030-01-31T09:00:00+01:00, or without a zone for local time") from None
    return at if at.utcoffset() is not None else at.astimezone()


def header(text: str) -> tuple[str, str]:
    """`key=value`; raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError("is not key=value")
    return key, value


def enqueue(
    kind: Annotated[str, typer.Argument(help="The handler's name, as in email.welcome.", show_default=False)],
    payload: Annotated[
        str, typer.Argument(metavar="[PAYLOAD-JSON]", help="Its arguments: a JSON object; - reads stdin.")
    ] = "{}",
    queue: Annotated[str, typer.Option(help="Queue.")] = "default",
    priority: Annotated[int, typer.Option(help="-100 to 100, smaller runs sooner.")] = 0,
    in_: Annotated[
        str | None, typer.Option("--in", metavar="LENGTH", help="Run it later: 90, 10s, 5m, 1h30m, 2d.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Run it then: 2030-01-31T09:00:00+01:00.")] = None,
    unique_key: Annotated[str | None, typer.Option(metavar="KEY", help="Only one job has this key.")] = None,
    on_conflict: Annotated[Literal["skip", "replace", "raise"], typer.Option(help="When one has it.")] = "skip",
    unique_for: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="How long it has that key although it is done.")
    ] = None,
    unique_states: Annotated[
        list[str] | None,
        typer.Option("--unique-state", metavar="STATE", help="A state in which it has that key; repeatable."),
    ] = None,
    ordering_key: Annotated[str | None, typer.Option(metavar="KEY", help="One at a time of a key, in order.")] = None,
    on_dead: Annotated[
        Literal["next", "hold"] | None, typer.Option(help="When it is dead: the next of that key, or none.")
    ] = None,
    concurrency_key: Annotated[str | None, typer.Option(metavar="KEY", help="So many at a time of a key.")] = None,
    concurrency_limit: Annotated[int | None, typer.Option(help="How many at a time.")] = None,
    rate_key: Annotated[str | None, typer.Option(metavar="KEY", help="So many starts in a period of a key.")] = None,
    rate_limit: Annotated[int | None, typer.Option(help="How many starts.")] = None,
    rate_period: Annotated[str | None, typer.Option(metavar="LENGTH", help="In which period.")] = None,
    after: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="A job that must be done first; repeatable.")
    ] = None,
    after_failed: Annotated[
        Literal["hold", "cancel", "run"] | None, typer.Option(help="When one of those is dead or cancelled.")
    ] = None,
    max_attempts: Annotated[int, typer.Option(help="Failures after which it is dead.")] = 20,
    max_crashes: Annotated[int, typer.Option(help="Crashes after which it is dead.")] = 3,
    timeout: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="How long one run may take.  [default: the handler's]")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="KEY=VALUE", help="Kept beside the payload; repeatable.")
    ] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Add one job."""
    from supervisor.cli import output
    from supervisor.cli.service import connection, load
    from supervisor.client import enqueue_many
    from supervisor.db.operate import refusals
    from supervisor.errors import InvalidJob
    from supervisor.newjob import NewJob

    options: dict[str, Any] = {
        "unique_states": unique_states or None,
        "ordering_key": ordering_key,
        "on_dead": on_dead,
        "concurrency_key": concurrency_key,
        "concurrency_limit": concurrency_limit,
        "rate_key": rate_key,
        "rate_limit": rate_limit,
        "after": after or None,
        "after_failed": after_failed,
    }
    for name, field, text, read in (
        ("--in", "in_", in_, seconds),
        ("--at", "run_at", at, point),
        ("--timeout", "timeout", timeout, seconds),
        ("--unique-for", "unique_for", unique_for, seconds),
        ("--rate-period", "rate_period", rate_period, seconds),
    ):
        if text is not None:
            options[field] = read_option(name, text, read)
    if headers:
        options["headers"] = dict(read_option("--header", text, header) for text in headers)
    if payload == "-":
        payload = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    # Checked before the database is asked: a typing error is told even when it is away.
    job = NewJob(
        kind,
        payload,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        max_crashes=max_crashes,
        unique_key=unique_key,
        **options,
    )
    settings = load(database_url=database_url, schema=schema)
    with connection(settings) as conn, refusals(settings.schema_), conn.transaction():
        try:
            [added] = enqueue_many(conn, [job], on_conflict=on_conflict, schema=settings.schema_)
        except InvalidJob as error:  # there is one job here
            raise InvalidJob(error.field.removeprefix("jobs[0]."), error.reason) from None
    if as_json:
        output.print_json({"id": added.id, "created": added.created, "kind": kind, "queue": queue})
    elif added.created:
        output.console().print(f"job {added.id} enqueued", style="green")
    else:
        what = "was replaced if it had not started" if on_conflict == "replace" else "stands for it; nothing was added"
        output.console().print(f"job {added.id} holds the unique key and {what}", style="yellow")


def read_option(name: str, text: str, read: Any) -> Any:
    from supervisor.cli.failures import wrong_use

    try:
        return read(text)
    except (ValueError, OverflowError) as error:
        raise wrong_use(name, str(error)) from None
