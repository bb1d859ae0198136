"""`supervisor run`: the service, on the database of the settings or on an embedded one."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from supervisor import exits, log
from supervisor.db.embedded import EmbeddedPostgres
from supervisor.db.migrate import migrate
from supervisor.parent.service import Parent
from supervisor.settings import Settings


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """The address of the database to work with; an embedded PostgreSQL, migrated, when none is set."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    embedded = EmbeddedPostgres()
    url = embedded.start()
    try:
        migrate(url, settings.schema_)
        yield url
    finally:
        embedded.stop()


def serve(settings: Settings, *, migrate_first: bool = False) -> int:
    """Run the service until it is told to stop; its exit code."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # handlers lie beside the user, not beside the command
    log.configure(settings.log_format, settings.log_level)

    async def parent(url: str) -> int:
        return await Parent(settings, url).run()

    with database(settings) as url:
        if migrate_first:
            migrate(url, settings.schema_)
        code = uvloop.run(parent(url))
    log.flush(2.0)
    return code


def leave(code: int) -> None:
    """End the process at once: nothing that a library registered for the exit may hold it up."""
    log.flush(2.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


__all__ = ["database", "exits", "leave", "serve"]
