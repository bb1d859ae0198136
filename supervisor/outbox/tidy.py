"""Retention of the outbox's and the inbox's rows: sent, parked and received events go when their time has passed.

Always true: one process tidies at a time (db/functions/120_inbox.sql); the others ask again a minute later.

Elsewhere: retention of jobs (parent/tender.py).
"""

import asyncio
from typing import Final, Literal

from supervisor.db import outbox
from supervisor.db.link import DatabaseError, Link, first_line
from supervisor.errors import DatabaseUnavailable
from supervisor.log import Repeats, get_logger
from supervisor.settings import Settings

_DAY_S: Final = 86400.0
_MOST_AT_ONCE: Final = 1000
_PAUSE_S: Final = 60.0
_BUSY_PAUSE_S: Final = 1.0


async def tidy(link: Link, settings: Settings, who: Literal["relay", "consumer"]) -> None:
    """Remove what is past its time, a thousand rows at once, until cancelled."""
    log, repeats = get_logger(who), Repeats(every_s=5.0)
    while True:
        pause = _PAUSE_S
        try:
            gone = await link.call(
                lambda conn: outbox.tidy(
                    conn,
                    settings.schema_,
                    keep_sent_s=settings.keep_sent_days * _DAY_S,
                    keep_inbox_s=settings.keep_inbox_days * _DAY_S,
                    keep_parked_s=settings.keep_dead_days * _DAY_S,
                    limit=_MOST_AT_ONCE,
                )
            )
            if gone >= _MOST_AT_ONCE:
                pause = _BUSY_PAUSE_S
        except (DatabaseUnavailable, DatabaseError) as error:
            repeats.tell(log.warning, f"{who}.not_tidied", reason=first_line(error), did="trying again")
        await asyncio.sleep(pause)
