"""The lanes this worker claims from, and where in each it starts to look.

A claim that began at the index's start would walk over every dead entry that an old snapshot elsewhere
keeps alive, and those of the jobs that were run last. So each lane has a low-water mark: the last job taken where a
claim came back full; the look-back where it read the lane to its end; else the lowest row that it saw unclaimed.
What can appear below a mark, and what brings it back into view:

    a row stamped before it was committed    look-back of 250 ms, whenever a claim came back short
                                             and at least every 100 ms
    a job of a long transaction, a release   its wake-up notice sets the mark back to its run_at
    a job that was stepped over, locked by   as anything else
    a claim that then failed
    anything else                            once a second the worker starts again from the published
                                             mark, and sweeps move rows from below that one up to it

Queues are visited by weight, lower priorities first in each. So that nothing waits for ever behind what comes
before it, every tenth claim reads the lanes whose mark is older than the ageing time first, the oldest of all
before the others: of the jobs that have waited for so long the one that has waited longest is next, wherever it is.
That costs no claim anything: a mark is as old as the first job that waits behind it.

Always true: a mark is only ever a place below which the last claim left nothing that was unclaimed and not locked, or
lower.

Elsewhere: publishing and sweeping (parent/tender.py); the statement (functions/050_work.sql).
"""

import random
import time
from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.db.jobs import Answer, Lane, Mark, mark_at

LOOKBACK_S: Final = 0.25
_LOOK_BACK_EVERY_S: Final = 0.1
_RESTART_EVERY_S: Final = 1.0
AGEING_EVERY: Final = 10


