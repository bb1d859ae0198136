"""Handlers with cron entries; what they are called is chosen by the test.

CRON_ENTRIES is JSON: a list of kinds, each with its entries as arguments of Cron. What runs writes its tick to
`effects`.
"""

import json
import os

from supervisor import Cron, Job, handler
from tests.support.handlers import record


def _declare(kind: str, entries: list[dict[str, object]]) -> None:
    @handler(kind, cron=[Cron(str(one.pop("cron")), **one) for one in entries])  # type: ignore[arg-type]
    async def tell(job: Job) -> None:
        record(job, f"{job.headers.get('schedule')} {job.headers.get('tick')}")

    tell.fn.__qualname__ = f"tell_{kind}"


for _kind, _entries in json.loads(os.environ["CRON_ENTRIES"]).items():
    _declare(_kind, _entries)
