"""Background jobs in PostgreSQL: jobs commit with your data, a supervisor runs them.

The public names. Declaring:  handler, Handler, Job, Backoff, Cron; a handler raises Retry, Snooze or Cancel.
Enqueueing:  enqueue, enqueue_many, enqueue_batch, NewJob, Enqueued, EnqueuedBatch, or a handler's own `.enqueue`.
Waiting for what a job returns:  result_of, Results, or the `.result` of an Enqueued.
Events:  publish, publish_many, NewEvent, Published; at the other end inbox.

Everything that declares or enqueues jobs imports this, so it stays light: nothing
of the service (its loop, its logs, its command line) is loaded from here.
"""

from importlib import metadata as _metadata

from supervisor.process1 import obey_early as _obey_early

_obey_early()  # before what takes its time to import


def _refuse_namesake() -> None:
    """Two distributions with the import name `supervisor` overwrite each other's files."""
    try:
        version = _metadata.version("supervisor")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the PyPI package 'supervisor' {version} (the process-control system) is installed in this environment. "
        "It has the same import name as pg-supervisor and overwrites its files: uninstall both "
        "(pip uninstall supervisor pg-supervisor), then install pg-supervisor alone"
    )


_refuse_namesake()

from supervisor import errors  # noqa: E402
from supervisor.backoff import Backoff  # noqa: E402
from supervisor.client import Enqueued, EnqueuedBatch, NewJob, enqueue, enqueue_batch, enqueue_many  # noqa: E402
from supervisor.cron import Cron  # noqa: E402
from supervisor.handler import Handler, Job, handler  # noqa: E402
from supervisor.inbox import inbox  # noqa: E402
from supervisor.orders import cancel_jobs, release_order, retry_jobs  # noqa: E402
from supervisor.outcome import Cancel, Retry, Snooze  # noqa: E402
from supervisor.publisher import NewEvent, Published, publish, publish_many  # noqa: E402
from supervisor.release import VERSION as __version__  # noqa: E402
from supervisor.results import Results, result_of  # noqa: E402

__all__ = [
    "Backoff",
    "Cancel",
    "Cron",
    "Enqueued",
    "EnqueuedBatch",
    "Handler",
    "Job",
    "NewEvent",
    "NewJob",
    "Published",
    "Results",
    "Retry",
    "Snooze",
    "__version__",
    "cancel_jobs",
    "enqueue",
    "enqueue_batch",
    "enqueue_many",
    "errors",
    "handler",
    "inbox",
    "publish",
    "publish_many",
    "release_order",
    "result_of",
    "retry_jobs",
]
