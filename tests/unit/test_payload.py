"""What may be stored is stored as it is; what may not is named and refused before any statement (B20)."""

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import InvalidJob
from supervisor.payload import JsonText, check_json, check_key, check_name, encode, encode_headers


class Colour(StrEnum):
    RED = "red"


class Shade(str, Enum):  # noqa: UP042 - the older way, which prints itself as "Shade.DARK"
    DARK = "dark"


class Level(IntEnum):
    HIGH = 3


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return {"a": value}


@pytest.mark.parametrize(
    ("payload", "field", "reason"),
    [
        ({"a": "x\x00y"}, "payload.a", "NUL"),
        ({"items": [{}, {"name": "\x00"}]}, "payload.items[1].name", "NUL"),
        ({"a": {"k\x00": 1}}, "payload.a", "key that holds a NUL"),
        ({"k\x00": 1}, "payload", "key that holds a NUL"),
        ({"a": "\ud800"}, "payload.a", "lone surrogate"),
        ({"\udfff": 1}, "payload", "lone surrogate"),
        ({"a": [math.nan]}, "payload.a[0]", "not a finite number"),
        ({"a": math.inf}, "payload.a", "not a finite number"),
        ({"a": Decimal("NaN")}, "payload.a", "not a finite number"),
        ({1: 2}, "payload", "key of type int"),
        ({"a": {None: 2}}, "payload.a", "key of type NoneType"),
        ({"a": {1, 2}}, "payload.a", "is a set"),
        ({"a": b"bytes"}, "payload.a", "encode bytes as text"),
        ({"a": object()}, "payload.a", "is a object"),
        ({"a": 1 << 5000}, "payload.a", "4096 bits"),
        (nested(128), "payload" + ".a" * 128, "deeper than 128"),
        ({"a": "x" * (16 * 1024 * 1024)}, "payload", "the limit is 16777216"),
        ([1], "payload", "must be a mapping"),
        ("{}", "payload", "must be a mapping"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(payload: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        encode(payload)
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_a_refusal_does_not_quote_the_value() -> None:
    with pytest.raises(InvalidJob) as caught:
        encode({"password": "hunter2\x00"})
    assert "hunter2" not in str(caught.value)


def test_a_structure_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidJob, match="deeper than 128"):
        encode({"a": loop})


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (2**63, 2**63),
        (-(2**100), -(2**100)),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (Shade.DARK, "dark"),
        ({Shade.DARK: 1}, {"dark": 1}),
        (Level.HIGH, 3),
        ((1, 2), [1, 2]),
        ("é\u2028\U0001f600", "é\u2028\U0001f600"),
        (1e23, 1e23),
        ({}, {}),
    ],
)
def test_values_with_one_usual_form_are_stored_in_it(value: Any, stored: Any) -> None:
    assert json.loads(encode({"a": value})) == {"a": stored}


def test_the_limits_themselves_are_allowed() -> None:
    encode(nested(127))
    assert len(encode({"a": "x" * (10 * 1024 * 1024)})) == 10 * 1024 * 1024 + 8
    assert encode({}) == "{}"


def jsonb(text: str) -> Any:
    """What PostgreSQL's jsonb gives back: numbers are decimals without an exponent."""

    def number(digits: str) -> Any:
        plain = format(Decimal(digits), "f")
        return float(plain) if "." in plain else int(plain)

    return json.loads(text, parse_float=number)


keys = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=1)), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(keys, json_values, max_size=6))
def test_what_is_stored_reads_back_equal(payload: dict[str, Any]) -> None:
    text = encode(payload)
    assert json.loads(text) == payload
    assert jsonb(text) == payload


odd_values = st.recursive(
    st.none() | st.text(st.characters()) | st.floats() | st.binary(),
    lambda inner: st.lists(inner) | st.sets(st.integers()) | st.dictionaries(st.text() | st.integers(), inner),
)


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters()) | st.integers(), odd_values))
def test_anything_else_is_refused_and_nothing_else_is_raised(payload: dict[Any, Any]) -> None:
    try:
        text = encode(payload)
    except InvalidJob:
        return
    assert "\\u0000" not in text
    text.encode()


def test_json_text_from_elsewhere_is_checked() -> None:
    assert check_json(' {"a" : 1.50} ') == '{"a":1.5}'
    done = encode({"a": 1})
    assert check_json(done) is done
    for text, reason in [
        ("{", "not JSON text at character"),
        ("[1]", "text of an object"),
        ('{"a": NaN}', "not a finite number"),
        ('{"a": 1e999}', "not a finite number"),
        ('{"a": "\\u0000"}', "NUL"),
        ('{"a":' * 100_000, "deeper than 128"),
    ]:
        with pytest.raises(InvalidJob, match=reason):
            check_json(text)


def test_headers_are_small() -> None:
    assert encode_headers(None) == "{}"
    assert isinstance(encode_headers({"trace": "1"}), JsonText)
    with pytest.raises(InvalidJob, match="headers"):
        encode_headers({"a": "x" * 65536})
    with pytest.raises(InvalidJob, match=r"headers\.a"):
        encode_headers({"a": "\x00"})


@pytest.mark.parametrize("check", [check_name, check_key])
@pytest.mark.parametrize("bad", ["", "a\x00", "\ud800", 5, None, b"x", "x" * 1025, "é" * 513])
def test_bad_names_and_keys_are_refused(check: Callable[[str, Any], str], bad: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        check("queue", bad)
    assert caught.value.field == "queue"


@pytest.mark.parametrize("bad", ["a\nb", " a", "a ", "\ta", "a\x7f", "a\x85b", "a\u2028b", "x" * 129, "é" * 65])
def test_a_name_is_one_short_line(bad: str) -> None:
    with pytest.raises(InvalidJob):
        check_name("kind", bad)


@pytest.mark.parametrize(
    "good", ["a'b", 'a"b', "a;b", "a--b", "$$a$$", "a\\b", "a.b", "50%", "%s", "{x}", "select", "UPPER", "é" * 64]
)
def test_odd_names_are_names(good: str) -> None:
    assert check_name("queue", good) == good
    assert check_key("unique_key", f" {good}\n") == f" {good}\n"
