"""What may be stored in a job: its payload and headers as JSON text, and its names.

Everything is checked here, before a statement is sent, because the database
would answer with an error that aborts the caller's transaction. What passes is
stored and read back equal; what does not is named by its path:

    payload.items[3].name: holds a NUL character, which PostgreSQL cannot store

Always true: a `JsonText` is the text of a JSON object that PostgreSQL takes as
jsonb; no error of this room quotes a value.

Elsewhere: a handler's typed parameters (signature.py); all options of a job (newjob.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from pydantic_core import to_json

from supervisor.errors import InvalidJob

MAX_DEPTH: Final = 128
MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
MAX_HEADERS_BYTES: Final = 64 * 1024
MAX_NAME_BYTES: Final = 128
MAX_KEY_BYTES: Final = 1024

#: JSON knows numbers of any length; beyond this the database or a reader gives up.
_MAX_INT_BITS: Final = 4096
SIMPLE_INT_BITS: Final = 64

#: From here on every float is a whole number.
_FLOAT_IS_INTEGER: Final = 2.0**53


class JsonText(str):
    """JSON text of an object, made and checked by `encode`: safe to send as it is."""

    __slots__ = ()


class _Refused(Exception):
    """A value cannot be stored; the path is gathered on the way up."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path: list[str] = []


def encode(payload: Mapping[str, Any], *, field: str = "payload", max_bytes: int = MAX_PAYLOAD_BYTES) -> JsonText:
    """JSON text of *payload*, which PostgreSQL will take and give back equal.

    Dates, times, UUIDs, decimals and enums become what pydantic writes for them
    (ISO text, text, text, the enum's value). Tuples become arrays.

    Raises:
        InvalidJob: with the path of what cannot be stored: NUL or lone surrogates in a text or key,
            NaN or infinity, keys that are no text, types JSON does not know, more than 128 levels,
            more than *max_bytes* encoded.
    """
    if not isinstance(payload, Mapping):
        raise InvalidJob(field, f"must be a mapping of names to values, not {type(payload).__name__}")
    return encode_value(payload, field=field, max_bytes=max_bytes)


def encode_value(value: Any, *, field: str, max_bytes: int) -> JsonText:
    """As `encode`, for any value that JSON knows and not only for a mapping."""
    if type(value) is not dict or not _is_simple(value):
        try:
            value = _plain(value, 1)
        except _Refused as refused:
            raise InvalidJob(field + "".join(reversed(refused.path)), refused.reason) from None
    data = to_json(value)
    if len(data) > max_bytes:
        problem = f"is {len(data)} bytes encoded, the limit is {max_bytes}: store it elsewhere, pass its name"
        raise InvalidJob(field, problem)
    return JsonText(data, "utf-8")


def encode_flat(payload: dict[str, Any], types: Mapping[str, Collection[type]]) -> JsonText | None:
    """As `encode`, where each value is of one of the *types* of its name: texts, numbers, booleans and None.

    None when one is not, or needs a closer look. Bulks live on this: each value is looked at once.
    """
    for name, item in payload.items():
        kind = type(item)
        if kind not in types.get(name, ()):
            return None
        if kind is str:
            if "\x00" in item:
                return None
        elif kind is int and item.bit_length() > SIMPLE_INT_BITS:
            return None
    try:
        data = to_json(payload)
    except ValueError:  # a lone surrogate
        return None
    return JsonText(data, "utf-8") if len(data) <= MAX_PAYLOAD_BYTES else None


def encode_headers(headers: Mapping[str, Any] | None) -> JsonText:
    """JSON text of *headers* (none: an empty object); as `encode`, 64 KiB at most."""
    return EMPTY if headers is None else encode(headers, field="headers", max_bytes=MAX_HEADERS_BYTES)


