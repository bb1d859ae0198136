"""The webhook example against a real HTTP server on the loopback."""

import base64
import builtins
import hashlib
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from handlers import _addresses, webhook
from handlers.webhook import deliver, retry_after
from supervisor import Cancel, Job, Retry
from supervisor.errors import InvalidJob, PayloadInvalid
from supervisor.outcome import Outcome
from tests.support.receiver import Receiver, status

SECRET = "a key that must not be seen"
CREATED = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("WEBHOOK_SECRET_FILE", "WEBHOOK_QUOTE_ANSWERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8")
    with Receiver() as found:
        yield found


def job(attempt: int = 1) -> Job:
    return Job(id=41, kind="webhook.deliver", attempt=attempt, created_at=CREATED)


async def send(receiver: Receiver, url: str | None = None, **data: Any) -> None:
    await deliver(job(), url or receiver.url, "order.paid", data or {"order": 7})


async def test_delivered_with_a_signature_the_receiver_can_check(receiver: Receiver) -> None:
    await send(receiver, order=7, name="Zoë")
    [(path, headers, body)] = receiver.requests
    assert path == "/hook?token=t0ken"
    assert json.loads(body) == {
        "type": "order.paid",
        "timestamp": CREATED.isoformat(),
        "data": {"order": 7, "name": "Zoë"},
    }
    assert headers["host"] == f"127.0.0.1:{receiver.server.server_port}"
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == headers["idempotency-key"] == "job_41"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 10
    content = b"job_41." + headers["webhook-timestamp"].encode() + b"." + body
    expected = base64.b64encode(hmac.digest(SECRET.encode(), content, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


async def test_every_attempt_has_the_same_key_and_body(receiver: Receiver) -> None:
    for attempt in (1, 2):
        await deliver(job(attempt), receiver.url, "order.paid", {"order": 7})
    first, second = receiver.requests
    assert first[1]["idempotency-key"] == second[1]["idempotency-key"]
    assert first[2] == second[2]


async def test_the_key_may_be_in_a_file_and_in_the_standard_form(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = b"\x00\x01binary key\xff"
    file = tmp_path / "secret"
    file.write_text(f"whsec_{base64.b64encode(key).decode()}\n")
    monkeypatch.setenv("WEBHOOK_SECRET_FILE", str(file))
    await send(receiver)
    [(_, headers, body)] = receiver.requests
    content = b"job_41." + headers["webhook-timestamp"].encode() + b"." + body
    expected = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


async def test_without_a_key_nothing_is_sent(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", " ")
    with pytest.raises(RuntimeError, match="WEBHOOK_SECRET or WEBHOOK_SECRET_FILE"):
        await send(receiver)
    monkeypatch.setenv("WEBHOOK_SECRET", "whsec_not base64 SECRET")
    with pytest.raises(RuntimeError, match="not base64") as caught:
        await send(receiver)
    assert "SECRET" not in str(caught.value)
    assert receiver.requests == []


@pytest.mark.parametrize("code", [408, 409, 423, 425, 429, 500, 502, 503, 504, 302, 307])
async def test_what_may_pass_is_tried_again(receiver: Receiver, code: int) -> None:
    receiver.answer = status(code, {"location": "/elsewhere"})
    with pytest.raises(Retry) as caught:
        await send(receiver)
    assert caught.value.after is None  # the handler's backoff
    assert str(caught.value) == f"127.0.0.1 answered {code}"


@pytest.mark.parametrize(("code", "why"), [(410, "wants no more"), (400, "refused again"), (404, "refused again")])
async def test_what_cannot_pass_is_dead_at_once(receiver: Receiver, code: int, why: str) -> None:
    receiver.answer = status(code)
    with pytest.raises(Cancel, match=why) as caught:
        await send(receiver)
    assert f"127.0.0.1 answered {code}" in str(caught.value)


@pytest.mark.parametrize("code", [301, 308])
async def test_a_redirect_is_not_followed(receiver: Receiver, code: int) -> None:
    receiver.answer = status(code, {"location": "/elsewhere"})
    with pytest.raises(Cancel, match="redirects are not followed"):
        await send(receiver)
    assert len(receiver.requests) == 1


async def test_retry_after_in_seconds_sets_the_next_attempt(receiver: Receiver) -> None:
    receiver.answer = status(429, {"retry-after": "120"})
    with pytest.raises(Retry) as caught:
        await send(receiver)
    assert caught.value.after == 120


async def test_retry_after_as_a_date_is_by_the_receivers_clock(receiver: Receiver) -> None:
    """A receiver whose clock is a day ahead must not cost a day."""
    theirs = datetime.now(UTC) + timedelta(days=1)

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response_only(503)
        to.send_header("date", format_datetime(theirs, usegmt=True))
        to.send_header("retry-after", format_datetime(theirs + timedelta(seconds=90), usegmt=True))
        to.send_header("content-length", "0")
        to.end_headers()

    receiver.answer = answer
    with pytest.raises(Retry) as caught:
        await send(receiver)
    assert caught.value.after == 90


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("²", None),
        ("0", 1.0),
        (" 7 ", 7.0),
        ("9" * 400, 86_400.0),
        ("Sun, 29 Nov 2026 12:01:00 GMT", 60.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 1.0),
        ("Fri, 29 Nov 2999 12:00:00 GMT", 86_400.0),
        ("Sunday, 29-Nov-26 12:01:00 GMT", 60.0),
        ("Sun, 99 Nov 2026 12:01:00 GMT", None),
    ],
)
def test_retry_after_values(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, "Sun, 29 Nov 2026 12:00:00 GMT") == seconds


async def test_silence_ends_in_time(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "READ_S", 0.05)
    released = threading.Event()
    receiver.answer = lambda to: released.wait(10)
    try:
        with pytest.raises(Retry, match=r"did not answer within 0\.05 s"):
            await send(receiver)
    finally:
        released.set()


async def test_an_answer_that_drips_ends_in_time(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is in time for the read timeout; all of them together are not."""
    monkeypatch.setattr(webhook, "TOTAL_S", 0.3)
    stop = threading.Event()

    def drip(to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not stop.wait(0.02):
            to.wfile.write(b"x")

    receiver.answer = drip
    began = time.monotonic()
    try:
        with pytest.raises(Retry, match=r"not answered in full after 0\.3 s"):
            await send(receiver)
        assert time.monotonic() - began < 5
    finally:
        stop.set()


async def test_no_more_of_an_answer_is_read_than_its_limit(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_QUOTE_ANSWERS", "1")
    stop = threading.Event()
    sent = 0

    def flood(to: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        to.wfile.write(b"HTTP/1.1 400 No\r\n\r\nbad \x1b[31m signature\n")
        try:
            while not stop.is_set():
                sent += to.connection.send(b"x" * 65536)
        except OSError:
            stop.set()

    receiver.answer = flood
    with pytest.raises(Cancel, match=r"answered 400 \(bad \?\[31m signature x+\)") as caught:
        await send(receiver)
    assert len(str(caught.value)) < 400
    assert stop.wait(10), "the connection was not closed"
    assert sent < 64 * 2**20


async def test_a_closed_port_is_tried_again(receiver: Receiver) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening
        with pytest.raises(Retry, match=r"127\.0\.0\.1 could not be reached"):
            await send(receiver, f"http://127.0.0.1:{closed.getsockname()[1]}/")


async def test_a_broken_answer_is_tried_again(receiver: Receiver) -> None:
    receiver.answer = lambda to: to.wfile.write(b"no http at all\r\n\r\n")
    with pytest.raises(Retry, match="broke off: RemoteProtocolError"):
        await send(receiver)


@pytest.mark.parametrize("answer", [status(400, body=b"echo: order 7 t0ken"), status(500, {"x": SECRET})])
async def test_errors_hold_neither_secret_nor_payload_nor_the_url(
    receiver: Receiver, answer: Callable[[Any], None]
) -> None:
    receiver.answer = answer
    with pytest.raises((Retry, Cancel)) as caught:
        await send(receiver, card="4111-1111")
    error = str(Outcome.from_exception(caught.value).error)
    for hidden in (SECRET, "t0ken", "4111", "echo"):
        assert hidden not in error


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://example.com/", "url_not_http"),
        ("file:///etc/passwd", "url_not_http"),
        ("//example.com", "url_not_http"),
        ("https://user:hunter2@example.com/", "url_with_credentials"),
        ("https://user@example.com/", "url_with_credentials"),
        ("http://", "url_unreadable"),
        ("http://[::1/", "url_unreadable"),
        ("http://example.com:99999/", "url_unreadable"),
        ("http://example.com/\r\nX: y", "url_unreadable"),
        ("http://exa mple.com/", "url_unreadable"),
        ("http://example.com\\@other.com/", "url_with_credentials"),
        ("http://example.com\\other.com/", "url_unreadable"),
    ],
)
def test_a_bad_url_is_refused_when_enqueued_and_when_run(url: str, problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem) as caught:
        deliver.encode(url=url, event="e", data={})
    assert caught.value.field == "payload.url"
    assert "hunter2" not in str(caught.value)
    with pytest.raises(PayloadInvalid, match=problem) as refused:
        deliver.bind(json.dumps({"url": url, "event": "e", "data": {}}), job())
    assert "hunter2" not in str(refused.value)


async def test_private_addresses_are_refused_unless_allowed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBHOOK_ALLOW_NETWORKS")
    for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "2130706433"):
        with pytest.raises(Cancel, match="WEBHOOK_ALLOW_NETWORKS"):
            await send(receiver, f"http://{host}:{receiver.server.server_port}/")
    assert receiver.requests == []
    monkeypatch.setenv("WEBHOOK_ALLOW_NETWORKS", "10.0.0.0/8, 127.0.0.0/8 ::1/128")
    await send(receiver, f"http://127.0.0.1:{receiver.server.server_port}/")
    assert len(receiver.requests) == 1


async def test_a_name_with_one_private_address_is_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBHOOK_ALLOW_NETWORKS")
    resolve_to(monkeypatch, "93.184.215.14", "10.0.0.1")
    with pytest.raises(Cancel, match=r"hook\.example has an address that is not public"):
        await send(receiver, f"http://hook.example:{receiver.server.server_port}/")


async def test_the_checked_address_is_the_one_connected_to(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to something else at the second question changes nothing."""
    asked = resolve_to(monkeypatch, "127.0.0.1")
    await send(receiver, f"http://hook.example:{receiver.server.server_port}/x")
    [(path, headers, _)] = receiver.requests
    assert (path, headers["host"]) == ("/x", f"hook.example:{receiver.server.server_port}")
    assert asked == ["hook.example"]


async def test_the_next_address_is_tried_when_one_does_not_answer(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")  # the receiver listens on the second only
    await send(receiver, f"http://hook.example:{receiver.server.server_port}/")
    assert len(receiver.requests) == 1


async def test_a_name_without_address_is_tried_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch)
    with pytest.raises(Retry, match=r"hook\.example has no address now"):
        await send(receiver, "http://hook.example/")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("2606:4700::1111", True),
        ("fc00::1", False),
        ("fe80::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:a00:1::", False),
        ("2001:0:a00:1:0:0:f5ff:fffe", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert _addresses.may_reach(ipaddress.ip_address(address), []) is public


async def test_without_httpx_the_job_says_what_to_install(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "httpx":
            raise ModuleNotFoundError("No module named 'httpx'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RuntimeError, match=r"pip install 'pg-supervisor\[webhook\]'"):
        await send(receiver)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let the loop's resolver give *addresses*; the list of names it was asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    class Loop:
        getaddrinfo = staticmethod(resolve)

    class Asyncio:
        get_running_loop = staticmethod(Loop)

    monkeypatch.setattr(_addresses, "asyncio", Asyncio)
    return asked
