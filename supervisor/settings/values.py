"""How settings' texts become values, and what this machine gives for those that are not set.

Always true: a text that cannot be used is a ValueError that says so in words for whoever wrote it.

Elsewhere: which setting is read how (fields.py).
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from supervisor.errors import InvalidJob
from supervisor.payload import check_name

ALL_QUEUES: Final = "*"


class QueueWeight(NamedTuple):
    """A queue a worker takes from; of two with due jobs, one with twice the weight is asked first twice as often."""

    name: str
    weight: int


_NUMBER: Final = re.compile(r"[+-]?[0-9]*\.?[0-9]+", re.ASCII)


def parse_queues(text: str) -> tuple[QueueWeight, ...]:
    """`critical*4,default*2,bulk` as names with weights; `*` stands for all queues not named."""
    found: list[QueueWeight] = []
    for part in (part.strip() for part in text.split(",")):
        name, star, digits = part.rpartition("*")
        if not (star and name and _NUMBER.fullmatch(digits)):
            name, digits = part, "1"
        try:
            check_name("queue", name)
        except InvalidJob as refused:
            raise ValueError(f"a queue's name {refused.reason}") from None
        if not (digits.isdigit() and 1 <= int(digits) <= 1000):
            raise ValueError(f"queue {name!r} has weight {digits}; weights are whole numbers, 1 to 1000")
        if any(name == other.name for other in found):
            raise ValueError(f"queue {name!r} is named twice")
        found.append(QueueWeight(name, int(digits)))
    return tuple(found)


def read_names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def parse_topics(text: str) -> tuple[tuple[str, str], ...]:
    """`orders.created=order.created,payments.*=payment`: topics as the broker knows them, and their jobs' kinds."""
    found: list[tuple[str, str]] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        topic, equals, kind = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"{topic!r} has no kind: write topic=kind, as in orders.created=order.created")
        try:
            check_name("topic", topic, 255)
            check_name("kind", kind)
        except InvalidJob as refused:
            raise ValueError(f"in {part!r} the {refused.field} {refused.reason}") from None
        if any(topic == other for other, _ in found):
            raise ValueError(f"topic {topic!r} is named twice")
        found.append((topic, kind))
    return tuple(found)


def read_port(value: object) -> object:
    word = str(value).strip().lower()
    if word.startswith("tcp://"):
        raise ValueError(
            "was set by Kubernetes for a Service of that name: set enableServiceLinks: false, or rename the Service"
        )
    return None if word in {"", "0", "off", "none"} else 0 if word == "auto" else value


def is_loopback(host: str) -> bool:
    """Whether a server bound to *host* is reached from this machine alone."""
    name = host.strip().strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def runtime_dir() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "supervisor" if base else Path(tempfile.gettempdir()) / f"supervisor-{os.getuid()}"


def usable_cpus() -> int:
    """Processors this process may use: its affinity mask, and the quota of its container, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2 here, or no quota ("max")
        return count
