"""Help for the tests of applications: run handlers, look at what was enqueued, run it.

    run(send_welcome, user_id=7)                          no database: how would the service record it?
    assert_enqueued(conn, "email.welcome", {"user_id": 7})
    drain(conn)                                           run what is due, in the caller's transaction

`pytest_plugins = ["supervisor.testing.pytest"]` adds fixtures with a PostgreSQL that comes with the package.

Always true: what is run goes through the codec, the outcomes and the retry rules of the service. Nothing here
commits: with the caller's rollback everything is gone.

Elsewhere: what a run is (perform.py), what `run` foretells (foretell.py), the statements (supervisor/db/trial.py);
for users, docs/testing.md.
"""

from supervisor.testing.drained import drain
from supervisor.testing.enqueued import EnqueuedJob, assert_enqueued
from supervisor.testing.foretell import run, run_async, run_job, run_job_async
from supervisor.testing.ran import Ran

__all__ = [
    "EnqueuedJob",
    "Ran",
    "assert_enqueued",
    "drain",
    "run",
    "run_async",
    "run_job",
    "run_job_async",
]
