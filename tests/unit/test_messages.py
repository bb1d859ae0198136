"""Messages: they arrive as they were sent, and nothing else arrives."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.cron import Entry
from supervisor.wire.messages import (
    BootFailed,
    CancelJob,
    Drain,
    Drained,
    Hungry,
    Lane,
    Lanes,
    LeaseLost,
    Mark,
    Message,
    More,
    Notice,
    Ready,
    SessionChanged,
    SetBack,
    Stop,
    Unreadable,
    Wake,
    decode,
    encode,
)

ALL: list[Message] = [
    Wake(),
    Wake("é'\"\\", (SetBack("a", -100, 5), SetBack("b", 100, 2**60)), 7),
    Lanes((Mark("bulk", 3, 1_700_000_000_000_000, 2**62),), (Lane("old", 0),)),
    Drain(12345.678, "SIGTERM"),
    CancelJob(2**62, 3),
    Stop(),
    Stop(now=True),
    Ready(812, 2**62, ("email.welcome", "ünïcode"), 50_000_000),
    Ready(1, 2, ("k",), 3, (), (Entry("k:ü", "k", "* * * * *", "UTC", 1, '{"a":1}', "q", -100, 20, 3, None),)),
    Hungry(None, True),
    Hungry(0.25, False),
    More(),
    SessionChanged(9),
    LeaseLost((1, 2, 3)),
    Drained(3, 2, 1),
    BootFailed("Traceback\n  ..."),
    Notice("handler.slow", {"kind": "mail", "seconds": 3.5, "n": 2, "none": None, "yes": True}),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: str(type(message).__name__))
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    again = decode(encode(message))
    assert again == message
    assert type(again) is type(message)


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None)
def test_any_values_arrive(text: str, number: int, real: float) -> None:
    for message in (Drain(real, text), Wake(text, (SetBack(text, number, number),)), SessionChanged(number)):
        assert decode(encode(message)) == message


def test_texts_that_are_no_utf8_are_replaced_and_not_refused() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    assert decode(encode(BootFailed("a\ud800b"))) == BootFailed("a\\ud800b")
    notice = decode(encode(Notice("x", {"lone\udfff": "\ud800", "object": Broken(), "inf": float("inf")})))
    assert isinstance(notice, Notice)
    assert notice.fields["lone\\udfff"] == "\\ud800"
    assert "RuntimeError" in notice.fields["object"]
    assert notice.fields["inf"] == "inf"


def test_an_endless_traceback_is_cut_and_keeps_its_end() -> None:
    message = decode(encode(BootFailed("x" * 1_000_000 + "ValueError: the end")))
    assert isinstance(message, BootFailed)
    assert len(message.traceback) < 110_000
    assert message.traceback.endswith("ValueError: the end")


@pytest.mark.parametrize(
    ("data", "unknown"),
    [
        (b"", False),
        (b"{}", False),
        (b"[1]", False),
        (b"\xff\xfe", False),
        (b'{"t":"of tomorrow","x":1}', True),
        (b'{"t":"stop","now":"yes"}', False),
        (b'{"t":"drain","deadline":null,"reason":"x"}', False),
        (b'{"t":"drain","deadline":1e999,"reason":"x"}', False),
        (b'{"t":"ready","pid":"812","session":1,"kinds":[],"rss":1}', False),
        (b"[" * 100_000, False),
    ],
)
def test_what_is_no_message_is_unreadable_and_nothing_else(data: bytes, unknown: bool) -> None:
    with pytest.raises(Unreadable) as caught:
        decode(data)
    assert caught.value.unknown is unknown


def test_random_bytes_never_raise_anything_else() -> None:
    generator = random.Random(3)
    good = [encode(message) for message in ALL]
    for _ in range(3_000):
        data = bytearray(generator.choice(good))
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            decode(bytes(data))
        except Unreadable:
            continue
    with pytest.raises(Unreadable):
        decode(os.urandom(64))
