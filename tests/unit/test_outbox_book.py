"""Which events may be sent: one per key, in order, and never behind one that cannot be."""

import random

from supervisor.outbox.book import MOST_OF_A_KEY, Book
from supervisor.outbox.event import Event
from tests.support.sizes import FULL


class World:
    """A book over a table of pending events, as look.py reads it."""

    def __init__(self, *, hold: bool = True, part: int = 0) -> None:
        self.now = 0.0
        self.book = Book(hold=hold, now=lambda: self.now)
        self.rows: dict[int, str | None] = {}
        self.attempts: dict[int, int] = {}
        self.wait_until: dict[int, float] = {}
        self.book.gain(part, 1, -1)
        self.part = self.book.parts[part]
        self.lowest_new = 10**9
        self.seen: tuple[int, list[tuple[int, str | None, float]]] | None = None

    def look(self, limit: int = 1000) -> None:
        self.begin(limit)
        self.end()

    def begin(self, limit: int = 1000) -> None:
        """A look is on its way: this is what it has seen."""
        self.book.begin_look()
        self.part.pos = min(self.part.pos, self.lowest_new - 1)
        self.lowest_new = 10**9
        found = sorted(row for row in self.rows if row > self.part.pos)[:limit]
        self.seen = (self.part.pos, [(row, self.rows[row], self.wait_until.get(row, 0.0)) for row in found])
        self.part.more = len(found) == limit

    def end(self) -> None:
        """Its answer has come."""
        assert self.seen is not None
        pos, found = self.seen
        self.seen = None
        events = [
            (Event(row, 0, "t", key, str(row), b"", "{}", 0.0, 0), max(0.0, until - self.now))
            for row, key, until in found
        ]
        self.book.answer(events, {0: pos}, {0: found[-1][0]} if found else {})

    def commit(self, row: int, key: str | None) -> None:
        """A row becomes visible: the next look finds it, at its place, wherever the position is."""
        self.rows[row] = key
        self.lowest_new = min(self.lowest_new, row)

    def take_all(self) -> list[Event]:
        taken = []
        while (event := self.book.take()) is not None:
            taken.append(event)
        return taken

    def publish(self, event: Event) -> None:
        self.book.sent(event)
        del self.rows[event.id]
        self.book.gone(event)


def ids(events: list[Event]) -> list[int]:
    return [event.id for event in events]


def test_one_of_a_key_is_in_flight_and_many_keys_are() -> None:
    world = World()
    world.rows = {1: "a", 2: "b", 3: "a", 4: None, 5: None}
    world.look()
    first = world.take_all()
    assert ids(first) == [1, 2, 4, 5]
    world.publish(first[0])
    assert ids(world.take_all()) == [3]


def test_an_event_read_again_is_in_hand_once() -> None:
    world = World()
    world.rows = {1: "a", 2: None}
    world.look()
    assert len(world.take_all()) == 2
    world.part.pos = -1
    world.look()
    assert world.take_all() == []


def test_what_leaves_while_it_is_read_again_is_not_sent_again() -> None:
    world = World()
    world.rows = {1: None}
    world.look()
    [event] = world.take_all()
    world.book.begin_look()  # its snapshot still has the row
    world.publish(event)
    world.book.add(Event(1, 0, "t", None, "1", b"", "{}", 0.0, 0), 0.0)
    assert world.take_all() == []


def test_a_refused_event_keeps_its_key_and_nothing_else() -> None:
    world = World()
    world.rows = {1: "a", 2: "a", 3: "b", 4: None}
    world.look()
    bad = world.take_all()[0]
    world.book.refused(bad, 5.0)
    world.rows[5] = "a"
    world.look()
    assert world.take_all() == []
    assert world.book.in_hand == 2, "only what is in flight"
    world.now = 6.0
    assert world.book.due() == 1
    world.look()
    [again] = world.take_all()
    assert again.id == 1
    world.publish(again)
    world.look()
    assert ids(world.take_all()) == [2]


def test_a_parked_event_holds_its_key_until_it_is_released() -> None:
    world = World()
    world.rows = {1: "a", 2: "a"}
    world.look()
    [bad] = world.take_all()
    del world.rows[1]
    world.book.parked(bad)
    world.rows[3] = "a"
    world.look()
    assert world.take_all() == []
    assert world.book.any_held
    assert world.book.released([(0, "a")]) == 0
    assert world.book.released([]) == 1
    world.look()
    [second] = world.take_all()
    assert second.id == 2


