"""Deliver an event to a URL, signed, so that the receiver can trust it and tell a repetition.

    await deliver.enqueue(conn, url="https://example.com/hook", event="order.paid", data={"order": 7})

Headers and signature are those of Standard Webhooks (standardwebhooks.com), for which receivers find ready
libraries: webhook-id, webhook-timestamp, webhook-signature = "v1," + base64(HMAC-SHA256(secret,
"{id}.{timestamp}.{body}")). The id, sent as idempotency-key too, is made of the job's id: every attempt of a job has
the same one, and the same body.

    2xx                           done
    408 409 423 425 429, 5xx      another attempt, when Retry-After says so or after the backoff
    302 303 307, no answer        another attempt
    410, other 3xx and 4xx        dead at once: no attempt can help

Settings, from the environment:
    WEBHOOK_SECRET    the key; "whsec_..." is decoded from base64, others are taken as they are.
                      WEBHOOK_SECRET_FILE names a file that holds it
    WEBHOOK_ALLOW_NETWORKS=10.0.0.0/8,127.0.0.0/8
                      networks that may be reached though they are not public; none by default
    WEBHOOK_QUOTE_ANSWERS=1
                      put the start of a refusal's text into the job's error. Off by default: a receiver
                      may echo the event, and errors should hold no payload

Always true: the secret is in no payload, error or log. A URL with a user or password is refused when it is
enqueued. The address that was checked is the one that is connected to: a name that resolves to something else
a moment later changes nothing. No redirect is followed, no more than ANSWER_BYTES are read, and an attempt ends within
TOTAL_S.

Needs httpx: pip install 'pg-supervisor[webhook]'. Without it only this kind fails, and says so.

Elsewhere: which addresses may be reached (_addresses.py).
"""

import asyncio
import base64
import binascii
import contextlib
import functools
import hashlib
import hmac
import json
import os
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from handlers._addresses import Address, Refused, resolve
from supervisor import Backoff, Cancel, Job, Retry, handler

with contextlib.suppress(ImportError):  # said when it is needed
    import httpx  # here, so that the workers share it and the first delivery does not wait for it

CONNECT_S: Final = 5.0
READ_S: Final = 10.0
TOTAL_S: Final = 20.0
ANSWER_BYTES: Final = 16_384
QUOTED_CHARS: Final = 200
RETRY_AFTER_S: Final = (1.0, 86_400.0)
"""Retry-After is followed within these bounds: not at once, and not in a year."""

TRY_AGAIN: Final = frozenset({302, 303, 307, 408, 409, 423, 425, 429})


def check_url(url: str) -> str:
    """*url* if it may be stored and called; the error's type says what is wrong, and never quotes it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise PydanticCustomError("url_unreadable", "the URL cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise PydanticCustomError("url_not_http", "the URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise PydanticCustomError("url_with_credentials", "the URL must not hold a user or password")
    if not host or any(c <= " " or c in "\\\x7f" for c in url):
        raise PydanticCustomError("url_unreadable", "the URL has no host, or spaces or control characters in it")
    return url


HookUrl = Annotated[str, AfterValidator(check_url)]


@handler("webhook.deliver", queue="webhooks", max_attempts=12, timeout=TOTAL_S + 10, backoff=Backoff(base=5, cap=3600))
async def deliver(job: Job, url: HookUrl, event: str, data: dict[str, Any]) -> None:
    """Send *event* with *data* to *url*."""
    try:
        async with asyncio.timeout(TOTAL_S):
            await _deliver(job, url, event, data)
    except TimeoutError:
        raise Retry(reason=f"{_host(url)} had not answered in full after {TOTAL_S:g} s") from None


async def _deliver(job: Job, url: str, event: str, data: dict[str, Any]) -> None:
    httpx = _httpx()
    try:
        target = httpx.URL(url)
    except httpx.InvalidURL:
        raise Cancel("the URL cannot be read") from None
    if target.userinfo or target.scheme not in ("http", "https"):
        raise Cancel("the URL is not plain http or https")
    body = json.dumps(
        {"type": event, "timestamp": job.created_at and job.created_at.isoformat(), "data": data},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()
    headers = {
        "host": target.netloc.decode("ascii"),
        "content-type": "application/json",
        "user-agent": "pg-supervisor-webhook/1",
        "accept-encoding": "identity",  # what is read is then what was sent: no small answer unpacks to a large one
        **signed(f"job_{job.id}", int(time.time()), body, secret()),
    }
    try:
        addresses = await resolve(target.host, target.port or (443 if target.scheme == "https" else 80))
    except Refused as error:
        raise Cancel(str(error)) from None
    except OSError:
        raise Retry(reason=f"{target.host} has no address now") from None
    for address in addresses:
        try:
            async with _post(target, address, headers, body) as response:
                await _judge(response, target.host)
            return
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if address is addresses[-1]:
                raise Retry(
                    reason=f"{target.host} could not be reached: {str(error)[:200] or type(error).__name__}"
                ) from None
        except httpx.TimeoutException:
            raise Retry(reason=f"{target.host} did not answer within {READ_S:g} s") from None
        except httpx.HTTPError as error:
            raise Retry(reason=f"{target.host} broke off: {type(error).__name__}") from None


@contextlib.asynccontextmanager
async def _post(
    target: "httpx.URL", address: Address, headers: dict[str, str], body: bytes
) -> "AsyncIterator[httpx.Response]":
    """Post to *address*, in the name of *target*'s host: in its Host header and, with TLS, its certificate."""
    httpx = _httpx()
    # One connection per delivery. A shared pool would be keyed by address, and so lend a connection whose certificate
    # was checked for one host to another host at the same address. The costly part, the TLS context, is shared.
    async with (
        httpx.AsyncClient(
            verify=_tls(),
            trust_env=False,  # a proxy would look the name up again, past our check
            follow_redirects=False,
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
        ) as client,
        client.stream(
            "POST",
            target.copy_with(host=str(address)),
            headers=headers,
            content=body,
            extensions={"sni_hostname": target.raw_host.decode("ascii")},
        ) as response,
    ):
        yield response