class Marks:
    """Lanes and marks of one worker.

    Args:
        weights: Queue name to weight; "*" stands for every queue not named. Queues are visited in a
            random order in which a queue of twice the weight is first twice as often; inside a queue
            lower priorities come first.
        ageing_s: In every tenth claim jobs that have waited for longer come before all others; 0: never.
    """

    def __init__(self, weights: dict[str, int], rng: random.Random | None = None, *, ageing_s: float = 0.0) -> None:
        self._weights = weights
        self._ageing_s = ageing_s
        self._plans = 0
        self._clock_ahead: float | None = None  # the database's clock less the monotonic one, by the last answer
        self._rng = rng or random.Random()
        self._published: dict[Lane, Mark] = {}
        self._marks: dict[Lane, Mark] = {}
        self._by_queue: dict[str, list[Lane]] = {}
        self._suspects: set[Lane] = set()
        self._told: set[Lane] = set()  # set back since their mark was last published
        # Set back while a claim was under way: its answer is older than the word to look back.
        self._since_plan: dict[Lane, Mark] = {}
        self._short = True
        self._looked_back_at = 0.0
        self._restart_at = 0.0

    def serves(self, queue: str) -> bool:
        """Whether this worker takes jobs of *queue*."""
        return queue in self._weights or "*" in self._weights

    def publish(self, lanes: Iterable[tuple[Lane, Mark]], removed: Iterable[Lane] = ()) -> None:
        """Take over published marks; new lanes become claimable."""
        for lane in removed:
            if self._published.pop(lane, None) is None:
                continue
            self._marks.pop(lane, None)
            self._told.discard(lane)
            if lane.suspects:
                self._suspects.discard(lane)
            else:
                self._by_queue[lane.queue].remove(lane)
                if not self._by_queue[lane.queue]:
                    del self._by_queue[lane.queue]
        for lane, mark in lanes:
            if not self.serves(lane.queue):
                continue
            if lane.suspects:
                self._suspects.add(lane)
            elif lane not in self._published:
                siblings = self._by_queue.setdefault(lane.queue, [])
                siblings.append(lane)
                siblings.sort(key=lambda sibling: sibling.priority)
            # Of a lane that is hardly ever read the published mark says more; but not of what was told meanwhile.
            if lane not in self._marks or (mark > self._marks[lane] and lane not in self._told):
                self._marks[lane] = mark
            self._told.discard(lane)
            self._published[lane] = mark

    def set_back(self, lane: Lane, at: str) -> None:
        """Look again from *at* on in *lane*; makes the lane known if it was not."""
        mark = Mark(at, 0)
        if lane not in self._published:
            self.publish([(lane, mark)])
        if lane in self._marks:
            self._told.add(lane)
            self._since_plan[lane] = min(mark, self._since_plan.get(lane, mark))
            self._marks[lane] = min(mark, self._marks[lane])

    def set_all_back(self, at: str) -> None:
        """Look again from *at* on in every lane."""
        for lane in list(self._published):
            self.set_back(lane, at)

    def restart(self) -> None:
        """Look again from the published marks on, at the next claim."""
        self._restart_at = 0.0

    def plan(self) -> tuple[list[Lane], list[Mark], float]:
        """The lanes to claim from, best first, their marks, and how far to look back in seconds."""
        now = time.monotonic()
        self._since_plan.clear()
        if now >= self._restart_at:
            for lane, mark in self._published.items():
                if mark < self._marks[lane]:
                    self._marks[lane] = mark
            self._restart_at = now + _RESTART_EVERY_S
        lookback = 0.0
        if self._short or now - self._looked_back_at >= _LOOK_BACK_EVERY_S:
            lookback = LOOKBACK_S
            self._looked_back_at = now
        lanes = [lane for queue in self._order() for lane in self._by_queue[queue]]
        self._plans += 1
        if self._ageing_s and self._plans % AGEING_EVERY == 0:
            lanes = self._oldest_first(lanes, now)
        return lanes, [self._marks[lane] for lane in lanes], lookback

    def where(self) -> tuple[list[Lane], list[Mark]]:
        """The ordinary lanes, and where the last claim began in each."""
        lanes = [lane for queue in self._by_queue.values() for lane in queue]
        return lanes, [self._marks[lane] for lane in lanes]

    def plan_suspects(self) -> tuple[list[Lane], list[Mark], float]:
        """The same for suspects, from the published marks on: they are few, and looked for rarely."""
        lanes = sorted(self._suspects, key=lambda lane: lane.priority)
        return lanes, [self._published[lane] for lane in lanes], LOOKBACK_S

    def _oldest_first(self, lanes: list[Lane], now: float) -> list[Lane]:
        """*lanes*, with those before the others whose first job has waited for longer than the ageing time."""
        if self._clock_ahead is None:
            return lanes
        before = Mark(mark_at(int((now + self._clock_ahead - self._ageing_s) * 1e6)), 0)
        # Of a lane that has just come into use nothing is known yet, for a second at most.
        aged = sorted((lane for lane in lanes if Mark() < self._marks[lane] < before), key=self._marks.__getitem__)
        first = set(aged)
        return aged + [lane for lane in lanes if lane not in first] if aged else lanes

    def _order(self) -> Sequence[str]:
        queues = list(self._by_queue)
        if len(queues) < 2:
            return queues
        # Efraimidis and Spirakis (2006): sorting by u^(1/w) draws without replacement by weight.
        star = self._weights.get("*", 1)
        draw = self._rng.random
        return sorted(queues, key=lambda queue: draw() ** (1.0 / self._weights.get(queue, star)), reverse=True)

    def learn(self, lanes: Sequence[Lane], answer: Answer, lookback_s: float) -> None:
        """Take the marks of a claim's answer."""
        self._short = answer.short
        self._clock_ahead = answer.now - time.monotonic()
        for index, mark in answer.marks.items():
            if lanes[index] in self._published:
                self._marks[lanes[index]] = mark
        # Each lane is read to its end before the next: nothing claimable older than the look-back is left in those
        # before the last that gave a job; nor, where the claim came back short, in those that gave none.
        last = max(answer.marks, default=0)
        floor = Mark(mark_at(int((answer.now - (lookback_s or LOOKBACK_S)) * 1e6)), 0)
        for index, lane in enumerate(lanes if answer.short and lookback_s else lanes[:last]):
            read = index < last or index not in answer.marks
            if read and index not in answer.unread and self._marks.get(lane, floor) < floor:
                self._marks[lane] = floor
        if answer.jobs and not answer.short and last not in answer.unread and lanes[last] in self._published:
            taken = answer.jobs[-1]
            self._marks[lanes[last]] = max(answer.marks[last], Mark(mark_at(round(taken.run_at * 1e6)), taken.id))
        for lane, mark in self._since_plan.items():
            if lane in self._marks:
                self._marks[lane] = min(mark, self._marks[lane])
