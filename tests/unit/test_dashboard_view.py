"""What a page is made of: texts made visible, sparklines, JSON, searches, addresses."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from markupsafe import Markup
from starlette.datastructures import QueryParams

from supervisor.dashboard import orders
from supervisor.dashboard.orders import Done
from supervisor.dashboard.pages.jobs import Asked
from supervisor.dashboard.pages.queues import MINUTES, as_lines, hour
from supervisor.dashboard.problems import Refused, problem
from supervisor.dashboard.spark import spark
from supervisor.dashboard.view import as_json, environment, pretty, visible
from supervisor.db.browse import Line, as_contained
from supervisor.db.operate import StatementRefused
from supervisor.errors import DatabaseUnavailable
from supervisor.settings import is_loopback


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 漢字 🙂", "größe 漢字 🙂"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\x00\x1b[31m\x7f", "a\\u0000\\u001b[31m\\u007f"),
        ("invoice\u202egnp.exe", "invoice\\u202egnp.exe"),
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_only_markup_of_our_own_passes_unescaped() -> None:
    template = environment().from_string("{{ text }}|{{ ours }}|{{ nothing }}")
    assert template.render(text="<b>&'\"", ours=Markup("<i>"), nothing=None) == "&lt;b&gt;&amp;&#39;&#34;|<i>|"
    for name in environment().list_templates():
        source, _, _ = environment().loader.get_source(environment(), name)  # type: ignore[union-attr]
        assert not re.search(r"\|\s*safe\b|autoescape|<script(?![^>]*\bsrc=)|\bon\w+=|\bstyle=|javascript:", source), (
            name
        )


def test_a_sparkline_is_numbers_and_our_words() -> None:
    drawn = spark([0, 1, 5, 0, 2], "good", "done per <minute>")
    assert "done per &lt;minute&gt;: 2 in the minute that runs, 5 at most in 5 minutes" in drawn
    assert drawn.count("M") == 3 + 1, "a bar for each minute with jobs, and the base line"
    assert "style=" not in drawn
    assert 'd=""' in spark([0] * 60, "bad", "x")
    assert spark([], 'evil" onload=1', "x").count("onload") == 0


def test_json_has_no_markup_and_every_type() -> None:
    answer = as_json({"a": "<script>&</script>", "at": datetime(2030, 1, 1, tzinfo=UTC), "n": 2**63, "é": None})
    assert answer.media_type == "application/json"
    assert not set(b"<>&") & set(bytes(answer.body))
    assert json.loads(bytes(answer.body)) == {
        "a": "<script>&</script>",
        "at": "2030-01-01T00:00:00+00:00",
        "n": 2**63,
        "é": None,
    }


def test_values_of_any_depth_are_shown() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert pretty(deep) == "(nested too deeply to show)"
    assert pretty({"ü": 1}) == '{\n  "ü": 1\n}'


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('{"a": 1}', True), ("[1]", True), ("{}", True), ("7", False), ('"x"', False), ("null", False), ("{", False),
        ('{"a": NaN}', False), ('{"a": "\\u0000"}', False), ('{"a": "\\ud800"}', False), ("text", False),
        ("[" * 100_000, False),
    ],
)  # fmt: skip
def test_json_is_contained_and_anything_else_is_text(text: str, holds: bool) -> None:
    assert as_contained(text) == ((text, None) if holds else (None, text))


@pytest.mark.parametrize(
    "words", ["status=x", "before=x", "after=-1", f"before={2**63}", "q=%00", f"kind={'x' * 1001}"]
)
def test_what_cannot_be_asked_is_refused(words: str) -> None:
    with pytest.raises(Refused) as refused:
        Asked.read(QueryParams(words))
    assert refused.value.status_code == 400


def test_lines_are_added_up_and_what_is_out_of_range_is_left_out() -> None:
    lines = as_lines(
        [Line("a", "done", 0, 2), Line("a", "done", 59, 3), Line("a", "failed", 5, 1), Line("a", "dead", 5, 1),
         Line("a", "done", 60, 9), Line("a", "done", -1, 9), Line("b", "odd", 1, 1)]
    )  # fmt: skip
    seen = hour(lines["a"])
    assert (len(seen["done_line"]), seen["done_in_hour"], seen["bad_in_hour"], seen["bad_line"][5]) == (
        MINUTES,
        5,
        2,
        2,
    )
    assert hour(lines["b"])["bad_in_hour"] == 0
    assert hour({})["done_line"] == [0] * MINUTES


def test_what_became_of_an_order_travels_as_numbers() -> None:
    done = Done("retry", done=2, taken=1)
    again = Done.read(QueryParams({name: str(value) for name, value in done.query().items()}))
    assert again == done
    assert again is not None
    assert again.text().startswith("2 jobs put back")
    assert Done.read(QueryParams("said=<b>&done=1")) is None
    assert Done.read(QueryParams("said=retry&done=<b>&missing=9999999999999")) == Done("retry")


def test_times_of_a_form() -> None:
    assert orders.when({}) == {}
    assert orders.when({"at": "2030-01-31T12:00"}) == {"at": datetime(2030, 1, 31, 12, tzinfo=UTC)}
    assert orders.when({"in": " 1.5 ", "unit": "h"}) == {"delay_s": 5400.0}


def test_problems_hide_what_is_nobodys_business() -> None:
    away = problem(DatabaseUnavailable("cannot connect to postgresql://u:secret-word@h/db"))
    assert (away.status, "secret-word" in str(away.data)) == (503, False)
    assert problem(StatementRefused("canceling statement", "57014")).status == 503
    fault = problem(RuntimeError("internal detail"))
    assert (fault.status, "internal detail" in str(fault.data)) == (500, False)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("LOCALHOST", True), ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.evil.example", False), ("", False),
        ("127.0.0.1.evil.example", False), ("example.com", False),
    ],
)  # fmt: skip
def test_loopback_is_known_by_its_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
