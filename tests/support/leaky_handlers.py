"""Kinds that say the database's address, password and all, in every way a program does by mistake."""

import logging
import os
import threading
import warnings

import psycopg
import structlog

from supervisor import Cancel, handler

standard = logging.getLogger("shop")
structured = structlog.get_logger("shop")


def address() -> str:
    return os.environ["LEAKED_ADDRESS"]


@handler("k.logs")
def logs() -> None:
    structured.info("leak.structured", address=address(), deep={"list": [address()]})
    standard.warning("leak.standard %s", address(), extra={"address": address()})
    try:
        raise RuntimeError(address())
    except RuntimeError:
        structured.exception("leak.exception")
        standard.exception("leak.standard_exception")
    warnings.warn(address(), stacklevel=1)
    thread = threading.Thread(target=fail_in_thread, name="leak")
    thread.start()
    thread.join()


def fail_in_thread() -> None:
    raise RuntimeError(address())


@handler("k.raises")
async def raises() -> None:
    try:
        raise ValueError(address())
    except ValueError as error:
        raise RuntimeError("x" * 1990 + address()) from error


@handler("k.cancels")
async def cancels() -> None:
    raise Cancel(f"no use: {address()}")


@handler("k.driver")
async def driver() -> None:
    await psycopg.AsyncConnection.connect(address() + " nonsense")
