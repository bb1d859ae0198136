"""The application: one Dashboard per database, put together.

    SecurityHeaders --> this: host, who asks --> Starlette: routes --> pages
                                                   '--> problems, as a page or as JSON

Mounted, it has no start and no stop of its own (applications do not tell theirs to what is mounted in them): it
opens connections when somebody looks and closes them when nobody has for a while.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from supervisor import __version__
from supervisor.dashboard import csrf, forms
from supervisor.dashboard.guard import Guard
from supervisor.dashboard.headers import SecurityHeaders
from supervisor.dashboard.orders import Done
from supervisor.dashboard.problems import Refused, problem
from supervisor.dashboard.routes import Endpoint, routes
from supervisor.dashboard.view import Page, as_html, as_json, wants_json
from supervisor.dashboard.viewer import STATEMENT_TIMEOUT_S, Viewer
from supervisor.db.desk import Desk
from supervisor.errors import SupervisorError
from supervisor.log import Repeats, get_logger
from supervisor.settings import Settings

log = get_logger("dashboard")


class Dashboard:
    """An ASGI application. `supervisor.dashboard.dashboard_app` is the way in."""

    def __init__(self, settings: Settings, database_url: str, *, guarded_elsewhere: bool = False) -> None:
        self.settings = settings
        self.guard = Guard(settings, database_url, guarded_elsewhere=guarded_elsewhere)
        self.viewer = Viewer(
            Desk(
                database_url,
                settings.schema_,
                statement_timeout_s=min(STATEMENT_TIMEOUT_S, settings.statement_timeout_s),
                connect_timeout_s=min(STATEMENT_TIMEOUT_S, settings.connect_timeout_s),
                read_only=settings.dashboard_read_only,
            )
        )
        self._repeats = Repeats()
        self._app = Starlette(
            routes=routes(self),
            exception_handlers={HTTPException: self._problem, SupervisorError: self._problem},
            lifespan=self._lifespan,
        )
        self._outer = SecurityHeaders(self._enter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        await self._outer(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.viewer.desk.close()

    # ---- who may enter

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        refusal = self._refusal(request)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if not self.guard.knows_host(request):
            self.refused(request, "an unknown Host header")
            text = (
                "The Host header of this request is not this machine's: set SUPERVISOR_DASHBOARD_ALLOWED_HOSTS to the "
                "name under which a proxy shows the dashboard."
            )
            return self.answer(request, problem(Refused(403, text)), here="")
        path = _below(request)
        if path.startswith("/static/") or path == "/login" or self.guard.knows(request):
            return None
        if request.headers.get("authorization"):
            self.refused(request, "a wrong Authorization header")
        if self.guard.has_login and request.method == "GET" and not wants_json(request):
            here = path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{_root(request)}/login?{urlencode({'to': here})}", 303)
        response = self.answer(request, problem(Refused(401, "Who asks is not known.")), here="")
        response.headers["www-authenticate"] = self.guard.challenge
        return response

    def refused(self, request: Request, what: str) -> None:
        """Say in the log that somebody was turned away."""
        client = request.client.host if request.client else None
        self._repeats.tell(log.warning, "dashboard.refused", what=what, client=client)

    async def form(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form of ours. Raises Refused for any other."""
        fields = await forms.read(request)
        if not self.guard.by_bearer(request) and (why := csrf.refusal(request, self.guard.key, dict(fields))):
            self.refused(request, why)
            raise Refused(403, f"Nothing was done: {why}.")
        return fields

    async def order_form(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form that changes something. Raises Refused where nothing may be changed."""
        fields = await self.form(request)
        if self.settings.dashboard_read_only:
            raise Refused(403, "This dashboard is read-only (SUPERVISOR_DASHBOARD_READ_ONLY).")
        return fields

    # ---- answers

    def sound(self, endpoint: Endpoint) -> Endpoint:
        """*endpoint* with a page for its faults too; nothing of ours reaches an application around this one."""

        async def answered(request: Request) -> Response:
            try:
                return await endpoint(request)
            except (HTTPException, SupervisorError):
                raise
            except Exception as error:
                log.error("dashboard.fault", path=_below(request), exc_info=error)
                return self.answer(request, problem(error), here="")

        return answered

    def answer(self, request: Request, page: Page, *, here: str) -> Response:
        """*page* as whoever asks wants it."""
        if wants_json(request):
            return as_json(page.data, page.status)
        done = Done.read(request.query_params)
        inside = self.guard.knows_host(request) and self.guard.knows(request)
        common: Mapping[str, Any] = {
            "here": here,
            "schema": self.settings.schema_,
            "service": self.settings.name,
            "version": __version__,
            "read_only": self.settings.dashboard_read_only,
            "inside": inside,
            "can_sign_out": self.guard.has_login and inside,
            "said": None if done is None else {"text": done.text(), "good": done.good},
            "query": request.url.query,
            "document": _document(request) if here not in ("", "login") else None,
        }
        return as_html(request, page, common, self.guard.key)

    async def _problem(self, request: Request, error: Exception) -> Response:
        if isinstance(error, SupervisorError):
            self._repeats.tell(log.warning, "dashboard.trouble", reason=str(error), path=_below(request))
        response = self.answer(request, problem(error), here="")
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _document(request: Request) -> str:
    """The address of the same page as JSON, below the dashboard's root."""
    path = _below(request).rstrip("/") or "/overview"
    return f"{path}.json" + (f"?{request.url.query}" if request.url.query else "")


def _below(request: Request) -> str:
    """The path below the dashboard's root."""
    path: str = request.scope["path"]
    root = _root(request)
    return path[len(root) :] or "/" if root and path.startswith(root) else path
