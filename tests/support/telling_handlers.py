"""Kinds that write log lines in every way there is."""

import asyncio
import contextvars
import logging
import sys

import structlog

from supervisor import Retry, handler

standard = logging.getLogger("shop.mail")
structured = structlog.get_logger("shop.mail")
mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="none")


def say(way: str) -> None:
    structured.info("told.structured", way=way, mood=mood.get())
    standard.info("told.standard", extra={"way": way, "mood": mood.get()})


@handler("l.async")
async def tell_async() -> None:
    say("async")
    await asyncio.gather(in_a_task(), asyncio.to_thread(say, "async's thread"))
    structlog.contextvars.bind_contextvars(left_by="l.async")
    mood.set("left by l.async")
    print("printed by a handler", flush=True)
    # In one piece, unlike print(): a line of the log comes from another thread.
    sys.stderr.write("printed to stderr by a handler\n")
    sys.stderr.flush()


async def in_a_task() -> None:
    await asyncio.sleep(0)
    say("async's task")


@handler("l.sync")
def tell_sync() -> None:
    say("sync")
    structlog.contextvars.bind_contextvars(left_by="l.sync")
    mood.set("left by l.sync")


@handler("l.own_id")
async def tell_own_id() -> None:
    structured.info("told.own", job_id="of the shop")


@handler("l.fails")
async def fail() -> None:
    raise Retry(after=0.01, reason="no stamps left")


@handler("l.together")
async def together() -> None:
    say("before")
    await asyncio.sleep(0.2)
    say("after")
