"""A worker whose parent has died renews its own session while it finishes what it runs."""

import asyncio
import time

from supervisor.db import jobs
from supervisor.db.link import DatabaseError, Link
from supervisor.errors import DatabaseUnavailable
from supervisor.settings import Settings
from supervisor.worker.session import Session


async def keep_alive(link: Link, session: Session, settings: Settings) -> None:
    """Renew *session* until cancelled or closed, at the parent's rhythm."""
    while session.id:
        sent = time.monotonic()
        try:
            renewed = await link.call(
                lambda conn: jobs.renew(conn, settings.schema_, sessions=[session.id], lease_s=settings.lease_s)
            )
            if session.id in renewed:
                session.prolonged(sent)
        except (DatabaseUnavailable, DatabaseError):
            await asyncio.sleep(min(0.2, settings.renew_every_s))
            continue
        await asyncio.sleep(settings.renew_every_s)
