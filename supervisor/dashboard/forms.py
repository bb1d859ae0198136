"""Forms as they arrive: small, urlencoded, each field a text."""

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from supervisor.dashboard.problems import Refused

_MOST_BYTES: Final = 64 * 1024
_MOST_FIELDS: Final = 1_000


async def read(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, in order. Raises Refused for one that is not as ours are."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/x-www-form-urlencoded"):
        raise Refused(400, "Send a form: application/x-www-form-urlencoded.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise Refused(400, f"The form is larger than {_MOST_BYTES // 1024} KiB.")
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(400, "The form cannot be read.") from None
