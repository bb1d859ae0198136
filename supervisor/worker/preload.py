"""What the fork server imports before it forks the first worker.

Workers share these modules' memory, and each new one starts in milliseconds. A handlers module that
does not import must stop the service with its traceback, so the failure is kept here and raised in
the worker, which can report it; Python's fork server would swallow it or die.

Always true: importing this module never raises, and leaves no thread behind that it started itself.
"""

import contextlib
import gc
import importlib
import json
import os
import signal

import supervisor.worker.main  # noqa: F401  (the point of preloading)
from supervisor import metrics
from supervisor.db import statements
from supervisor.errors import HandlersFailed
from supervisor.worker.preload_names import LIBRARIES_VARIABLE, METRICS_VARIABLE, MODULES_VARIABLE, PATH_VARIABLE
from supervisor.worker.registry import import_handlers

# A signal to the whole process group (systemd, a shell, a terminal that closes) is the parent's business;
# workers set their own handlers. Dying of it here would make every worker look dead.
for _number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(_number, signal.SIG_IGN)

statements.texts()  # workers find them in memory, whatever has become of files and descriptors
failure: HandlersFailed | None = None

_libraries = os.environ.pop(LIBRARIES_VARIABLE, "[]")
_modules = os.environ.pop(MODULES_VARIABLE, "[]")
_python_path = os.environ.pop(PATH_VARIABLE, None)
_metrics_dir = os.environ.pop(METRICS_VARIABLE, None)
if _python_path is not None:  # handlers' own children get the PYTHONPATH that the user gave
    os.environ.pop("PYTHONPATH", None)
    if _python_path:
        os.environ["PYTHONPATH"] = _python_path
if _metrics_dir is not None:
    # Metrics that handlers make at import move to each worker's own files after the fork.
    metrics.setup(_metrics_dir, metrics.FORK_SERVER)
for _library in json.loads(_libraries):
    with contextlib.suppress(ImportError):  # what needs it says so, in the worker
        importlib.import_module(_library)
try:
    import_handlers(json.loads(_modules))
except HandlersFailed as error:
    failure = error
# What is here now lives as long as the process: collections in the workers neither look at it nor copy its pages.
gc.collect()
gc.freeze()
