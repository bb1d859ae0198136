"""Health: what the doctor finds, what the database says of the queue's tables, who keeps them from being vacuumed.

The doctor makes many checks, and some of them may take a while on a busy server: the page does not wait long for
it, and shows its findings when they are there.
"""

import asyncio
from dataclasses import asdict
from typing import Any, Final

from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import STATEMENT_TIMEOUT_S, Viewer
from supervisor.db.health import table_health
from supervisor.doctor import Level, Limits, Report, examine
from supervisor.settings import Settings

_LASTS_S: Final = 5.0
_EXAMINED_FOR_S: Final = 30.0
_WAIT_S: Final = 0.4
_LIMITS: Final = Limits(patience_s=STATEMENT_TIMEOUT_S, check_s=2 * STATEMENT_TIMEOUT_S)


async def page(viewer: Viewer, settings: Settings) -> Page:
    """The health of everything."""
    data, report = await asyncio.gather(
        viewer.shared("health", _LASTS_S, lambda: _gather(viewer, settings)),
        viewer.soon("doctor", _EXAMINED_FOR_S, lambda: _examined(viewer, settings), _WAIT_S),
    )
    if report is not None and any(finding.check == "database" for finding in report.findings):
        viewer.forget("doctor")  # it could not be asked; the next look may tell more
    return Page(
        "health.html",
        "Health",
        {**data, "doctor": None if report is None else report.document()},
        {"findings": None if report is None else report.at_least(Level.NOTE)},
        refresh_s=2.0 if report is None else 30.0,
    )


async def _examined(viewer: Viewer, settings: Settings) -> Report:
    purpose = "reader" if settings.dashboard_read_only else "operator"
    return await viewer.desk.examine(lambda conn: examine(conn, settings, purpose=purpose, limits=_LIMITS))


async def _gather(viewer: Viewer, settings: Settings) -> dict[str, Any]:
    schema = settings.schema_
    found = await viewer.desk.examine(lambda conn: table_health(conn, schema))
    tables = sorted(found.tables, key=lambda table: -table.total_bytes)
    indexes = sorted(found.indexes, key=lambda index: (index.valid, -index.bytes))
    return {
        "tables": [asdict(table) for table in tables],
        "indexes": [asdict(index) for index in indexes],
        "holders": [{**asdict(holder), "owner": holder.owner} for holder in found.holders],
        "slots": [asdict(slot) for slot in found.slots],
        "notification_queue": found.notification_queue,
        "connections": found.connections,
        "max_connections": found.max_connections,
        "autovacuum": found.autovacuum,
        "xid_age": found.xid_age,
        "xid_limit": found.xid_limit,
    }
