"""The events a relay has in hand, and which of them may be sent now.

    read --add--> ready --take--> in flight --sent--> next of its key is ready; written off by `gone`
                    ^                 |
                    |                 +--refused--> waiting, then due again: `due`
                    +----back---------+--parked---> its key is held, or goes on

Per key one event is in flight at a time, the one with the lowest id; events without a key know no order. Only
what can be sent soon is kept in hand: events behind one that waits or is held, and those beyond a few of one
key, are skipped. Then the lowest skipped id of that key is remembered, and when the key is free again the part
is read again from there.

Always true: of two events of one key in hand or skipped, the lower id is sent first; an id is in hand once; what
is in hand with its body is at most what the reader had room for.

Elsewhere: reading (look.py); sending (sender.py).
"""

from __future__ import annotations

import heapq
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from supervisor.outbox.event import Event

MOST_OF_A_KEY: Final = 50
MOST_WAITING: Final = 100_000


@dataclass(slots=True)
class Part:
    """One part of the key space that this relay leads.

    Attributes:
        pos: The highest id read.
        more: It may be that there are unread rows above pos.
        lines: Per key, the events in hand, in order; the first is ready, in flight or waiting.
        blocked: Keys whose first event waits; their others are skipped.
        skipped: Per key the lowest id that was read and not kept.
        held: Keys that a parked event holds back.
    """

    number: int
    token: int
    pos: int
    more: bool = True
    retiring: bool = False
    hand: dict[int, Event] = field(default_factory=dict)
    waiting: dict[int, str | None] = field(default_factory=dict)
    lines: dict[str, list[Event]] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    skipped: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)

    def lowest(self) -> int:
        """No event of this part with an id below this is known to be pending."""
        known = [min(each) for each in (self.hand, self.waiting) if each]
        if self.skipped:
            known.append(min(self.skipped.values()))
        return min(known, default=self.pos + 1)


