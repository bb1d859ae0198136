"""A command that is process 1 of a container hears SIGTERM from its first moment.

The kernel drops signals to process 1 that have no handler, so a container that is stopped while the interpreter
still imports, or while a command runs that has no handler of its own, would go on until it is killed.
The service has a better answer and puts it in this one's place once it runs (parent/service.py).

Always true: nothing happens but to process 1, and only when it is the command `supervisor`: a program of yours
that imports this package keeps its signals.
"""

import os
import signal
import sys


def obey_early() -> None:
    """Let SIGTERM end this process, if it is process 1 and ours."""
    ours = os.path.basename(sys.argv[0]) == "supervisor" or (sys.argv[0] == "-m" and "supervisor" in sys.orig_argv)
    if os.getpid() == 1 and ours:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
