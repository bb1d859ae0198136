"""An event on its way: what a broker is given, and what a broker may say to it.

As CloudEvents 1.0 in binary mode: the payload is the body, everything else is in headers. Their prefix differs
per broker, so a driver asks for `attributes()` and `extras`.

Always true: the attribute `id` is the event's id, the same each time it is sent.

Elsewhere: from row to Event (db/outbox.py); to whom (brokers/).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from supervisor.newevent import HEADER_NAME, HEADER_NAME_RULE
from supervisor.payload import MAX_HEADERS_BYTES

CONTENT_TYPE: Final = "application/json"
_OURS: Final = "ce-"


@dataclass(slots=True, eq=False)
class Event:
    """One row of the outbox.

    Attributes:
        body: The payload, JSON text in UTF-8.
        headers_json: What the publisher gave, JSON text of an object.
        attempts: How often a broker has refused it.
    """

    id: int
    part: int
    topic: str
    key: str | None
    event_id: str
    body: bytes = field(repr=False)
    headers_json: str = field(repr=False)
    created_at: float
    attempts: int
    _pairs: list[tuple[str, str]] | None = field(default=None, init=False, repr=False)

    def attributes(self, source: str) -> dict[str, str]:
        """The attributes of CloudEvents, by their names; those among the publisher's headers go first.

        Raises:
            EventRefused: a header that some broker does not take, or all of them too long.
        """
        made = {
            "specversion": "1.0",
            "id": self.event_id,
            "type": self.topic,
            "source": source,
            "time": datetime.fromtimestamp(self.created_at, UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": CONTENT_TYPE,
        }
        if self.key is not None:
            made["partitionkey"] = _text(self.key)
        if self.headers_json != "{}":
            for name, value in self._given():
                if name.lower().startswith(_OURS):
                    made[name[len(_OURS) :].lower()] = value
            made["id"], made["specversion"] = self.event_id, "1.0"
        return made

    def extras(self) -> dict[str, str]:
        """The publisher's other headers, trace context among them. Raises as `attributes`."""
        if self.headers_json == "{}":
            return {}
        return {name: value for name, value in self._given() if not name.lower().startswith(_OURS)}

    def _given(self) -> list[tuple[str, str]]:
        """Name and text of each. What plain SQL wrote was checked by nobody, and a broker may hang up over it."""
        if self._pairs is not None:
            return self._pairs
        found: dict[str, object] = json.loads(self.headers_json)
        given = [(name, _text(value)) for name, value in found.items()]
        for name, _ in given:
            if not HEADER_NAME.fullmatch(name):
                raise EventRefused(f"a header's name is not {HEADER_NAME_RULE}: {name[:100]!r}")
        size = sum(len(name) + len(text.encode()) for name, text in given)
        if size > MAX_HEADERS_BYTES:
            raise EventRefused(f"its headers have {size} bytes, more than {MAX_HEADERS_BYTES}")
        self._pairs = given
        return given


def _text(value: object) -> str:
    """A header's value on one line: what plain SQL put in may be anything that JSON knows."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


class EventRefused(Exception):
    """The broker, or its client, will not have this event, whatever happens to others. One line, no payload."""


class BrokerDown(Exception):
    """The broker cannot be reached or has stopped answering: the event may or may not have arrived."""
