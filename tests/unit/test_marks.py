"""Marks: where a claim starts to look, replayed without a database."""

import random
from collections.abc import Sequence

from supervisor.db.jobs import Answer, ClaimedJob, Lane, Mark, epoch_us, mark_at
from supervisor.worker.marks import LOOKBACK_S, Marks

A, B, C = Lane("a", 0), Lane("a", 5), Lane("b", 0)
T0 = 1_800_000_000_000_000


def at(seconds: float) -> Mark:
    return Mark(mark_at(T0 + int(seconds * 1e6)), 0)


def answer(
    marks: dict[int, Mark] | None = None, *, short: bool = True, now: float = 1000.0, jobs: Sequence[ClaimedJob] = ()
) -> Answer:
    return Answer(list(jobs), marks or {}, 0, [], short, None, (T0 / 1e6) + now)


def job(seconds: float, id_: int) -> ClaimedJob:
    return ClaimedJob(id_, 1, "k", "a", 0, "{}", "{}", 1, 20, 0, False, None, T0 / 1e6 + seconds, T0 / 1e6 + seconds)


def where(marks: Marks) -> dict[Lane, Mark]:
    lanes, found, _ = marks.plan()
    return dict(zip(lanes, found, strict=True))


def test_marks_compare_as_their_rows_sort() -> None:
    texts = [mark_at(us) for us in (0, 1, 999_999, 1_000_000, T0, T0 + 1)]
    assert texts == sorted(texts)
    assert [epoch_us(text) for text in texts] == [0, 1, 999_999, 1_000_000, T0, T0 + 1]
    assert Mark(texts[4], 2) > Mark(texts[4], 1) > Mark(texts[3], 99)


def test_a_claim_moves_the_mark_of_the_lanes_it_read() -> None:
    marks = Marks({"*": 1})
    marks.publish([(A, at(0)), (C, at(0))])
    marks.plan()
    marks.learn([A, C], answer({0: at(50)}, short=False), 0.0)
    assert where(marks) == {A: at(50), C: at(0)}


def test_a_dry_claim_moves_all_marks_up_to_the_look_back_and_no_further() -> None:
    marks = Marks({"*": 1})
    marks.publish([(A, at(0))])
    lanes, _, lookback = marks.plan()
    assert lookback == LOOKBACK_S
    marks.learn(lanes, answer(now=1000), lookback)
    _, asked, _ = marks.plan()
    assert asked == [at(1000 - LOOKBACK_S)]


def test_a_word_to_look_back_outlives_the_claim_that_was_under_way() -> None:
    """The answer of a claim is older than a set-back that arrived while it ran: the lower mark stands."""
    marks = Marks({"*": 1})
    marks.publish([(A, at(0))])
    lanes, _, lookback = marks.plan()
    marks.set_back(A, at(3).at)
    marks.learn(lanes, answer({0: at(900)}), lookback)
    _, asked, _ = marks.plan()
    assert asked == [at(3)]


def test_a_full_claim_leaves_nothing_behind_what_it_took() -> None:
    """Lanes before the last that gave a job were read to their end; that one up to the last job taken."""
    marks = Marks({"*": 1})
    marks.publish([(A, at(0)), (B, at(0)), (C, at(0))])
    _, _, lookback = marks.plan()
    lanes = [A, C, B]
    marks.learn(lanes, answer({1: at(50)}, short=False, jobs=[job(51, 7), job(52, 9)]), lookback)
    assert where(marks) == {A: at(1000 - LOOKBACK_S), C: Mark(at(52).at, 9), B: at(0)}


def test_a_lane_that_was_not_read_to_its_end_keeps_the_mark_of_its_first_job() -> None:
    """It has a limit or is paused: jobs that were left lie between those that were taken."""
    marks = Marks({"*": 1})
    marks.publish([(A, at(0)), (C, at(0))])
    marks.plan()
    found = answer({1: at(50)}, short=False, jobs=[job(52, 9)])._replace(unread=frozenset({0, 1}))
    marks.learn([A, C], found, LOOKBACK_S)
    assert where(marks) == {A: at(0), C: at(50)}


def test_a_set_back_never_raises_a_mark() -> None:
    marks = Marks({"*": 1})
    marks.publish([(A, at(10))])
    marks.set_back(A, at(500).at)
    assert marks.plan()[1] == [at(10)]


def test_a_restart_begins_again_at_the_published_mark() -> None:
    marks = Marks({"*": 1})
    marks.publish([(A, at(0))])
    lanes, _, lookback = marks.plan()
    marks.learn(lanes, answer({0: at(900)}), lookback)
    marks.publish([(A, at(100))])
    assert marks.plan()[1] == [at(900)]
    marks.restart()
    assert marks.plan()[1] == [at(100)]


