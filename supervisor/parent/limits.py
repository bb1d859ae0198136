"""Limits on workers that cannot mean what they say, told once when the first worker is ready.

`max_rss_mb` counts what a worker has grown by since its birth: data that handlers load at import is shared and
counts for nobody. So a limit is never passed at birth; but all workers may grow to theirs at the same time.
"""

import os
from typing import Final

from supervisor.parent.cgroup import directories
from supervisor.settings import Settings

_MIB: Final = 2**20
_SHORTEST_AGE_S: Final = 10.0


def senseless(settings: Settings, *, birth_rss: int, memory: int) -> list[str]:
    """What is odd about the limits, one sentence each; *birth_rss* and *memory* in bytes."""
    said = []
    if settings.max_rss_mb is not None:
        most = birth_rss + settings.processes * settings.max_rss_mb * _MIB
        if most > memory:
            said.append(
                f"{settings.processes} workers that may each grow by SUPERVISOR_MAX_RSS_MB={settings.max_rss_mb} MiB "
                f"above the {birth_rss // _MIB} MiB they are born with need {most // _MIB} MiB; there are "
                f"{memory // _MIB} MiB: the kernel would kill one before its limit replaces it"
            )
    if settings.max_jobs is not None and settings.max_jobs < settings.concurrency:
        said.append(
            f"SUPERVISOR_MAX_JOBS={settings.max_jobs} is below SUPERVISOR_CONCURRENCY={settings.concurrency}: "
            "each worker is replaced after less than one filling of its slots"
        )
    if settings.max_age_s is not None and settings.max_age_s < _SHORTEST_AGE_S:
        said.append(
            f"SUPERVISOR_MAX_AGE_S={settings.max_age_s:g} is shorter than {_SHORTEST_AGE_S:g} s: "
            "there is hardly a moment in which no worker is being replaced"
        )
    return said


def memory_there_is() -> int:
    """Bytes this service may use: its control group's limit, or the machine's memory."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for place in directories():
        try:
            found = min(found, int((place / "memory.max").read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found
