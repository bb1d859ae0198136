"""Settings: read once at start, checked whole, never changed.

    command line > SUPERVISOR_X > SUPERVISOR_X_FILE (secrets only) > default

Units are in the names (`_s`: seconds). Every problem is found in one go and told
as a line that names the variable and gives the numbers. Workers get a pickled copy.

    fields.py       what there is to set
    values.py       how a text becomes a value
    environment.py  variables, files with secrets, what is said of those that cannot be used
    model.py        the object: checked together, loaded, shown
    document.py     docs/settings.md, which `python -m supervisor.settings` writes

Always true: nobody changes settings once they are read; no text made here holds a secret.

Elsewhere: reading and hiding addresses (dsn.py).
"""

from supervisor.settings.document import document
from supervisor.settings.environment import variable
from supervisor.settings.fields import PREFETCH, PREFETCH_SHORT
from supervisor.settings.model import Settings, unknown_variables
from supervisor.settings.values import ALL_QUEUES, QueueWeight, is_loopback, parse_queues

__all__ = [
    "ALL_QUEUES",
    "PREFETCH",
    "PREFETCH_SHORT",
    "QueueWeight",
    "Settings",
    "document",
    "is_loopback",
    "parse_queues",
    "unknown_variables",
    "variable",
]
