"""The outbox: what is to be published, what was refused too often, and who publishes.

Always true: counts stop at a limit, and the lists hold a page's worth; a payload is not shown.
"""

from typing import Any, Final

from supervisor.dashboard.view import Page
from supervisor.dashboard.viewer import Viewer
from supervisor.db import events

PARTS: Final = 64
MOST_SHOWN: Final = 100


async def page(viewer: Viewer) -> Page:
    """State, relays, the first parked events."""
    data = await viewer.shared("outbox", 1.0, lambda: _gather(viewer))
    return Page("outbox.html", "Outbox", data, refresh_s=5.0)


async def _gather(viewer: Viewer) -> dict[str, Any]:
    state = await viewer.desk.look(events.state)
    return {
        **state._asdict(),
        "parts_in_all": PARTS,
        "relay_list": await viewer.desk.look(events.relays),
        "parked_events": await viewer.desk.look(events.events, "parked", limit=MOST_SHOWN),
    }
