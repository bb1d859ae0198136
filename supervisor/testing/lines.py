"""The caller's connection, of whichever library, as something that runs steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.client import adapter_of
from supervisor.db.plain import Plain

if TYPE_CHECKING:
    from supervisor.adapters import Adapter


def line_of(conn: Any) -> Adapter:
    """What sends statements on *conn*.

    Raises:
        InvalidJob: it is no connection that `enqueue` takes.
    """
    theirs = adapter_of(conn)
    return Plain(conn) if theirs is None else theirs
