"""An event before it is stored: its topic, key and headers, each checked, and its payload as JSON text.

    publish(conn, topic, {...})  --+--> NewEvent --> one row, or one element of a bulk
    NewEvent(topic, {...})       --'

Always true: a NewEvent that exists can be stored, and its topic and header names are such that the check of a
broker's own rules is all that can still refuse it. The checks never touch the database.

Elsewhere: what JSON and names may be (payload.py); sending it (publisher.py); what brokers refuse (outbox/brokers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from supervisor.errors import InvalidEvent, InvalidJob
from supervisor.payload import EMPTY, JsonText, check_json, check_key, check_name, encode, encode_headers

MAX_TOPIC_BYTES: Final = 255
"""What every broker can take; each has rules of its own besides."""
HEADER_NAME: Final = re.compile(r"(?!(?i:ce-)\Z)[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}")
"""What every broker takes as a header's name, with a prefix of ours: HTTP's token. An attribute's name is not empty."""
HEADER_NAME_RULE: Final = "1 to 100 letters, digits and !#$%&'*+-.^_`|~"


class Published(NamedTuple):
    """The answer to a publish.

    Attributes:
        id: The row's; with a key, events of that key go out in the order of these.
        event_id: The event's own, by which consumers know a duplicate.
    """

    id: int
    event_id: UUID


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One event to be published; checked when made.

    Args:
        topic: Where it goes: a JetStream subject, a routing key, a Kafka topic.
        payload: A mapping, or the JSON text of an object. None is the empty object.
        key: Events of one key go out in the order of their transactions. None: in any order.
        headers: A mapping of names to texts, numbers or booleans, sent along.
        event_id: Given when the caller has one, a UUID; else the database makes it.

    Raises:
        InvalidEvent: with the field that cannot be stored.
    """

    topic: str
    payload: Mapping[str, Any] | str | None = field(default=None, repr=False)
    key: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    event_id: UUID | str | None = field(default=None, kw_only=True)

    #: As stored. Taken once, so that what the caller does to the mapping later changes nothing.
    payload_json: JsonText = field(init=False, repr=False, compare=False)
    headers_json: JsonText = field(init=False, repr=False, compare=False)
    event_id_text: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the dataclass is frozen for everyone else
        try:
            check_name("topic", self.topic, MAX_TOPIC_BYTES)
            if self.key is not None:
                check_key("key", self.key)
            derive(self, "payload_json", _payload_json(self.payload))
            derive(self, "headers_json", encode_headers(self.headers))
        except InvalidJob as refused:
            raise InvalidEvent(refused.field, refused.reason) from None
        for name, value in (self.headers or {}).items():
            _check_header(name, value)
        derive(self, "event_id_text", _uuid_text(self.event_id))

    def with_headers(self, more: Mapping[str, str]) -> NewEvent:
        """This event with *more* headers; as it is when it names one of them itself, or they would not fit."""
        own = {} if self.headers_json == EMPTY else json.loads(self.headers_json)
        if any(name in own for name in more):
            return self
        try:
            merged = encode_headers({**own, **more})
        except InvalidJob:
            return self
        made = copy(self)
        object.__setattr__(made, "headers_json", merged)
        return made

    def element(self) -> str:
        """This event as an element of a bulk's JSON array."""
        parts = [f'"topic":{json.dumps(self.topic)}', f'"payload":{self.payload_json}']
        if self.key is not None:
            parts.append(f'"key":{json.dumps(self.key)}')
        if self.headers_json != EMPTY:
            parts.append(f'"headers":{self.headers_json}')
        if self.event_id_text is not None:
            parts.append(f'"event_id":"{self.event_id_text}"')
        return "{" + ",".join(parts) + "}"


def _payload_json(payload: Mapping[str, Any] | str | None) -> JsonText:
    if payload is None:
        return EMPTY
    return check_json(payload) if isinstance(payload, str) else encode(payload)


def _check_header(name: str, value: object) -> None:
    """Brokers send headers as lines of text or as short fields: no line breaks, and values of one piece."""
    place = f"headers.{name}"
    if not HEADER_NAME.fullmatch(name):
        raise InvalidEvent(place, f"has a name that is not {HEADER_NAME_RULE}")
    if name.lower() in ("ce-id", "ce-specversion"):
        raise InvalidEvent(place, "is set by the relay: give event_id instead")
    if not isinstance(value, str | int | float | bool):
        raise InvalidEvent(place, f"must be text, a number or a boolean, not {type(value).__name__}")
    if isinstance(value, str) and any(char in value for char in "\r\n"):
        raise InvalidEvent(place, "holds a line break")


def _uuid_text(event_id: UUID | str | None) -> str | None:
    if event_id is None:
        return None
    if isinstance(event_id, UUID):
        return str(event_id)
    if not isinstance(event_id, str):
        raise InvalidEvent("event_id", f"must be a UUID, not {type(event_id).__name__}")
    try:
        return str(UUID(event_id))
    except ValueError:
        raise InvalidEvent("event_id", "must be a UUID") from None
