"""What waits to be sent, with all that later messages have made unnecessary taken out.

    add --> control: in order, the latest of each key        goes first
            lanes:   the last word on each lane
            wake:    at most one, all wakes since the last in it
        --> next

A reader that is stopped so costs its writer a bounded heap, and finds one wake when it goes on.

Always true: no wake is lost, nor the earliest point that one of them names for a lane; what is refused is a
message that nothing that waits makes unnecessary, and only beyond `MAX_CONTROL` of them.

Elsewhere: the socket (channel.py); the messages (messages.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final

from supervisor.wire.messages import CancelJob, Lane, Lanes, LeaseLost, Mark, Message, Notice, SetBack, Wake

MAX_CONTROL: Final = 4096  # a worker holds fewer jobs than that to cancel
MAX_SET_BACK: Final = 128
MAX_IDS: Final = 2000
LANES_PER_MESSAGE: Final = 200


class Pending:
    """The messages that wait."""

    def __init__(self) -> None:
        self._control: dict[Hashable, Message] = {}
        self._lanes: dict[Lane, Mark | None] = {}
        self._wake: WakeSum | None = None

    def __bool__(self) -> bool:
        return bool(self._control or self._lanes or self._wake is not None)

    def add(self, message: Message) -> bool:
        """Keep *message* for sending; False if there are too many of its kind."""
        if isinstance(message, Wake):
            if self._wake is None:
                self._wake = WakeSum(message)
            else:
                self._wake.add(message)
        elif isinstance(message, Lanes):
            for mark in message.lanes:
                self._lanes[Lane(mark.queue, mark.priority)] = mark
            for lane in message.remove:
                self._lanes[lane] = None
        elif isinstance(message, LeaseLost):
            before = self._control.get(LeaseLost)
            ids = (before.job_ids if isinstance(before, LeaseLost) else ()) + message.job_ids
            self._control[LeaseLost] = LeaseLost(ids[-MAX_IDS:])
        else:
            key = message.key if message.key is not None else object()
            if isinstance(message, (CancelJob, Notice)) and len(self._control) >= MAX_CONTROL:
                return key in self._control
            self._control.pop(key, None)  # the newer one takes its place in the order too
            self._control[key] = message
        return True

    def next(self) -> Message | None:
        """Take the next message to send, None if there is none."""
        if self._control:
            return self._control.pop(next(iter(self._control)))
        if self._lanes:
            some = [(lane, self._lanes.pop(lane)) for lane in list(islice(self._lanes, LANES_PER_MESSAGE))]
            return Lanes(
                lanes=tuple(mark for _, mark in some if mark is not None),
                remove=tuple(lane for lane, mark in some if mark is None),
            )
        if self._wake is not None:
            wake, self._wake = self._wake.message(), None
            return wake
        return None


class WakeSum:
    """Several wakes as one: the earliest point per lane; beyond `MAX_SET_BACK` lanes, the earliest point for all."""

    def __init__(self, first: Wake) -> None:
        self._queue = first.queue
        self._lanes: dict[Lane, int] = {}
        self._all = first.all_back_to_us
        self._add_lanes(first.set_back)

    def add(self, wake: Wake) -> None:
        if wake.queue != self._queue:
            self._queue = None
        if wake.all_back_to_us is not None:
            self._all_back(wake.all_back_to_us)
        self._add_lanes(wake.set_back)

    def _add_lanes(self, points: tuple[SetBack, ...]) -> None:
        for queue, priority, at_us in points:
            if self._all is not None and at_us >= self._all:
                continue
            lane = Lane(queue, priority)
            known = self._lanes.get(lane)
            if known is None or at_us < known:
                self._lanes[lane] = at_us
        if len(self._lanes) > MAX_SET_BACK:
            self._all_back(min(self._lanes.values()))

    def _all_back(self, at_us: int) -> None:
        self._all = at_us if self._all is None else min(self._all, at_us)
        self._lanes = {lane: at for lane, at in self._lanes.items() if at < self._all}

    def message(self) -> Wake:
        return Wake(self._queue, tuple(SetBack(*lane, at) for lane, at in self._lanes.items()), self._all)


def merge_wakes(messages: list[Message]) -> Iterator[Message]:
    """All but the wakes in their order, then one wake for all of them."""
    if len(messages) == 1:
        yield messages[0]
        return
    wake: WakeSum | None = None
    for message in messages:
        if not isinstance(message, Wake):
            yield message
        elif wake is None:
            wake = WakeSum(message)
        else:
            wake.add(message)
    if wake is not None:
        yield wake.message()
