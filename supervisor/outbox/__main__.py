"""A relay or a consumer as a child of the service: `python -m supervisor.outbox relay`, started by its parent only.

Its log goes where the parent's goes. Its exit codes are those of the service: 78 when it cannot start as it is set.

Elsewhere: what it is handed, and how it learns that the parent is gone (wire/handed.py).
"""

import sys

import uvloop

from supervisor import exits, log, metrics
from supervisor.errors import SupervisorError
from supervisor.outbox import role as roles
from supervisor.settings import Settings
from supervisor.wire.handed import parent_gone, receive


def main() -> int:
    """Work until told to stop or until the parent is gone; the exit code."""
    role = sys.argv[1]
    settings, url, metrics_dir = receive()
    log.configure(settings.log_format, settings.log_level)
    if metrics_dir is not None:
        metrics.setup(metrics_dir, role)
    try:
        code = uvloop.run(_work(role, settings, url))
    except SupervisorError as error:
        log.get_logger(role).error(f"{role}.refused", reason=str(error))
        code = exits.CONFIG
    log.flush()
    return code


async def _work(role: str, settings: Settings, url: str) -> int:
    work = roles.relay if role == "relay" else roles.consume
    async with parent_gone() as gone:
        return await work(settings, url, until=gone)


if __name__ == "__main__":
    sys.exit(main())
