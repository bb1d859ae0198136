"""The commands, put together; and what surrounds each of them: its errors, its exit code, its secrets.

Light on purpose: a command's own imports are inside it, so that `--help`, completion and a typing error
answer at once.

Always true: an expected failure is one line on stderr with its exit code (exits.py), never a traceback. An
address given on the command line does not stay there, where `ps` shows it to everybody.
"""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.exceptions import TyperException

from supervisor import exits
from supervisor.cli import outbox as outbox_commands
from supervisor.cli import schedules as schedule_commands
from supervisor.cli.batches import Order
from supervisor.cli.dashboard import dashboard
from supervisor.cli.demo import demo
from supervisor.cli.doctor import doctor
from supervisor.cli.drain import drain
from supervisor.cli.enqueue import enqueue
from supervisor.cli.failures import report, report_fault, say
from supervisor.cli.jobs import list_, show
from supervisor.cli.ordering import command
from supervisor.cli.orders import Cancel, ReleaseOrder, Reschedule, Retry
from supervisor.cli.queues import list_ as list_queues
from supervisor.cli.queues import pause, resume, set_, unset
from supervisor.cli.relay import consume, relay
from supervisor.cli.run import migrate, run
from supervisor.cli.status import status
from supervisor.cli.story import story
from supervisor.dsn import mask
from supervisor.errors import SupervisorError

app = typer.Typer(name="supervisor", no_args_is_help=True, pretty_exceptions_enable=False)
jobs = typer.Typer(name="jobs", no_args_is_help=True, help="Look at jobs; retry, cancel, reschedule them.")

queues = typer.Typer(
    name="queues", no_args_is_help=True, help="Pause queues, limit how many of their jobs run and start."
)

_ADDRESSES = {
    "--database-url": "SUPERVISOR_DATABASE_URL",
    "--listen-database-url": "SUPERVISOR_LISTEN_DATABASE_URL",
}


def _version(wanted: bool) -> None:
    if wanted:
        from supervisor import __version__

        typer.echo(f"pg-supervisor {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Background jobs in PostgreSQL: they commit with your data, a supervisor runs them."""


_commands: tuple[Callable[..., None], ...] = (
    run, migrate, enqueue, status, doctor, dashboard, relay, consume, drain, demo,
)  # fmt: skip
for _command in _commands:
    app.command()(_command)
jobs.command("list")(list_)
for _command in (show, story):
    jobs.command()(_command)
_orders: dict[str, type[Order]] = {
    "retry": Retry, "cancel": Cancel, "reschedule": Reschedule, "release-order": ReleaseOrder,
}  # fmt: skip
for _name, _order in _orders.items():
    jobs.command(_name)(command(_order))
app.add_typer(jobs)
outbox = typer.Typer(
    name="outbox", no_args_is_help=True, help="Look at events to be published; replay or drop parked ones."
)
outbox.command("list")(outbox_commands.list_)
for _command in (outbox_commands.status, outbox_commands.replay, outbox_commands.drop):
    outbox.command()(_command)
app.add_typer(outbox)
schedules = typer.Typer(name="schedules", no_args_is_help=True, help="Look at cron entries; pause, run, set them.")
schedules.command("list")(schedule_commands.list_)
schedules.command("set")(schedule_commands.set_)
for _command in (schedule_commands.pause, schedule_commands.resume, schedule_commands.run, schedule_commands.unset):
    schedules.command()(_command)
app.add_typer(schedules)
queues.command("list")(list_queues)
queues.command("set")(set_)
_commands = (pause, resume, unset)
for _command in _commands:
    queues.command()(_command)
app.add_typer(queues)


def main() -> None:
    """The entry point."""
    _hide_addresses()
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(prog_name="supervisor", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
            return exits.USAGE
        command = getattr(getattr(error, "ctx", None), "command_path", "supervisor")
        text = " ".join(error.format_message().replace("Value error, ", "").split())
        say(f"{mask(text)} (see `{command} --help`)")
        return exits.USAGE
    except typer.Abort:
        say("nothing was done")
        return exits.FAILED
    except KeyboardInterrupt:
        return 130
    except SupervisorError as error:
        return report(error)
    except Exception:
        return report_fault()


def _hide_addresses() -> None:
    """Move addresses from the command line into the environment, and begin anew without them."""
    words, kept = sys.orig_argv[1:], []
    start = len(words) - len(sys.argv[1:])
    kept, rest, moved = words[:start], iter(words[start:]), {}
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _ADDRESSES:
            moved[_ADDRESSES[option]] = value if equals else next(rest, "")
        else:
            kept.append(word)
    if not moved or not all(moved.values()):
        return  # nothing there, or no value: the parser says so
    environment = {**os.environ, **moved}
    for name in moved:
        environment.pop(f"{name}_FILE", None)  # a flag goes before it
    sys.stdout.flush()
    os.execve(sys.executable, [sys.orig_argv[0], *kept], environment)  # noqa: S606 - itself
