"""A real HTTP server on the loopback that receives webhooks, answers as told and keeps what it was sent."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Receiver:
    """A server that answers as told and keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[BaseHTTPRequestHandler], object] = status(204)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                receiver.answer(self)

            def do_GET(self) -> None:  # where a followed redirect would arrive
                receiver.requests.append((self.path, {}, b""))
                status(200)(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook?token=t0ken"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Callable[[Any], None]:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(code)
        for name, value in (headers or {}).items():
            to.send_header(name, value)
        if code != 204:
            to.send_header("content-length", str(len(body)))
        to.end_headers()
        to.wfile.write(body)

    return answer
