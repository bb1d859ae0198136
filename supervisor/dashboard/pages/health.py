"""Health: what the database says of the queue's tables, and who keeps them from being vacuumed."""

from dataclasses import asdict
from typing import Any, Final

from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db.health import table_health
from supervisor.settings import Settings

_LASTS_S: Final = 10.0


async def page(viewer: Viewer, settings: Settings) -> Page:
    """The health of the tables."""
    data = await viewer.shared("health", _LASTS_S, lambda: _gather(viewer, settings))
    return Page("health.html", "Health", data, refresh_s=30.0)


async def _gather(viewer: Viewer, settings: Settings) -> dict[str, Any]:
    schema = settings.schema_
    found = await viewer.desk.examine(lambda conn: table_health(conn, schema))
    tables = sorted(found.tables, key=lambda table: -table.total_bytes)
    indexes = sorted(found.indexes, key=lambda index: -index.bytes)
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
