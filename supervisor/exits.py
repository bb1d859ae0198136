"""Exit codes, for scripts and platforms. 64-78 follow sysexits.h (4.3BSD)."""

from typing import Final

OK: Final = 0
"""Everything finished."""
FAILED: Final = 1
"""A command did not succeed; its one-line error says why."""
USAGE: Final = 2
"""The command line was not understood."""
WARNINGS: Final = 3
"""`supervisor doctor` has warnings, and nothing worse."""
PROBLEMS: Final = 4
"""`supervisor doctor` has found a problem: jobs are not run, or can be lost."""
UNAVAILABLE: Final = 69
"""The database could not be reached and the command does not wait for it."""
SOFTWARE: Final = 70
"""Workers died faster than the restart budget allows."""
CUT: Final = 75
"""Stopped, but running jobs had to be interrupted at the drain deadline; they are queued again."""
CONFIG: Final = 78
"""Settings are wrong, handlers do not import, or the schema does not fit."""
