"""What a command says, and how it ends, when it cannot do its work.

    an expected failure      one line on stderr with the remedy, and its exit code (exits.py)
    a fault of this program  its traceback, exit code 70

Always true: no line holds a password.
"""

import sys
import traceback

from supervisor import exits
from supervisor.dsn import mask
from supervisor.errors import (
    BrokerRefused,
    DatabaseUnavailable,
    HandlersFailed,
    InvalidHandler,
    InvalidJob,
    InvalidQueue,
    InvalidSchedule,
    SchemaMissing,
    SchemaTooNew,
    SettingsInvalid,
    SupervisorError,
)


class CommandFailed(SupervisorError):
    """A command did not succeed; the text says why, and what to do."""

    def __init__(self, text: str, code: int = exits.FAILED) -> None:
        super().__init__(text, code)
        self.text = text
        self.code = code

    def __str__(self) -> str:
        return self.text


def wrong_use(what: str, why: str) -> CommandFailed:
    """The error for an option or argument that cannot be used."""
    return CommandFailed(f"{what} {why}", exits.USAGE)


_CODES: dict[type[SupervisorError], int] = {
    DatabaseUnavailable: exits.UNAVAILABLE,
    InvalidJob: exits.USAGE,
    InvalidQueue: exits.USAGE,
    InvalidSchedule: exits.USAGE,
    SettingsInvalid: exits.CONFIG,
    BrokerRefused: exits.CONFIG,
    SchemaMissing: exits.CONFIG,
    SchemaTooNew: exits.CONFIG,
    HandlersFailed: exits.CONFIG,
    InvalidHandler: exits.CONFIG,
}


def exit_code(error: SupervisorError) -> int:
    """The exit code that stands for *error*."""
    if isinstance(error, CommandFailed):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), exits.FAILED)


def one_line(error: SupervisorError) -> str:
    """What to show of *error*."""
    text = str(error)
    if isinstance(error, DatabaseUnavailable):
        done = " (what had been sent may have been done: look before you repeat it)" if error.unsure else ""
        text = f"{text}{done}: is the server up, and is SUPERVISOR_DATABASE_URL right?"
    return mask(" ".join(text.split()))


def report(error: SupervisorError) -> int:
    """Say *error* on stderr; its exit code."""
    say(one_line(error))
    return exit_code(error)


def report_fault() -> int:
    """Say the exception being handled, which nobody expected, with its traceback."""
    sys.stderr.write(mask(traceback.format_exc()))
    say("this is a fault of the program, not of its use: please report it with the lines above")
    return exits.SOFTWARE


def say(line: str) -> None:
    """A line on stderr, in the program's name."""
    sys.stderr.write(f"supervisor: {line}\n")
    sys.stderr.flush()
