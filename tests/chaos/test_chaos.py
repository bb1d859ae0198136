"""The short form of the chaos run, for every check; `make chaos` is the long one.

Seeded, so that the faults of a failure can be had again; CHAOS_SEED and CHAOS_SECONDS change it.
"""

import os

import pytest

from tests.chaos.run import run


@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_wrongly_charged_under_faults() -> None:
    """DESIGN section 1, all promises at once, while everything around the service fails."""
    report = run(
        seed=int(os.environ.get("CHAOS_SEED", "20")), seconds=float(os.environ.get("CHAOS_SECONDS", "60")), pause_s=0.5
    )
    print(report.text())
    assert report.verdict.clean, f"{report.text()}\n{report.log_tail}"
    assert len(report.kinds()) >= 8, report.text()
    assert report.verdict.jobs > 1000
    assert min(report.verdict.keys[name] for name in ("ordered", "limited", "paced", "children")) > 10, report.text()
