"""The image's HEALTHCHECK: exit code 0 if the parent's loop turns, as /livez says.

    python -IS livez.py               the service
    python -IS livez.py 9180 /login   the dashboard: a page that asks for nothing

Nothing but sockets, so that a look every few seconds costs no more than the start of an interpreter.

Always true: the database is not asked. A container that cannot reach it is healthy, since a new one could
not either.
"""

import os
import socket
import sys

PATIENCE_S = 3.0
DEFAULT_PORT = "9090"


def main() -> int:
    """Ask on loopback, whatever address the service listens on."""
    port = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SUPERVISOR_HEALTH_PORT") or DEFAULT_PORT
    path = sys.argv[2] if len(sys.argv) > 2 else "/livez"
    host = os.environ.get("SUPERVISOR_HEALTH_HOST", "")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound to, compared
    try:
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.settimeout(PATIENCE_S)
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    except (OSError, ValueError) as error:
        print(f"no answer from {host} port {port}: {error}")
        return 1
    print(answer.decode(errors="replace").partition("\r\n\r\n")[2].strip()[:200])
    return 0 if answer.split(b" ")[1:2] == [b"200"] else 1


if __name__ == "__main__":
    sys.exit(main())
