"""The outbox's figures as gauges of /metrics: of a service, and of a relay or a consumer that runs alone.

Elsewhere: the figures (db/events.py); what the gauges mean (metrics/facts.py).
"""

from supervisor.db.events import OutboxState
from supervisor.metrics.facts import Values


def of_outbox(state: OutboxState) -> Values:
    """The gauges of the outbox and the inbox."""
    return {
        "outbox_pending": {(): state.pending},
        "outbox_oldest_seconds": {(): max(0.0, state.oldest_s or 0.0)},
        "outbox_retrying": {(): state.retrying},
        "outbox_parked": {(): state.parked},
        "outbox_unled_parts": {(): state.unled},
        "outbox_relays": {("up",): state.relays - state.down, ("down",): state.down},
        "inbox_parked": {(): state.inbox_parked},
    }
