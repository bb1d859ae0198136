"""Addresses and what answers them. Each page is there as HTML and, with .json at its end, as JSON.

GET   /  /jobs  /jobs/ID  /queues  /schedules  /outbox  /health        and with .json (the first as /overview.json)
POST  /jobs/order                                  order=retry|cancel|force|reschedule, id=..., and when
POST  /queues/order, /schedules/order              order=..., and the queue or the entry's name
POST  /outbox/order                                order=replay|drop, id=...
GET, POST  /login, POST /logout                    where a token is set
GET   /static/...
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from supervisor.dashboard import orders
from supervisor.dashboard.guard import COOKIE, SESSION_S
from supervisor.dashboard.pages import health, job, jobs, outbox, overview, queues, schedules
from supervisor.dashboard.problems import Refused
from supervisor.dashboard.view import Page, as_json, set_cookie, wants_json

if TYPE_CHECKING:
    from supervisor.dashboard.app import Dashboard

Answer = Callable[[Request], Awaitable[Page]]
Endpoint = Callable[[Request], Awaitable[Response]]
_FILTERS = ("status", "queue", "kind", "q", "before", "after")
_MOST_BACK = 4_000


def routes(dashboard: "Dashboard") -> list[BaseRoute]:
    """The routes of one dashboard."""
    viewer, settings = dashboard.viewer, dashboard.settings
    pages: list[tuple[str, str, str, Answer]] = [
        ("overview", "/", "/overview.json", lambda _: overview.page(viewer)),
        ("jobs", "/jobs", "/jobs.json", lambda request: jobs.page(viewer, request.query_params)),
        ("jobs", "/jobs/{id:int}", "/jobs/{id:int}.json", lambda request: job.page(viewer, request.path_params["id"])),
        ("queues", "/queues", "/queues.json", lambda _: queues.queues(viewer)),
        ("schedules", "/schedules", "/schedules.json", lambda _: schedules.page(viewer)),
        ("outbox", "/outbox", "/outbox.json", lambda _: outbox.page(viewer)),
        ("health", "/health", "/health.json", lambda _: health.page(viewer, settings)),
    ]
    found: list[BaseRoute] = [
        Mount("/static", StaticFiles(packages=[("supervisor.dashboard", "static")]), name="static"),
        Route("/login", dashboard.sound(_login(dashboard)), methods=["GET", "POST"]),
        Route("/logout", dashboard.sound(_logout(dashboard)), methods=["POST"]),
        Route("/jobs/order", dashboard.sound(_order(dashboard)), methods=["POST"]),
        Route("/queues/order", dashboard.sound(_queue_order(dashboard)), methods=["POST"]),
        Route("/schedules/order", dashboard.sound(_schedule_order(dashboard)), methods=["POST"]),
        Route("/outbox/order", dashboard.sound(_event_order(dashboard)), methods=["POST"]),
    ]
    for name, path, document, answer in pages:
        endpoint = dashboard.sound(_shown(dashboard, name, answer))
        found += [Route(document, endpoint, methods=["GET"]), Route(path, endpoint, methods=["GET"])]
    return found


def _shown(dashboard: "Dashboard", name: str, answer: Answer) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return dashboard.answer(request, await answer(request), here=name)

    return endpoint


def _order(dashboard: "Dashboard") -> Endpoint:
    async def endpoint(request: Request) -> Response:
        given = await dashboard.order_form(request)
        fields = dict(given)
        ids = orders.chosen_ids([value for name, value in given if name == "id"])
        done = await orders.carry_out(dashboard.viewer, fields.get("order", ""), ids, fields)
        if wants_json(request):
            return as_json({"text": done.text(), **done.query()}, 200 if done.good else 409)
        back = fields.get("back")
        if back is None:
            return _see(request, f"/jobs/{ids[0]}", done.query())
        # Only the list's own filters, so that the address leads nowhere else.
        kept = [pair for pair in parse_qsl(back[:_MOST_BACK]) if pair[0] in _FILTERS]
        return _see(request, "/jobs", [*kept, *done.query().items()])

    return endpoint


def _queue_order(dashboard: "Dashboard") -> Endpoint:
    async def endpoint(request: Request) -> Response:
        fields = dict(await dashboard.order_form(request))
        done = await orders.carry_out_on_queue(dashboard.viewer, fields, "the dashboard")
        if wants_json(request):
            return as_json({"text": done.text(), **done.query()})
        return _see(request, "/queues", done.query())

    return endpoint


def _schedule_order(dashboard: "Dashboard") -> Endpoint:
    async def endpoint(request: Request) -> Response:
        fields = dict(await dashboard.order_form(request))
        done = await orders.carry_out_on_schedule(dashboard.viewer, fields, "the dashboard")
        if wants_json(request):
            return as_json({"text": done.text(), **done.query()})
        return _see(request, "/schedules", done.query())

    return endpoint


def _event_order(dashboard: "Dashboard") -> Endpoint:
    async def endpoint(request: Request) -> Response:
        given = await dashboard.order_form(request)
        ids = orders.chosen_ids([value for name, value in given if name == "id"], "event")
        done = await orders.carry_out_on_events(dashboard.viewer, dict(given).get("order", ""), ids)
        if wants_json(request):
            return as_json({"text": done.text(), **done.query()}, 200 if done.good else 409)
        return _see(request, "/outbox", done.query())

    return endpoint


def _login(dashboard: "Dashboard") -> Endpoint:
    guard = dashboard.guard

    async def endpoint(request: Request) -> Response:
        if not guard.has_login:
            raise Refused(404, "There is no login here.")
        to = request.query_params.get("to", "")
        wrong = False
        if request.method == "POST":
            fields = dict(await dashboard.form(request))
            to = fields.get("to", "")
            if guard.is_token(fields.get("token", "").strip()):
                response = _see(request, _inside(to), {})
                set_cookie(request, response, COOKIE, guard.new_cookie(), SESSION_S)
                return response
            wrong = True
            dashboard.refused(request, "a wrong token")
        page = Page("login.html", "Sign in", {}, {"wrong": wrong, "to": _inside(to)}, status=403 if wrong else 200)
        return dashboard.answer(request, page, here="login")

    return endpoint


def _logout(dashboard: "Dashboard") -> Endpoint:
    async def endpoint(request: Request) -> Response:
        await dashboard.form(request)
        response = _see(request, "/login", {})
        response.delete_cookie(COOKIE, path=request.scope.get("root_path", "").rstrip("/") or "/")
        return response

    return endpoint


def _inside(to: str) -> str:
    """*to* if it is a path of ours, else the first page: nobody is led elsewhere after signing in."""
    plain = to.isprintable() and "\\" not in to and len(to) <= _MOST_BACK
    return to if plain and to.startswith("/") and not to.startswith("//") else "/"


def _see(request: Request, path: str, query: Mapping[str, object] | Sequence[tuple[str, object]]) -> RedirectResponse:
    root = request.scope.get("root_path", "").rstrip("/")
    text = urlencode(query)
    joint = "&" if "?" in path else "?"
    return RedirectResponse(root + path + (joint + text if text else ""), 303)
