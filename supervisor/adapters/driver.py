"""What drivers under a library say of their connection: psycopg, psycopg2, asyncpg."""

from __future__ import annotations

from typing import Any, Final

_IDLE: Final = 0  # libpq's PQTRANS_IDLE


def in_transaction(driver: Any) -> bool:
    """Whether a transaction is open on the *driver*'s connection, whoever has opened it."""
    info = getattr(driver, "info", None)
    if info is not None:
        return int(info.transaction_status) != _IDLE
    asks = getattr(driver, "is_in_transaction", None)
    return bool(asks()) if asks is not None else False
