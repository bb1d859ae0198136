"""The whole demo: a fresh schema, the service, five steps, the report."""

import time

from rich.console import Console

from supervisor.db.lab import lab_database
from supervisor.demo.figures import Report
from supervisor.demo.ground import SETTINGS, Ground
from supervisor.demo.process import DemoFailed, LabService
from supervisor.demo.screen import Screen, show_report
from supervisor.demo.steps import Steps


def run_lab(database_url: str, console: Console) -> Report:
    """Run the demo on the database at *database_url*, and show it on *console*.

    Raises:
        SupervisorError: it could not begin. What goes wrong later is the report's `failure`.
    """
    report = Report()
    began = time.monotonic()
    with lab_database(database_url) as db:
        service = LabService(
            {**SETTINGS, "database_url": database_url, "lab_database_url": db.calls_conninfo},
        )
        try:
            with Screen(console) as screen:
                steps = Steps(Ground(db, service, screen, report))
                lived = (steps.start, steps.enqueue, steps.clear, steps.look, steps.die, steps.stop)
                for number, step in enumerate(lived):
                    screen.begin(number)
                    step()
        except DemoFailed as error:
            report.failure = str(error)
        finally:
            service.close()
        report.seconds = time.monotonic() - began
    show_report(console, report)
    return report
