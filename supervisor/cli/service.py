"""What commands stand on: settings, the database of the settings or an embedded one, and the service itself.

Always true: a command without a database address works all the same, on the embedded PostgreSQL, and a
log line says so. Only `supervisor run` ends by `leave`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from supervisor import grace, log

if TYPE_CHECKING:
    from psycopg import Connection

    from supervisor.settings import Settings


def load(**flags: Any) -> Settings:
    """The settings of this command, and logging set up by them. Flags that were not given are None."""
    from supervisor.settings import Settings, unknown_variables

    settings = Settings.load(**flags)
    log.configure(settings.log_format, settings.log_level)
    for line in unknown_variables():
        log.get_logger("settings").warning("setting.unknown", reason=line)
    return settings


@contextmanager
def database(settings: Settings, *, migrated: bool = True) -> Iterator[str]:
    """The address of the database to work with; an embedded PostgreSQL when none is set.

    Args:
        migrated: Bring the embedded one's schema up first, since nobody else does.
    """
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    from supervisor.db.embedded import EmbeddedPostgres
    from supervisor.db.migrate import migrate

    embedded = EmbeddedPostgres()
    url = embedded.start()
    try:
        if migrated:
            migrate(url, settings.schema_)
        yield url
    finally:
        embedded.stop()


@contextmanager
def connection(settings: Settings) -> Iterator[Connection]:
    """A connection for one command; its errors are those of operate.connect."""
    from supervisor.db import operate

    with (
        database(settings) as url,
        operate.connect(
            url,
            settings.schema_,
            statement_timeout_s=settings.statement_timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
        ) as conn,
    ):
        yield conn


def serve(settings: Settings, *, migrate_first: bool = False) -> int:
    """Run the service until it is told to stop; its exit code."""
    import uvloop

    from supervisor.dashboard import require_packages
    from supervisor.db.migrate import migrate
    from supervisor.db.operate import refusals
    from supervisor.parent.service import Parent

    if settings.dashboard_port is not None:
        require_packages()  # now, not by a child that dies later

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # handlers lie beside the user, not beside the command

    if settings.outbox_url is not None or settings.consume_url is not None:
        from supervisor.outbox.role import check_brokers

        check_brokers(settings)

    async def parent(url: str) -> int:
        return await Parent(settings, url).run()

    with database(settings) as url:
        if migrate_first:
            with refusals(settings.schema_):
                migrate(url, settings.schema_)
        code = uvloop.run(parent(url))
    return code


def leave(code: int) -> None:
    """End the process at once: nothing that a library registered for the exit may hold it up."""
    log.flush(grace.LAST_LINES_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
