"""A page's data as HTML or as JSON: the same data, so that the two cannot tell different stories.

Always true: what a template prints is escaped (autoescape is on for all of them, and only spark.py makes markup);
control characters and those that turn the direction of a text around are shown as what they are; JSON leaves as
application/json with < > & as escapes, so that nothing takes it for markup.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from supervisor import wording
from supervisor.dashboard import csrf
from supervisor.dashboard.nav import NAV
from supervisor.dashboard.spark import spark

_TURNING: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says.

    Attributes:
        template: The file that shows it.
        title: Its heading, and the window's.
        data: Plain data, the JSON answer as it is.
        hints: What only the HTML needs.
        refresh_s: After so long it is asked for again while somebody looks; None never.
        status: The answer's status.
    """

    template: str
    title: str
    data: Mapping[str, Any]
    hints: Mapping[str, Any] = field(default_factory=dict)
    refresh_s: float | None = None
    status: int = 200


def wants_json(request: Request) -> bool:
    """Whether the answer is for a program: a path that ends in .json, or an Accept header that prefers it."""
    if request.url.path.endswith(".json"):
        return True
    accept = request.headers.get("accept", "").lower()
    return "application/json" in accept and "text/html" not in accept


def as_json(data: Mapping[str, Any], status: int = 200) -> Response:
    """*data* as a JSON document."""
    text = json.dumps(data, ensure_ascii=False, default=_plain)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    # A lone surrogate cannot be sent; the server never stores one.
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def as_html(request: Request, page: Page, common: Mapping[str, Any], key: bytes) -> Response:
    """*page* as HTML, with the cookie its forms need."""
    cookie = csrf.form_cookie(request)
    root = str(request.scope.get("root_path", "")).rstrip("/")

    def href(path: str, **query: object) -> str:
        given = {name: value for name, value in query.items() if value is not None and value != ""}
        return root + path + (f"?{urlencode(given, doseq=True)}" if given else "")

    text = (
        environment()
        .get_template(page.template)
        .render(
            {
                "href": href,
                "nav": NAV,
                "template": page.template,
                "title": page.title,
                "refresh_s": page.refresh_s,
                "form_field": csrf.FIELD,
                "form_token": csrf.form_token(key, cookie),
                "now": datetime.now(UTC),
                **common,
                **page.data,
                **page.hints,
            }
        )
    )
    response = HTMLResponse(text.encode("utf-8", "replace"), page.status)
    if request.cookies.get(csrf.COOKIE) != cookie:
        set_cookie(request, response, csrf.COOKIE, cookie)
    return response


def set_cookie(request: Request, response: Response, name: str, value: str, max_age: int | None = None) -> None:
    """A cookie that scripts cannot read and other sites cannot make the browser send."""
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path=request.scope.get("root_path", "").rstrip("/") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@cache
def environment() -> Environment:
    """The templates."""
    made = Environment(
        loader=PackageLoader("supervisor.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        ago=wording.ago,
        span=wording.length,
        size=wording.size,
        first_line=wording.first_line,
        pretty=pretty,
        stamp=stamp,
        iso=lambda at: at.astimezone(UTC).isoformat(timespec="milliseconds"),
    )
    made.globals.update(spark=spark, count=wording.count)
    return made


def visible(value: object) -> object:
    """A text with its control and direction-turning characters spelled out; anything else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return "" if value is None else value
    if value.isprintable() and value.isascii():
        return value
    text = "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") else f"\\u{ord(char):04x}"
        for char in value
    )
    return _TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def pretty(value: object) -> str:
    """JSON over several lines."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=2, default=_plain)
    except RecursionError:
        return "(nested too deeply to show)"


def stamp(at: datetime | None) -> str:
    """A point in time, UTC, to the second."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
