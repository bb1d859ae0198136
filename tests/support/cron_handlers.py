"""Handlers with cron entries; what they are called is chosen by the test.

CRON_ENTRIES is JSON: a list of kinds, each with its entries as arguments of Cron. What runs writes its tick to
`effects`. CRON_OPTIONS may give kinds options of `handler`, and `runs_s`: these write when they start and end.
"""

import asyncio
import json
import os
from typing import Any

from supervisor import Cron, Job, handler
from tests.support.handlers import record


def _declare(kind: str, entries: list[dict[str, Any]], *, runs_s: float | None = None, **options: Any) -> None:
    @handler(kind, cron=[Cron(str(one.pop("cron")), **one) for one in entries], **options)
    async def tell(job: Job) -> None:
        if runs_s is None:
            record(job, f"{job.headers.get('schedule')} {job.headers.get('tick')}")
            return
        record(job, "start")
        await asyncio.sleep(runs_s)
        record(job, "done")

    tell.fn.__qualname__ = f"tell_{kind}"


_options = json.loads(os.environ.get("CRON_OPTIONS", "{}"))
for _kind, _entries in json.loads(os.environ["CRON_ENTRIES"]).items():
    _declare(_kind, _entries, **_options.get(_kind, {}))
