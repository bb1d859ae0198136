"""What is shown when a page cannot be: one page that says so, never a traceback.

    Refused                 what was asked for cannot be had: 400, 403, 404
    a database's trouble    503, with what it said and what to do
    anything else           500; the log has the traceback, the browser does not

Always true: no text holds a password.
"""

from typing import Any

from starlette.exceptions import HTTPException

from supervisor.dashboard.view import Page
from supervisor.db.operate import StatementRefused
from supervisor.dsn import mask
from supervisor.errors import DatabaseUnavailable, SchemaMissing, SupervisorError


class Refused(HTTPException):
    """A request that is not answered as asked; the text is for whoever asked."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)


_TITLES = {400: "That cannot be asked", 403: "Refused", 404: "Not found", 405: "Not that way", 409: "Not done"}


def problem(error: Exception) -> Page:
    """The page for *error*."""
    if isinstance(error, HTTPException):
        text = error.detail if error.status_code != 405 else "This address takes another method."
        if error.status_code == 404 and text == "Not Found":
            text = "There is no such page."
        return _page(error.status_code, _TITLES.get(error.status_code, "Refused"), text)
    if isinstance(error, DatabaseUnavailable):
        done = " What had been sent may have been done: look before you repeat it." if error.unsure else ""
        return _page(503, "The database does not answer", mask(error.reason) + "." + done, wait=True)
    if isinstance(error, StatementRefused) and error.sqlstate in ("57014", "55P03"):
        text = "The database took longer than a page may take, and the question was taken back. Ask for less."
        return _page(503, "That took too long", text, wait=True)
    if isinstance(error, StatementRefused) and error.sqlstate == "25006":
        return _page(403, "Refused", "Nothing can be changed here: the database or the dashboard is read-only.")
    if isinstance(error, StatementRefused) and error.sqlstate == "22023":
        return _page(400, "That cannot be asked", mask(error.reason) + ".")
    if isinstance(error, StatementRefused):
        return _page(503, "The database refused", mask(error.reason))
    if isinstance(error, SchemaMissing):
        return _page(503, "The schema does not fit", str(error))
    if isinstance(error, SupervisorError):
        return _page(400, "Refused", mask(str(error)))
    return _page(500, "A fault of the dashboard", "The log has what happened. The queue does not depend on this page.")


def _page(status: int, title: str, text: str, *, wait: bool = False) -> Page:
    data: dict[str, Any] = {"error": title, "reason": text}
    return Page("problem.html", title, data, refresh_s=5.0 if wait else None, status=status)
