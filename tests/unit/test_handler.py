"""Declaring handlers: what is read from a function, what is refused, how payloads go there and back."""

import asyncio
import importlib
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from supervisor import Backoff, Job, handler
from supervisor.errors import InvalidHandler, InvalidJob, PayloadInvalid
from supervisor.handler import Handler, registry

# `import supervisor.handler` would give the decorator of that name.
handler_module = importlib.import_module("supervisor.handler")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_module, "_registry", {})


class Address(BaseModel):
    street: str
    kind: Literal["home", "work"] = "home"


class Strict(BaseModel):
    email: str

    @field_validator("email")
    @classmethod
    def _check(cls, value: str) -> str:
        if "@" not in value:
            raise ValueError(f"bad address {value}")
        if value == "boom@":
            raise RuntimeError(value)
        return value


# -- declaring -----------------------------------------------------------------------------


def test_a_handler_carries_what_was_declared_and_is_still_the_function() -> None:
    @handler(
        "email.welcome",
        queue="email",
        priority=-5,
        max_attempts=5,
        max_crashes=2,
        timeout=timedelta(seconds=30),
        kill_after=1,
        backoff=Backoff(2),
        aliases=("welcome", "hello", "welcome"),
        unique_key="one",
    )
    def welcome(user_id: int, lang: str = "en") -> str:
        """Greets."""
        return f"{user_id} {lang}"

    assert isinstance(welcome, Handler)
    assert (welcome.kind, welcome.queue, welcome.priority) == ("email.welcome", "email", -5)
    assert (welcome.max_attempts, welcome.max_crashes, welcome.timeout, welcome.kill_after) == (5, 2, 30.0, 1.0)
    assert (welcome.backoff, welcome.aliases, welcome.unique_key) == (Backoff(2), ("welcome", "hello"), "one")
    assert (welcome.is_async, welcome.module, welcome.__doc__) == (False, __name__, "Greets.")
    assert welcome(7) == "7 en"
    assert list(inspect.signature(welcome).parameters) == ["user_id", "lang"]
    assert set(registry()) == {"email.welcome", "welcome", "hello"}
    assert registry()["hello"] is welcome
    assert "email.welcome" in repr(welcome)
    assert "test_handler.py" in repr(welcome)


def test_an_async_handler_is_called_as_the_coroutine_function_it_is() -> None:
    @handler("a")
    async def double(n: int) -> int:
        return 2 * n

    assert double.is_async
    assert asyncio.run(double(4)) == 8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": ""}, "kind"),
        ({"kind": "a\nb"}, "kind"),
        ({"queue": " x"}, "queue"),
        ({"priority": 101}, "priority"),
        ({"priority": True}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_crashes": 1.5}, "max_crashes"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"kill_after": -1}, "kill_after"),
        ({"backoff": 3}, "backoff"),
        ({"aliases": "old"}, "aliases"),
        ({"aliases": ("",)}, "aliases"),
        ({"unique_key": ""}, "unique_key"),
    ],
)
def test_an_option_that_cannot_be_is_refused_at_import(options: dict[str, Any], reason: str) -> None:
    def work() -> None: ...

    with pytest.raises(InvalidHandler, match=reason):
        handler(**{"kind": "k", **options})(work)
    assert registry() == {}