def test_lower_priorities_come_first_and_unserved_queues_never() -> None:
    marks = Marks({"a": 1})
    marks.publish([(B, at(0)), (A, at(0)), (C, at(0))])
    assert marks.plan()[0] == [A, B]
    assert not marks.serves("b")


def test_weights_share_the_first_place() -> None:
    marks = Marks({"a": 4, "b": 1}, random.Random(7))
    marks.publish([(A, at(0)), (C, at(0))])
    first = [marks.plan()[0][0].queue for _ in range(2000)]
    assert 0.75 < first.count("a") / len(first) < 0.85


def test_an_empty_queue_of_great_weight_takes_nothing_from_the_shares_of_the_others() -> None:
    """Drawn without replacement: of those behind it each is first as often as if it were not there."""
    marks = Marks({"empty": 1000, "a": 2, "b": 1}, random.Random(11))
    marks.publish([(Lane("empty", 0), at(0)), (A, at(0)), (C, at(0))])
    second = [next(lane.queue for lane in marks.plan()[0] if lane.queue != "empty") for _ in range(3000)]
    assert 0.62 < second.count("a") / len(second) < 0.71


def test_every_tenth_claim_reads_what_has_waited_longest_first() -> None:
    marks = Marks({"*": 1}, ageing_s=60)
    lanes = [Lane("q", 0), Lane("q", 5), Lane("q", 9)]
    marks.publish([(lanes[0], at(990)), (lanes[1], at(900)), (lanes[2], at(800))])
    orders = []
    for _ in range(20):
        asked, _, _ = marks.plan()
        marks.learn(asked, answer(short=False, now=1000), 0.0)
        orders.append(asked)
    assert [n for n, order in enumerate(orders, 1) if order != lanes] == [10, 20]
    assert orders[9] == [lanes[2], lanes[1], lanes[0]], "the oldest first, and what has not waited so long behind"


def test_nothing_ages_before_its_time_or_when_it_is_turned_off() -> None:
    for ageing_s, now in ((60, 840), (0, 10_000)):
        marks = Marks({"*": 1}, ageing_s=ageing_s)
        marks.publish([(Lane("q", 0), at(830)), (Lane("q", 9), at(800))])
        for _ in range(20):
            asked, _, _ = marks.plan()
            marks.learn(asked, answer(short=False, now=now), 0.0)
            assert asked == [Lane("q", 0), Lane("q", 9)]


def test_a_lane_that_is_not_read_follows_its_published_mark() -> None:
    """Else it would look older than it is, and be read from where only dead entries are."""
    marks = Marks({"*": 1})
    marks.publish([(A, at(0)), (C, at(0))])
    marks.plan()
    marks.learn([A, C], answer({0: at(900)}, short=False), 0.0)
    marks.publish([(A, at(100)), (C, at(100))])
    assert where(marks) == {A: at(900), C: at(100)}
    # Told to look back: a mark that was read off before that is not to be trusted, the one after it is.
    marks.set_back(C, at(500).at)
    marks.publish([(C, at(600))])
    assert dict(zip(*marks.plan()[:2], strict=True))[C] == at(100)
    marks.publish([(C, at(700))])
    assert dict(zip(*marks.plan()[:2], strict=True))[C] == at(700)


def test_a_removed_lane_is_not_asked_for_and_its_late_answer_is_ignored() -> None:
    marks = Marks({"*": 1})
    marks.publish([(A, at(0)), (C, at(0))])
    lanes, _, lookback = marks.plan()
    marks.publish([], [C])
    marks.learn(lanes, answer({lanes.index(C): at(5)}), lookback)
    assert marks.plan()[0] == [A]


def test_a_lane_that_was_not_read_to_its_end_keeps_its_mark() -> None:
    """A paused or full queue: nothing was claimed from it, and its jobs are still there."""
    marks = Marks({"*": 1}, random.Random(1))
    lanes = [Lane("full", 0), Lane("empty", 0)]
    marks.publish([(lane, Mark()) for lane in lanes])
    asked, _, _ = marks.plan()
    answer = Answer([], {}, 0, [], True, None, 1_800_000_000.0, unread=frozenset({asked.index(Lane("full", 0))}))
    marks.learn(asked, answer, 0.25)
    marks._restart_at = float("inf")
    asked, found, _ = marks.plan()
    assert found[asked.index(Lane("full", 0))] == Mark()
    assert found[asked.index(Lane("empty", 0))] > Mark()