class Book:
    """All parts of one relay.

    Args:
        hold: Whether a parked event holds back its key.
    """

    def __init__(self, *, hold: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._hold = hold
        self._now = now
        self.parts: dict[int, Part] = {}
        self._ready: deque[tuple[Part, Event]] = deque()
        self._due: list[tuple[float, int, int]] = []  # when, part, id
        self._gone_meanwhile: set[int] = set()
        self.in_hand = 0

    # ---- parts

    def gain(self, number: int, token: int, pos: int, held: Iterable[str] = ()) -> Part:
        """Lead a part, from *pos* on."""
        self.lose(number)
        part = self.parts[number] = Part(number, token, pos, held=set(held))
        return part

    def lose(self, number: int) -> None:
        """Lead it no longer; what is in flight of it is on its own."""
        part = self.parts.pop(number, None)
        if part is not None:
            self.in_hand -= len(part.hand)
            part.hand.clear()  # what is still in the ready queue is told by this from what is in hand

    def token(self, event: Event) -> int | None:
        """The token under which *event* may be written off; None when its part is led no longer."""
        part = self.parts.get(event.part)
        return part.token if part is not None and part.hand.get(event.id) is event else None

    # ---- events in

    def begin_look(self) -> None:
        """What leaves the outbox from now on may be in the look's answer all the same: it is not added again."""
        self._gone_meanwhile.clear()

    def answer(
        self, events: Iterable[tuple[Event, float]], asked: Mapping[int, int], highest: Mapping[int, int]
    ) -> None:
        """The answer of a look, in order of id: events, and seconds until each may be sent.

        Args:
            asked: The position of each part when the look began. One that was set back meanwhile is read again from
                there: what lies above that is left for then, or it would be before what is still to be read.
            highest: The highest id that each part's position moves up to.
        """
        floors = {}
        for number, pos in asked.items():
            part = self.parts.get(number)
            if part is None:
                continue
            if part.pos != pos:
                floors[number] = part.pos
            else:
                part.pos = max(pos, highest.get(number, pos))
        for event, wait_s in events:
            if event.id <= floors.get(event.part, event.id):
                self.add(event, wait_s)

    def add(self, event: Event, wait_s: float) -> None:
        """An event that was read."""
        part = self.parts.get(event.part)
        if part is None or event.id in part.hand or event.id in part.waiting or event.id in self._gone_meanwhile:
            return
        key = event.key
        if key is not None:
            if key in part.held or key in part.blocked:
                _lower(part.skipped, key, event.id)
                return
            if event.id >= part.skipped.get(key, event.id + 1):
                return  # not before what was skipped
            line = part.lines.get(key)
            if line is not None and len(line) >= MOST_OF_A_KEY and event.id > line[-1].id:
                part.skipped[key] = event.id
                return
        if wait_s > 0:
            self._wait(part, event, wait_s)
            return
        part.hand[event.id] = event
        self.in_hand += 1
        if key is None:
            self._ready.append((part, event))
            return
        line = part.lines.setdefault(key, [])
        insort(line, event, key=lambda one: one.id)
        if len(line) == 1:
            self._ready.append((part, event))

    def take(self) -> Event | None:
        """The next event to send; None when none may be sent now."""
        while self._ready:
            part, event = self._ready.popleft()
            if part.hand.get(event.id) is event and not part.retiring:
                return event
        return None

    @property
    def any_ready(self) -> bool:
        """Whether `take` may have one."""
        return bool(self._ready)

    # ---- events out

    def sent(self, event: Event) -> None:
        """The broker has it: the next of its key may go. It stays in hand until `gone`."""
        part = self._part(event)
        if part is not None and event.key is not None:
            self._advance(part, event)

    def gone(self, event: Event) -> None:
        """It has left the outbox."""
        self._gone_meanwhile.add(event.id)
        part = self._part(event)
        if part is not None:
            self._drop(part, event)

    def back(self, event: Event) -> None:
        """It was not sent, for no fault of its own: it is the next again."""
        part = self._part(event)
        if part is not None:
            line = part.lines.get(event.key) if event.key is not None else None
            self._ready.appendleft((part, line[0] if line else event))

    def refused(self, event: Event, wait_s: float) -> None:
        """It may be tried again in so many seconds; until then its key waits with it."""
        part = self._part(event)
        if part is not None:
            self._drop(part, event)
            self._wait(part, event, wait_s)

    def parked(self, event: Event) -> None:
        """It was parked."""
        if event.key is None or not self._hold:
            self._gone_meanwhile.add(event.id)  # else its key is held, until it may come back
        part = self._part(event)
        if part is None:
            return
        self._drop(part, event)
        if event.key is None:
            return
        if self._hold:
            part.held.add(event.key)
            self._skip_line(part, event)
        else:
            self._advance(part, event)

    def due(self) -> int:
        """How many waiting events' time has come: they, and what their keys kept back, are to be read again."""
        now, count = self._now(), 0
        while self._due and self._due[0][0] <= now:
            _, number, event_id = heapq.heappop(self._due)
            part = self.parts.get(number)
            if part is None or event_id not in part.waiting:
                continue
            count += 1
            key = part.waiting.pop(event_id)
            part.pos = min(part.pos, event_id - 1)
            part.more = True
            if key is not None:
                part.blocked.discard(key)
                self._reread(part, key)
        return count

    def next_due_s(self) -> float | None:
        """Seconds until the first waiting event is due."""
        return max(0.0, self._due[0][0] - self._now()) if self._due else None

    def released(self, held: Iterable[tuple[int, str]]) -> int:
        """Take over which keys are held; how many that were are free again."""
        now_held: dict[int, set[str]] = {}
        for number, key in held:
            now_held.setdefault(number, set()).add(key)
        freed = 0
        for part in self.parts.values():
            wanted = now_held.get(part.number, set())
            for key in part.held - wanted:
                part.held.discard(key)
                self._reread(part, key)
                freed += 1
            for key in wanted - part.held:
                # Somebody else parked one: what is in flight of it goes on, nothing follows.
                part.held.add(key)
                for other in part.lines.get(key, ())[1:]:
                    _lower(part.skipped, key, other.id)
                    self._drop(part, other)
                del part.lines.get(key, [])[1:]
        return freed

    @property
    def any_held(self) -> bool:
        """Whether a parked event holds back a key of ours."""
        return any(part.held for part in self.parts.values())

    # ---- inside

    def _part(self, event: Event) -> Part | None:
        """The part that has *event* in hand."""
        part = self.parts.get(event.part)
        return part if part is not None and part.hand.get(event.id) is event else None

    def _drop(self, part: Part, event: Event) -> None:
        if part.hand.pop(event.id, None) is not None:
            self.in_hand -= 1

    def _advance(self, part: Part, event: Event) -> None:
        assert event.key is not None
        line = part.lines.get(event.key)
        if line and event in line:
            line.remove(event)
            if line:
                self._ready.append((part, line[0]))
                return
            del part.lines[event.key]
        self._reread(part, event.key)

    def _wait(self, part: Part, event: Event, wait_s: float) -> None:
        if event.key is not None:
            part.blocked.add(event.key)
            self._skip_line(part, event)
        elif len(part.waiting) >= MOST_WAITING:
            return  # a sweep finds it when it is due
        part.waiting[event.id] = event.key
        heapq.heappush(self._due, (self._now() + wait_s, part.number, event.id))

    def _skip_line(self, part: Part, event: Event) -> None:
        """Let go of the others of *event*'s key."""
        assert event.key is not None
        for other in part.lines.pop(event.key, ()):
            if other is not event:
                _lower(part.skipped, event.key, other.id)
                self._drop(part, other)

    def _reread(self, part: Part, key: str) -> None:
        """The key is free: read what was skipped of it."""
        lowest = part.skipped.pop(key, None)
        if lowest is not None:
            part.pos = min(part.pos, lowest - 1)
            part.more = True


def _lower(skipped: dict[str, int], key: str, event_id: int) -> None:
    skipped[key] = min(event_id, skipped.get(key, event_id))