def _positional_only(n: int, /) -> None: ...
def _stars(*n: int) -> None: ...
def _double_stars(**n: int) -> None: ...
def _untyped(n) -> None: ...  # type: ignore[no-untyped-def]
def _two_jobs(a: Job, b: Job) -> None: ...
def _optional_job(job: Job | None) -> None: ...
def _no_json(sock: Path | Callable[[], int] | asyncio.Queue[int]) -> None: ...
def _unknown_name(n: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _generator(n: int) -> Iterator[int]:
    yield n


async def _async_generator(n: int) -> AsyncIterator[int]:
    yield n


class _Class:
    pass


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_positional_only, "'n' is positional-only"),
        (_stars, "'*n' has no fixed names"),
        (_double_stars, "'**n' has no fixed names"),
        (_untyped, "'n' has no type"),
        (_two_jobs, "both ask for the Job"),
        (_optional_job, "'job' has type"),
        (_no_json, "'sock' has type"),
        (_unknown_name, "'Nowhere', which is not there at run time"),
        (_generator, "generator"),
        (_async_generator, "generator"),
        (_Class, "must decorate a function"),
        (staticmethod(len), "must decorate a function"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused_at_import(fn: Any, reason: str) -> None:
    with pytest.raises(InvalidHandler) as caught:
        handler("some.kind")(fn)
    assert reason in str(caught.value)
    assert "some.kind" in str(caught.value)


def test_the_decorator_without_a_name_says_how_it_is_written() -> None:
    with pytest.raises(InvalidHandler, match=r'@handler\("some\.kind"\)'):
        handler(_untyped)  # type: ignore[arg-type]


def test_two_functions_of_one_kind_are_an_error_that_names_both() -> None:
    @handler("k", aliases=("old",))
    def first() -> None: ...

    for kind, aliases in (("k", ()), ("old", ()), ("new", ("k",))):

        def second() -> None: ...

        with pytest.raises(InvalidHandler) as caught:
            handler(kind, aliases=aliases)(second)
        assert "first" in str(caught.value)
        assert "second" in str(caught.value)
    assert set(registry()) == {"k", "old"}


def test_the_same_function_declared_again_replaces_itself_and_its_aliases() -> None:
    """A module that is imported again, in a reload, is no conflict."""

    def declare(aliases: tuple[str, ...]) -> Handler[Any]:
        @handler("k", aliases=aliases)
        def work() -> None: ...

        return work

    declare(("old", "older"))
    again = declare(("old",))
    assert dict(registry()) == {"k": again, "old": again}


# -- payloads ------------------------------------------------------------------------------


def test_only_what_was_given_is_stored_and_defaults_are_those_of_the_run() -> None:
    @handler("k")
    def work(user_id: int, lang: str = "en", tags: list[str] = []) -> None: ...  # noqa: B006

    assert work.encode(7) == '{"user_id":7}'
    assert work.encode(user_id=7, lang="fr") == '{"user_id":7,"lang":"fr"}'
    one = work.bind('{"user_id": 7}')
    assert one == {"user_id": 7, "lang": "en", "tags": []}
    one["tags"].append("x")
    assert work.bind(b'{"user_id": 7}')["tags"] == []


def test_rich_types_go_there_and_back() -> None:
    @handler("k")
    def work(
        at: datetime, day: date, wait: timedelta, who: UUID, where: Address, blob: bytes, n: Annotated[int, Field(gt=0)]
    ) -> None: ...

    values: dict[str, Any] = {
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "day": date(2026, 1, 2),
        "wait": timedelta(minutes=5),
        "who": UUID(int=5),
        "where": Address(street="x"),
        "blob": b"\x00\xff",
        "n": 3,
    }
    assert work.bind(work.encode(**values)) == values


@settings(deadline=None)
@given(
    n=st.integers(),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
    deep=st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9))),
)
def test_any_arguments_that_are_taken_arrive_equal(n: int, ratio: float, text: str, deep: dict[str, list[int]]) -> None:
    def work(n: int, ratio: float, text: str, deep: dict[str, list[int]]) -> None: ...

    declared = handler("k")(work)
    assert declared.bind(declared.encode(n, ratio, text, deep=deep)) == {
        "n": n,
        "ratio": ratio,
        "text": text,
        "deep": deep,
    }


class Word(str):
    """No plain text."""


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(
                st.integers(), st.text(max_size=5), st.booleans(), st.none(), st.floats(), st.just(Word("1")),
                st.sampled_from([2**63, -(2**64), 2**4000, -(2**4097), "\x00", "\ud800", "7", "true", b"x"]),
            )
            for name in ("n", "text", "flag", "maybe", "either", "extra")
        },
    )
)  # fmt: skip
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_taken_without_the_model_is_what_the_model_would_take(values: dict[str, Any]) -> None:
    def fn(
        n: int,
        text: str,
        maybe: str | None = None,
        flag: bool = False,
        either: Optional[int | str] = 3,  # noqa: UP045
    ) -> None: ...

    signature = handler("plain")(fn).signature
    assert signature.plain.keys() == {"n", "text", "maybe", "flag", "either"}

    def outcome(one: Any) -> object:
        try:
            return json.loads(one.encode(values))
        except InvalidJob as error:
            return error.field

    # The same with the model alone, but for what has two names: its field, and the payload's own check.
    assert outcome(signature) == outcome(replace(signature, plain={}))


def test_names_that_a_model_cannot_have_are_parameters_like_others() -> None:
    @handler("k")
    def work(self: int, model_config: int, json: str, _hidden: int = 1, copy: bool = False, conn: int = 0) -> None: ...

    values = {"self": 1, "model_config": 2, "json": "x", "conn": 9}
    assert work.bind(work.encode(**values)) == {**values, "_hidden": 1, "copy": False}  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"payload\.json"):
        work.encode(self=1, model_config=2, json=3)  # type: ignore[arg-type]


def test_the_job_is_given_by_the_worker_at_any_position() -> None:
    @handler("k")
    def work(n: int, job: Job, text: str = "") -> None: ...

    context = Job(id=41, kind="k")
    assert "job" not in work.model.model_fields
    assert work.encode(5, "x") == '{"n":5,"text":"x"}'  # type: ignore[arg-type]
    assert work.bind('{"n": 5}', context) == {"n": 5, "text": "", "job": context}
    with pytest.raises(PayloadInvalid, match="job"):
        work.bind('{"n": 5, "job": 1}', context)


