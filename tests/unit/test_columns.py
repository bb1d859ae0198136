"""Bulks of plain payloads are the same jobs as those checked and written one by one."""

import json
from typing import Any

import pytest

from supervisor import handler
from supervisor.columns import Columns, columns
from supervisor.errors import InvalidJob
from supervisor.payload import MAX_PAYLOAD_BYTES

TYPES: dict[str, frozenset[type]] = {
    "n": frozenset({int}),
    "note": frozenset({str}),
    "any": frozenset({str, int, bool, type(None)}),
    '100%s "q"': frozenset({str}),
}
TEXTS = ("", "plain", 'quo"te', "back\\slash", "line\nfeed\ttab\r", "\x01\x1f\x7f", "ünïcödé €", "\U0001f600", "%s %%")
NUMBERS = (0, -1, 2**64 - 1, -(2**64) + 1)


def rows() -> list[dict[str, Any]]:
    anything = (*TEXTS, *NUMBERS, True, False, None)
    return [
        {"any": one, "n": NUMBERS[i % len(NUMBERS)], '100%s "q"': TEXTS[i % len(TEXTS)], "note": "x"}
        for i, one in enumerate(anything)
    ]


def test_every_plain_value_is_written_as_json_reads_it() -> None:
    made = columns(rows(), TYPES)
    assert made is not None
    assert [json.loads(text) for text in made] == rows()
    assert [json.loads(text) for text in made.texts()] == rows()
    assert [made[index] for index in range(len(made))] == list(made)
    assert list(made[2:9:3]) == list(made)[2:9:3]
    assert made[-1] == list(made)[-1]


def test_the_order_of_names_does_not_matter() -> None:
    made = columns([{"n": 1, "note": "a"}, {"note": "b", "n": 2}], TYPES)
    assert made is not None
    assert list(made) == ['{"n":1,"note":"a"}', '{"n":2,"note":"b"}']


def test_what_the_caller_does_to_its_payloads_later_changes_nothing() -> None:
    payloads = [{"n": 1, "note": "a"}, {"n": 2, "note": "b"}]
    made = columns(payloads, TYPES)
    payloads[0]["note"] = "\x00"
    payloads.clear()
    assert made is not None
    assert list(made) == ['{"n":1,"note":"a"}', '{"n":2,"note":"b"}']


class Text(str):
    """Prints itself in any way."""


@pytest.mark.parametrize(
    "payload",
    [
        {"n": 1},
        {"n": 1, "note": "a", "any": 1},
        {"n": 1, "other": "a"},
        {"n": 1, "note": None},
        {"n": True, "note": "a"},
        {"n": 1.5, "note": "a"},
        {"n": 2**64, "note": "a"},
        {"n": -(2**64), "note": "a"},
        {"n": 1, "note": "\x00"},
        {"n": 1, "note": "\ud800"},
        {"n": 1, "note": Text("a")},
        {"n": 1, "note": "x" * (MAX_PAYLOAD_BYTES // 6)},
    ],
    ids=lambda payload: str(payload)[:30].encode("ascii", "backslashreplace").decode(),
)
def test_one_that_is_not_plain_sends_all_the_longer_way(payload: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"n": 1, "note": "a"}
    assert columns([usual, usual], TYPES) is not None
    assert columns([usual, payload], TYPES) is None
    assert columns([payload, usual], TYPES) is None


def test_a_handler_says_of_a_bulk_what_it_says_of_one_job() -> None:
    @handler("columns.said")
    async def said(n: int, note: str = "") -> None: ...

    usual: dict[str, Any] = {"n": 1, "note": "a"}
    assert isinstance(said.signature.encode_many([usual, usual]), Columns)
    assert list(said.signature.encode_many([usual, {"n": 2}])) == ['{"n":1,"note":"a"}', '{"n":2}']
    for wrong in ({"note": "a"}, {"n": 1, "more": 2}, {"n": "1x"}, {"n": 1, "note": "\x00"}):
        with pytest.raises(InvalidJob) as one:
            said.signature.encode(wrong)
        for bulk in ([wrong, wrong], [usual, wrong], [wrong, usual]):
            with pytest.raises(InvalidJob) as many:
                said.signature.encode_many(bulk)
            assert str(many.value) == str(one.value)
