"""Against forged forms: an order is taken only from a form of ours.

    page    sets a random cookie that scripts cannot read; its forms carry the cookie's signature
    order   Origin and Sec-Fetch-Site, where sent, are our own; the signature fits the cookie

Another site can make a browser send the cookie, but can neither read it nor the signature. Programs that send
Authorization: Bearer need none of it: no browser adds that by itself.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

COOKIE: Final = "supervisor_form"
FIELD: Final = "form_token"
_LENGTH: Final = 32


def form_cookie(request: Request) -> str:
    """The request's cookie, or a new one."""
    cookie = request.cookies.get(COOKIE, "")
    return cookie if _sound(cookie) else secrets.token_hex(_LENGTH // 2)


def form_token(key: bytes, cookie: str) -> str:
    """What the forms of a page with that cookie carry."""
    return hmac.new(key, f"form {cookie}".encode(), hashlib.sha256).hexdigest()


def refusal(request: Request, key: bytes, form: Mapping[str, str]) -> str | None:
    """Why a POST is not taken; None when it is one of ours."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return "the order came from another site"
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        return "the order came from another site"
    cookie = request.cookies.get(COOKIE, "")
    if not _sound(cookie):
        return "the order came without the page's cookie: load the page again"
    if not hmac.compare_digest(form.get(FIELD, "").encode(), form_token(key, cookie).encode()):
        return "the page is out of date: load it again"
    return None


def _sound(cookie: str) -> bool:
    return len(cookie) == _LENGTH and all(char in "0123456789abcdef" for char in cookie)
