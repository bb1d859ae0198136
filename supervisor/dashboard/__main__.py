"""The dashboard as a child of the service: `python -m supervisor.dashboard`, started by its parent only.

Its log goes where the parent's goes. Its exit codes are those of the service: 78 when it cannot start as it is set.

Elsewhere: what it is handed, and how it learns that the parent is gone (wire/handed.py).
"""

import sys

import uvloop

from supervisor import exits, log
from supervisor.dashboard import require_packages
from supervisor.errors import SettingsInvalid
from supervisor.settings import Settings
from supervisor.wire.handed import parent_gone, receive


def main() -> int:
    """Serve until told to stop or until the parent is gone; the exit code."""
    settings, url, _ = receive()
    log.configure(settings.log_format, settings.log_level)
    try:
        require_packages()
        uvloop.run(_serve(settings, url))
    except SettingsInvalid as error:
        log.get_logger("dashboard").error("dashboard.refused_settings", reason=str(error))
        log.flush()
        return exits.CONFIG
    log.flush()
    return exits.OK


async def _serve(settings: Settings, url: str) -> None:
    from supervisor.dashboard.serve import serve

    async with parent_gone() as gone:
        await serve(settings, url, until=gone)


if __name__ == "__main__":
    sys.exit(main())