def test_bad_arguments_are_refused_with_the_field() -> None:
    @handler("k")
    def work(user_id: int, where: Address | None = None, ratio: float = 0) -> None: ...

    loose: Any = work
    calls: list[tuple[Callable[[], object], str, str]] = [
        (loose.encode, "payload.user_id", "is missing"),
        (lambda: loose.encode("x"), "payload.user_id", "does not fit (int_parsing)"),
        (lambda: loose.encode(1, lang="x"), "payload.lang", "is not a parameter"),
        (lambda: loose.encode(1, None, 0, 4), "payload", "takes 3 positional arguments, got 4"),
        (lambda: loose.encode(1, user_id=1), "payload.user_id", "given twice"),
        (lambda: loose.encode(1, {"street": 1}), "payload.where.street", "does not fit (string_type)"),
        (lambda: loose.encode(1, {"street": "a\x00"}), "payload.where.street", "NUL"),
        (lambda: loose.encode(1, ratio=float("nan")), "payload.ratio", "not a finite number"),
    ]
    for call, field, reason in calls:
        with pytest.raises(InvalidJob) as caught:
            call()
        assert (caught.value.field, reason in caught.value.reason) == (field, True), str(caught.value)


def test_a_type_that_does_not_read_back_what_it_writes_is_refused_at_enqueue() -> None:
    class OneWay(BaseModel):
        a: int = Field(validation_alias="in", serialization_alias="out")

    def work(value: Any) -> None: ...

    work.__annotations__["value"] = OneWay
    with pytest.raises(InvalidJob, match="does not read back"):
        handler("k")(work).encode(value={"in": 1})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"user_id": "secret"}', "user_id (int_parsing)"),
        ('{"user_id": 1, "secret_key": 2}', "secret_key (extra_forbidden)"),
        ('{"user_id": 1, "a secret": 2}', "? (extra_forbidden)"),
        ('{"user_id": 1, "who": {"email": "secret"}}', "who.email (value_error)"),
        ('{"user_id": 1, "who": {"email": "boom@"}}', "a validator raised RuntimeError"),
        ('{"user_id": 1, "counts": {"x@secret": "y"}}', "counts.? (int_parsing)"),
        ('{"uid": 1}', "user_id (missing), uid (extra_forbidden)"),
        ("{}", "user_id (missing)"),
        ("[1]", "payload (model_type)"),
        ('"secret"', "payload (model_type)"),
        ("nope", "payload (Invalid JSON: expected ident at line 1 column 2)"),
    ],
)
def test_a_stored_payload_that_does_not_fit_is_told_without_its_values(text: str, reason: str) -> None:
    """B21: what an older release left behind must end with a clear text, and secrets stay out of it."""

    @handler("k")
    def work(user_id: int, who: Strict | None = None, counts: dict[str, int] | None = None) -> None: ...

    with pytest.raises(PayloadInvalid) as caught:
        work.bind(text)
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value).replace("secret_key", "")
    assert caught.value.__suppress_context__


def test_many_problems_are_counted_not_listed() -> None:
    @handler("k")
    def work(a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> None: ...

    with pytest.raises(PayloadInvalid, match=r"e \(missing\), and 2 more"):
        work.bind("{}")


# -- options of an enqueue -----------------------------------------------------------------


def test_at_makes_a_copy_with_options_over_the_handlers() -> None:
    @handler("k", queue="mail", priority=3, max_attempts=4, timeout=9)
    def work(n: int) -> None: ...

    plain = work.new_job(1)
    assert (plain.kind, plain.queue, plain.priority, plain.max_attempts) == ("k", "mail", 3, 4)
    # The worker takes the timeout of the handler as it is then.
    assert plain.timeout_s is None
    bound = work.at(queue="slow", in_=timedelta(hours=1), unique_key="k:1").at(priority=-1, queue=None)
    chosen = bound.new_job(1)
    assert (chosen.queue, chosen.priority, chosen.delay_s, chosen.unique_key) == ("mail", -1, 3600.0, "k:1")
    assert work.new_job(1) == plain
    with pytest.raises(InvalidJob, match="priority"):
        work.at(priority=1000).new_job(1)
    with pytest.raises(TypeError, match="prio"):
        work.at(prio=1).new_job(1)  # type: ignore[call-arg]


def test_a_job_outside_a_worker_can_be_given_to_a_handler() -> None:
    job = Job(id=1, kind="k")
    job.raise_if_cancelled()
    with pytest.raises(RuntimeError, match="outside a worker"):
        job.transaction()


def test_a_cancelled_job_leaves_the_handler_past_its_except_clauses() -> None:
    class Told:
        def cancelled(self) -> bool:
            return True

        def transaction(self) -> Any:
            raise AssertionError

        def progress(self, share: float, note: str | None) -> None:
            raise AssertionError

        def set_result(self, value: object) -> None:
            raise AssertionError

    job = Job(id=1, kind="k", services=Told())
    with pytest.raises(asyncio.CancelledError, match="job 1 was told to stop"):
        try:
            job.raise_if_cancelled()
        except Exception:
            pytest.fail("an except clause of the handler caught it")
