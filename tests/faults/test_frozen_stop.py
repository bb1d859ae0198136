"""A stop while the database is silent ends by the sum that graces are computed from, not when the database likes."""

import time
from collections.abc import Callable

from supervisor import exits
from supervisor.grace import HOOK_START_S, needed_s
from tests.support.database import Database
from tests.support.jobs import enqueue
from tests.support.proxy import Proxy
from tests.support.service import Service


def test_a_stop_with_a_silent_database_keeps_within_the_grace(
    db: Database, proxy: Proxy, service: Callable[..., Service]
) -> None:
    """B07: nobody is killed for a database that neither answers nor hangs up. Here it once took 2.5 s too long."""
    one = service(processes=2, drain_timeout_s=2, lease_s=60, env={"SUPERVISOR_DATABASE_URL": proxy.conninfo})
    enqueue(db, "t.stubborn", {"seconds": 60}, count=2)
    db.wait_for("select count(*)::int from effects where note = 'start'", 2)
    proxy.freeze()
    begun = time.monotonic()
    code = one.stop(deadline_s=needed_s(2))
    assert time.monotonic() - begun < needed_s(2) - HOOK_START_S
    assert code == exits.CUT
