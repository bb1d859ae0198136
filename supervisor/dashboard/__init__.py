"""The dashboard: what the queue does, in a browser, and the few orders an operator gives.

    browser --HTTP--> guard.py      may this request be answered at all?     headers, host, who asks
                      routes.py     which page, which order                  csrf.py for orders
                      pages/        what the page says, as plain data        viewer.py: asked once for all who look
                      view.py       that data as HTML or as JSON             templates/, static/

It runs alone (`supervisor dashboard`), beside the workers (SUPERVISOR_DASHBOARD_PORT, a process of its own under
the service's parent), or mounted in an application (`dashboard_app`). docs/dashboard.md is its manual.

Always true: a page's cost is bounded whatever the queue holds; every text out of the database is escaped, and no
script or style but our own files runs; nothing changes but by a POST that carries the form's token.

Elsewhere: the statements (db/browse.py, overview.py, operate.py); the connections (db/desk.py); what workers say
they run (parent/showing.py).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from supervisor.errors import SettingsInvalid

if TYPE_CHECKING:
    from supervisor.dashboard.app import Dashboard
    from supervisor.settings import Settings

__all__ = ["DEFAULT_PORT", "dashboard_app", "missing_packages", "require_packages"]

DEFAULT_PORT = 9180
"""Where `supervisor dashboard` serves when nothing else is set."""


def missing_packages(*, server: bool = True) -> list[str]:
    """The packages that the dashboard needs and that are not installed."""
    wanted = ("starlette", "jinja2", "uvicorn") if server else ("starlette", "jinja2")
    return [name for name in wanted if find_spec(name) is None]


def require_packages(*, server: bool = True) -> None:
    """Raise SettingsInvalid with the remedy when a package that the dashboard needs is not installed."""
    if missing := missing_packages(server=server):
        raise SettingsInvalid([f"the dashboard needs {', '.join(missing)}: run pip install 'pg-supervisor[dashboard]'"])


def dashboard_app(
    settings: Settings | None = None, *, database_url: str | None = None, guarded_elsewhere: bool = False
) -> Dashboard:
    """The dashboard as an ASGI application, to be mounted in one of Starlette or FastAPI.

    Args:
        settings: None reads SUPERVISOR_* from the environment.
        database_url: None takes that of the settings, which must name one.
        guarded_elsewhere: Whoever reaches it has been checked by the application around it, and so is their
            Host header. Else a token, or a user and a password, must be set.

    Raises:
        SettingsInvalid: a package is missing, there is no address, or anybody could open it.
    """
    require_packages(server=False)
    from supervisor.dashboard.app import Dashboard
    from supervisor.settings import Settings

    settings = settings or Settings.load()
    address = settings.database_url.get_secret_value() if settings.database_url else None
    if (url := database_url or address) is None:
        raise SettingsInvalid(["SUPERVISOR_DATABASE_URL is not set: a mounted dashboard needs the queue's address"])
    if not (guarded_elsewhere or settings.dashboard_token or settings.dashboard_password):
        raise SettingsInvalid(
            [
                "a mounted dashboard needs SUPERVISOR_DASHBOARD_TOKEN, or SUPERVISOR_DASHBOARD_USER and _PASSWORD; or "
                "dashboard_app(guarded_elsewhere=True) where the application around it checks who asks"
            ]
        )
    return Dashboard(settings, url, guarded_elsewhere=guarded_elsewhere)
