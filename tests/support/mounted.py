"""An application of somebody else's with the dashboard mounted in it, for tests; run by uvicorn as its own server.

MOUNT    the path it is mounted at
GUARDED  1: the application has checked who asks
"""

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from supervisor.dashboard import dashboard_app


async def home(_: Request) -> PlainTextResponse:
    return PlainTextResponse("the shop")


app = Starlette(
    routes=[
        Route("/", home),
        Mount(os.environ["MOUNT"], dashboard_app(guarded_elsewhere=os.environ.get("GUARDED") == "1")),
    ]
)