def check_json(text: str, *, field: str = "payload", max_bytes: int = MAX_PAYLOAD_BYTES) -> JsonText:
    """*text* that came from somewhere else, parsed and written anew; a JsonText passes as it is."""
    if isinstance(text, JsonText):
        return text
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidJob(field, f"is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidJob(field, f"is not JSON text{place}") from None
    if not isinstance(value, dict):
        raise InvalidJob(field, "must be the JSON text of an object")
    return encode(value, field=field, max_bytes=max_bytes)


def check_text(field: str, value: object, *, max_bytes: int) -> str:
    """*value* as a text of 1 to *max_bytes* bytes that PostgreSQL can store."""
    if not isinstance(value, str):
        raise InvalidJob(field, f"must be text, not {type(value).__name__}")
    if not value:
        raise InvalidJob(field, "must not be empty")
    problem = _text_problem(value)
    if problem is not None:
        raise InvalidJob(field, problem)
    size = len(value.encode())
    if size > max_bytes:
        raise InvalidJob(field, f"is {size} bytes long, the limit is {max_bytes}")
    return value


def check_name(field: str, value: object, max_bytes: int = MAX_NAME_BYTES) -> str:
    """*value* as the name of a kind or a queue: any text of one line without spaces around it."""
    return _checked_name(field, value, max_bytes) if type(value) is str else _check_name(field, value, max_bytes)


def _check_name(field: str, value: object, max_bytes: int) -> str:
    name = check_text(field, value, max_bytes=max_bytes)
    if any(ord(char) < 32 or 127 <= ord(char) < 160 or char in "\u2028\u2029" for char in name):
        raise InvalidJob(field, "must not hold control characters or line breaks")
    if name != name.strip():
        raise InvalidJob(field, "must not begin or end with a space")
    return name


_checked_name = lru_cache(1024)(_check_name)  # names are few, and each job has two


def check_key(field: str, value: object, max_bytes: int = MAX_KEY_BYTES) -> str:
    """*value* as a unique key: any text PostgreSQL can store."""
    return check_text(field, value, max_bytes=max_bytes)


def _text_problem(text: str) -> str | None:
    if "\x00" in text:
        return "holds a NUL character, which PostgreSQL cannot store"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds a lone surrogate, which is not a character"
    return None


def _is_simple(value: dict[Any, Any]) -> bool:
    """Whether *value* is its own plain form at first sight, as most payloads are: texts, numbers, nothing nested."""
    for key, item in value.items():
        if type(key) is not str or not key.isascii() or "\x00" in key:
            return False
        kind = type(item)
        if kind is str:
            if not item.isascii() or "\x00" in item:
                return False
        elif kind is int:
            if item.bit_length() > SIMPLE_INT_BITS:
                return False
        elif kind is not bool and item is not None:
            return False
    return True


def _plain(value: Any, depth: int) -> Any:
    """*value* in terms of dict, list, str, int, float, bool and None; `_Refused` when that cannot be."""
    kind = type(value)
    if kind is str:
        problem = _text_problem(value)
        if problem is not None:
            raise _Refused(problem)
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if value.bit_length() > _MAX_INT_BITS:
            raise _Refused(f"is a number of more than {_MAX_INT_BITS} bits")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _Refused("is not a finite number, which JSON does not know")
        # jsonb keeps 1e23 as 10^23 and gives back an integer that is not the same number.
        return int(value) if abs(value) >= _FLOAT_IS_INTEGER else value
    if isinstance(value, Mapping):
        _check_depth(depth)
        return {_plain_key(key): _under(f".{key}", item, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        _check_depth(depth)
        return [_under(index, item, depth) for index, item in enumerate(value)]
    return _plain_other(value, depth)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(f"is nested deeper than {MAX_DEPTH} levels")


def _under(step: str | int, item: Any, depth: int) -> Any:
    try:
        return _plain(item, depth + 1)
    except _Refused as refused:
        refused.path.append(step if isinstance(step, str) else f"[{step}]")
        raise


def _plain_key(key: Any) -> str:
    if not isinstance(key, str):
        raise _Refused(f"has a key of type {type(key).__name__}; keys must be text")
    problem = _text_problem(key)
    if problem is not None:
        raise _Refused(f"has a key that {problem}")
    return str.__str__(key)  # a subclass, an enum say, may print itself in any way


def _plain_other(value: Any, depth: int) -> Any:
    """Enums, subclasses of the plain types, and the leaf types that have one usual text."""
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    for base in (str, int, float):
        if isinstance(value, base):
            # The base's own conversion: a subclass may print itself in any way.
            return _plain(base.__str__(value) if base is str else base(value), depth)
    if isinstance(value, Decimal) and not value.is_finite():
        raise _Refused("is not a finite number, which JSON does not know")
    if isinstance(value, datetime | date | time | timedelta | UUID | Decimal):
        from pydantic_core import to_jsonable_python  # only payloads with such values pay for the import

        return to_jsonable_python(value)
    hint = "; encode bytes as text first" if isinstance(value, bytes | bytearray | memoryview) else ""
    raise _Refused(f"is a {type(value).__name__}, which has no JSON form{hint}")


EMPTY: Final = JsonText("{}")
