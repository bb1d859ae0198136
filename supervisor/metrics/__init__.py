"""Counters and gauges of all processes of a service, and the page that shows them.

    files.py     where each process writes its numbers: mapped files, named for its slot
    labels.py    which values a label may have
    numbers.py   the numbers that processes count: one object, its fields are the metrics
    batch.py     many runs added up, then written at once
    facts.py     what the parent knows of the queue and the database: gauges of its memory
    page.py      all files added up, and those facts: what Prometheus reads

Users' metrics take the same way as ours. Everything is described where it is made, and
`python -m supervisor.metrics` writes docs/metrics.md from that.

Elsewhere: serving the page (probes.py); when the facts are asked for (parent/watch.py).
"""

from supervisor.metrics.batch import BatchedCounter, BatchedHistogram
from supervisor.metrics.facts import Facts
from supervisor.metrics.files import (
    FORK_SERVER,
    PARENT,
    clear_gauges,
    make_directory,
    remove_directory,
    setup,
    setup_fork_server,
)
from supervisor.metrics.labels import MAX_LABELS, OTHER, bounded_label, known_labels, register_labels
from supervisor.metrics.numbers import Metrics, metrics
from supervisor.metrics.page import CONTENT_TYPE, render, totals

__all__ = [
    "CONTENT_TYPE",
    "FORK_SERVER",
    "MAX_LABELS",
    "OTHER",
    "PARENT",
    "BatchedCounter",
    "BatchedHistogram",
    "Facts",
    "Metrics",
    "bounded_label",
    "clear_gauges",
    "known_labels",
    "make_directory",
    "metrics",
    "register_labels",
    "remove_directory",
    "render",
    "setup",
    "setup_fork_server",
    "totals",
]