def test_where_nothing_is_held_the_key_goes_on() -> None:
    world = World(hold=False)
    world.rows = {1: "a", 2: "a"}
    world.look()
    [bad] = world.take_all()
    del world.rows[1]
    world.book.parked(bad)
    assert ids(world.take_all()) == [2]


def test_a_hot_key_does_not_fill_the_hand() -> None:
    world = World()
    world.rows |= dict.fromkeys(range(1000), "hot") | {1000: "cold"}
    world.look(5000)
    assert ids(world.take_all()) == [0, 1000]
    assert world.book.in_hand == MOST_OF_A_KEY + 1


def test_what_a_look_brings_from_behind_a_key_that_was_set_back_meanwhile_waits_for_the_next() -> None:
    """Its rows lie behind what was skipped and is to be read again: sent now, they would be before it."""
    world = World()
    world.rows |= dict.fromkeys(range(MOST_OF_A_KEY + 10), "a")
    world.look()
    world.rows[1000] = "a"
    world.begin()
    for _ in range(MOST_OF_A_KEY):
        [event] = world.take_all()
        world.publish(event)
    world.end()
    assert world.take_all() == []
    world.look()
    assert ids(world.take_all()) == [MOST_OF_A_KEY]


def test_a_lost_part_gives_everything_back() -> None:
    world = World()
    world.rows = {1: "a", 2: None, 3: "a"}
    world.look()
    flying = world.take_all()
    world.book.lose(0)
    assert world.book.in_hand == 0
    for event in flying:
        assert world.book.token(event) is None
        world.book.sent(event)
        world.book.gone(event)
        world.book.back(event)
    assert world.take_all() == []


def test_whatever_happens_order_per_key_holds_and_everything_goes_out() -> None:
    """Random histories: refusals, outages, late commits, sweeps, small looks, parked and replayed events."""
    for seed in range(1000 if FULL else 150):
        rng = random.Random(seed)
        world = World(hold=True)
        keys = ["a", "b", "c", None]
        late = {row: rng.choice(keys[3:]) for row in rng.sample(range(200), 20)}
        later = [row for row in range(200) if row not in late]
        sent: list[tuple[int, str | None]] = []
        flying: list[Event] = []
        parked: dict[int, str | None] = {}
        published_of: dict[str, int] = {}
        for _ in range(5000):
            if not later and not late and not world.rows and not parked:
                break
            what = rng.random()
            if what < 0.2 and later:
                for _ in range(rng.randint(1, 30)):
                    if later:
                        row = later.pop(0)
                        world.commit(row, rng.choice(keys))
            elif what < 0.25 and late:
                world.commit(*late.popitem())
            elif what < 0.45:
                if world.seen is None:
                    world.begin(rng.randint(1, 60))
                else:
                    world.end()
                    flying += world.take_all()
            elif what < 0.5 and world.seen is None:
                world.now += rng.uniform(0, 3)
                world.book.due()
            elif what < 0.52 and world.seen is None:
                world.part.pos = -1
            elif what < 0.56 and parked and world.seen is None:  # what is freed is asked for between two looks
                world.commit(*parked.popitem())
                world.book.released([(0, other) for other in parked.values() if other is not None])
            elif flying:
                event = flying.pop(rng.randrange(len(flying)))
                assert all(event.key is None or other.key != event.key for other in flying), (seed, event)
                fate = rng.random()
                if fate < 0.7:
                    sent.append((event.id, event.key))
                    if event.key is not None:
                        assert event.id > published_of.get(event.key, -1), (seed, event, sent)
                        published_of[event.key] = event.id
                    world.publish(event)
                elif fate < 0.8:
                    world.book.back(event)
                elif fate < 0.95:
                    wait = rng.uniform(0, 5)
                    world.wait_until[event.id] = world.now + wait
                    world.book.refused(event, wait)
                else:
                    parked[event.id] = event.key
                    del world.rows[event.id]
                    world.book.parked(event)
                flying += world.take_all()
        else:
            raise AssertionError((seed, world.rows, parked, world.part))
        assert len(sent) == len(set(sent)) == 200, seed
        assert world.book.in_hand == 0
        assert (world.part.lines, world.part.skipped) == ({}, {}), seed
