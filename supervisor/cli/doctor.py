"""`supervisor doctor`: what is wrong with the settings and the database, and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.options import DatabaseUrl, Json, Schema

if TYPE_CHECKING:
    from supervisor.doctor import Report
    from supervisor.settings import Settings


class FailOn(StrEnum):
    """From which level on the exit code tells it."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"
    NEVER = "never"


class Purpose(StrEnum):
    """Whose rights the role must have."""

    WORKER = "worker"
    OPERATOR = "operator"
    READER = "reader"
    PRODUCER = "producer"


STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def doctor(
    fail_on: Annotated[
        FailOn, typer.Option(help="The level from which on the exit code is not 0: 3, or 4 for a problem.")
    ] = FailOn.WARNING,
    role: Annotated[Purpose, typer.Option(help="What the database's role is for: its rights are checked.")] = (
        Purpose.WORKER
    ),
    long_s: Annotated[
        float, typer.Option(min=0.0, help="Age in seconds from which on an open transaction is told.")
    ] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out what is as it should be.")] = False,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Check settings and database, and say what to do. Exit code: 0, 3 for warnings, 4 for problems."""
    from supervisor import exits
    from supervisor.cli import output
    from supervisor.doctor import Finding, Level, Report
    from supervisor.errors import SettingsInvalid

    try:
        report = _examine(_load(database_url, schema), role, long_s)
    except SettingsInvalid as error:
        report = Report(tuple(Finding("settings", Level.PROBLEM, line, "correct it") for line in error.problems))
    if as_json:
        output.print_json(report.document())
    else:
        _show(report, quiet=quiet)
    if fail_on is not FailOn.NEVER and report.worst.rank >= Level(fail_on.value).rank:
        raise typer.Exit(exits.PROBLEMS if report.worst is Level.PROBLEM else exits.WARNINGS)


def _load(database_url: str | None, schema: str | None) -> Settings:
    from supervisor import log
    from supervisor.settings import Settings

    settings = Settings.load(database_url=database_url, schema=schema)
    log.configure(settings.log_format, settings.log_level)
    return settings


def _examine(settings: Settings, role: Purpose, long_s: float) -> Report:
    import asyncio

    from supervisor.cli.kinds import kinds
    from supervisor.cli.service import database
    from supervisor.doctor import Finding, Level, Limits, Report

    known, reason = kinds(settings.handlers) if role is Purpose.WORKER else (None, "")
    with database(settings) as url:
        report = asyncio.run(_ask(settings, url, role, Limits(long_s=long_s, very_long_s=12 * long_s), known))
    if not reason:
        return report
    what = f"the handlers ({', '.join(settings.handlers)}) cannot be imported here: {reason}"
    remedy = "correct SUPERVISOR_HANDLERS, or run this where the service runs"
    return Report((Finding("handlers", Level.WARNING, what, remedy), *report.findings), report.skipped)


async def _ask(settings: Settings, url: str, role: Purpose, limits: object, known: frozenset[str] | None) -> Report:
    from supervisor.db.examine import asking
    from supervisor.doctor import Limits, examine
    from supervisor.errors import DatabaseUnavailable

    assert isinstance(limits, Limits)
    direct = settings.listen_database_url
    address = (direct.get_secret_value() if direct else url) if role is Purpose.WORKER else None
    try:
        async with asking(
            url,
            name="pg-supervisor doctor",
            patience_s=limits.patience_s,
            connect_timeout_s=settings.connect_timeout_s,
        ) as conn:
            return await examine(conn, settings, address=address, kinds=known, purpose=str(role.value), limits=limits)
    except DatabaseUnavailable as error:
        return await examine(None, settings, kinds=known, limits=limits, unreachable=error.reason)


def _show(report: Report, *, quiet: bool) -> None:
    from rich.text import Text

    from supervisor.cli import output
    from supervisor.doctor import Level

    out = output.console()
    for finding in report.findings:
        if quiet and finding.level is Level.OK:
            continue
        line = Text.assemble(
            (f"{finding.level:<8}", STYLES[finding.level]),
            (f" {finding.check:<13} ", "dim"),
            output.clean(finding.what),
        )
        out.print(line, soft_wrap=True)
        if finding.remedy:
            out.print(Text.assemble(" " * 23, ("do: ", "bold"), output.clean(finding.remedy)), soft_wrap=True)
    counts = report.counts()
    said = [f"{counts[level]} {level}{'s' if counts[level] != 1 else ''}" for level in ("problem", "warning", "note")]
    out.print(", ".join(said), style=STYLES[report.worst])
