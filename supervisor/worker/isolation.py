"""Runs suspects alone: jobs that shared a dying worker with others, of which nobody knows which one killed it.

    parent says Isolate --> quiet (backlog back, wait for what runs) --> one suspect after the other, each
    alone, for about a second --> ordinary work goes on --> Isolated

Always true: while a suspect runs nothing else does in this process, so a death names its culprit. A worker
that does not become quiet in time goes on as if nothing had been asked.

Elsewhere: who is asked, and how often (parent/isolation.py); the lane they wait in (db/functions/060_settle.sql).
"""

import time
from typing import Final

from supervisor.wire.messages import Isolated
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor

_SPELL_S: Final = 1.0


async def isolate(executor: Executor, exchange: Exchange, patience_s: float) -> Isolated:
    """Run suspects alone for a spell; what came of it."""
    ran = 0
    try:
        quiet = await executor.quiet(patience_s)
        until = time.monotonic() + _SPELL_S
        while quiet and await exchange.claim_suspect():
            await executor.ended()
            ran += 1
            if time.monotonic() >= until:
                break
    finally:
        executor.resume()
        exchange.wake()
    return Isolated(quiet, ran)