async def _judge(response: "httpx.Response", host: str) -> None:
    """Return if the answer means delivered; else raise what it means for the job."""
    status = response.status_code
    if 200 <= status < 300:
        return
    said = f"{host} answered {status}{await _quote(response)}"
    if status >= 500 or status in TRY_AGAIN:
        raise Retry(retry_after(response.headers.get("retry-after"), response.headers.get("date")), said)
    if status == 410:
        raise Cancel(f"{said}: it wants no more of these; remove the subscription")
    if 300 <= status < 400:
        raise Cancel(f"{said}: redirects are not followed; enqueue with the new URL")
    raise Cancel(f"{said}: the same request would be refused again")


async def _quote(response: "httpx.Response") -> str:
    """The start of the answer's text, if errors may hold it."""
    if os.environ.get("WEBHOOK_QUOTE_ANSWERS") != "1":
        return ""
    read = bytearray()
    with contextlib.suppress(_httpx().HTTPError):  # the status is what counts
        async for chunk in response.aiter_raw():
            read += chunk
            if len(read) >= ANSWER_BYTES:
                break
    text = " ".join(read[:ANSWER_BYTES].decode(errors="replace").split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f" ({text[:QUOTED_CHARS]})" if text else ""


# -- signature ------------------------------------------------------------------------------


def signed(message_id: str, timestamp: int, body: bytes, key: bytes) -> dict[str, str]:
    """The headers that name and sign a message."""
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
        "idempotency-key": message_id,
    }


def secret() -> bytes:
    """The signing key. Read at each delivery: a replaced file counts from the next one on."""
    file = os.environ.get("WEBHOOK_SECRET_FILE")
    try:
        text = Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get("WEBHOOK_SECRET", "").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(f"WEBHOOK_SECRET_FILE={file} cannot be read: {type(error).__name__}") from None
    if not text:
        raise RuntimeError("no signing key: set WEBHOOK_SECRET or WEBHOOK_SECRET_FILE where the workers run")
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise RuntimeError("the signing key begins with whsec_ but is not base64 after it") from None


# -- Retry-After ----------------------------------------------------------------------------


def retry_after(value: str | None, date: str | None = None) -> float | None:
    """Seconds to wait, from Retry-After in seconds or as an HTTP date; None if there is none that makes sense.

    Args:
        date: The answer's Date header. A date to wait for is by the receiver's clock, so it is compared with
            this rather than with ours.
    """
    if value is None:
        return None
    value = value.strip()
    least, most = RETRY_AFTER_S
    if value.isascii() and value.isdecimal():
        seconds = float(value[:12])
    else:
        until = _http_date(value)
        if until is None:
            return None
        seconds = (until - (_http_date(date or "") or datetime.now(UTC))).total_seconds()
    return min(max(seconds, least), most)


def _http_date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# -- small things ---------------------------------------------------------------------------


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise RuntimeError("webhooks need httpx: pip install 'pg-supervisor[webhook]' where the workers run") from None
    return httpx


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _host(url: str) -> str:
    return urlsplit(url).hostname or "?"
