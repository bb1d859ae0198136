"""What is wrong with the settings and the database, in words that say what to do.

    examine(conn, settings) --each check of CHECKS--> Report(findings)

For `supervisor doctor`, and for the dashboard's page on table health.

Always true: checks are independent; one that cannot be made (a right is missing, a limit of time) is a
finding of its own and not the end. Every question is bounded (db/examine.py). No finding holds a password,
a query's text or a job's data.

Elsewhere: the facts (db/examine.py, db/health.py), how it is printed (cli/doctor.py).
"""

from supervisor.doctor.examine import CHECKS, examine
from supervisor.doctor.look import Limits
from supervisor.doctor.report import Finding, Level, Report

__all__ = ["CHECKS", "Finding", "Level", "Limits", "Report", "examine"]
