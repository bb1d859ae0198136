"""The lanes of this queue and their published marks, as this parent knows them, told to its workers.

They come from the lane table once per tick and, for a queue used for the first time, from the
notification itself, so that its first job need not wait for the tick.
"""

from collections.abc import Iterable
from typing import Protocol

from supervisor.db.jobs import Lane, Mark, epoch_us
from supervisor.wire import messages
from supervisor.wire.messages import Lanes


class Told(Protocol):
    """A worker that is told of lanes."""

    def tell(self, message: Lanes) -> None: ...


class LaneBook:
    """Lanes and published marks."""

    def __init__(self) -> None:
        self.known: dict[Lane, Mark] = {}
        self.announced: set[Lane] = set()
        """Heard of in a notification and not yet in the lane table."""

    def everything(self) -> Lanes:
        """For a worker that knows nothing yet."""
        return _message(self.known.items(), ())

    def of_queue(self, queue: str) -> list[Lane]:
        """The known lanes of *queue*."""
        return [lane for lane in self.known if lane.queue == queue]

    def announce(self, lanes: Iterable[Lane]) -> Lanes | None:
        """Take over lanes from a notification; the message for workers if any was new."""
        new = [lane for lane in lanes if lane not in self.known]
        if not new:
            return None
        self.known.update((lane, Mark()) for lane in new)
        self.announced.update(new)
        return _message([(lane, Mark()) for lane in new], ())

    def refresh(self, stored: dict[Lane, Mark]) -> Lanes | None:
        """Take over the lane table; the message for workers if anything changed."""
        self.announced.difference_update(stored)
        changed = [(lane, mark) for lane, mark in stored.items() if self.known.get(lane) != mark]
        gone = [lane for lane in self.known if lane not in stored and lane not in self.announced]
        for lane in gone:
            del self.known[lane]
        self.known.update(changed)
        return _message(changed, gone) if changed or gone else None


def _message(lanes: Iterable[tuple[Lane, Mark]], gone: Iterable[Lane]) -> Lanes:
    return Lanes(
        tuple(messages.Mark(lane.queue, lane.priority, epoch_us(mark.at), mark.id) for lane, mark in lanes),
        tuple(messages.Lane(lane.queue, lane.priority) for lane in gone),
    )
