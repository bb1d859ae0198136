"""The health server answers at once, whatever clients, the database or the parent's loop do."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.errors import SettingsInvalid
from supervisor.parent.health import Degraded, HealthState, ServiceState
from supervisor.probes import MAX_CONNECTIONS, STALE_S, HealthServer
from tests.support.sizes import within
from tests.support.tools import missing
from tests.support.waiting import wait_until


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


class Served:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self.clock = Clock()
        self.state = HealthState(now=self.clock)
        self.page = b"supervisor_jobs_total 3.0\n"
        self.rendered = 0
        self.gate = threading.Event()
        self.gate.set()
        self.server = HealthServer(self.state, self.render, host=host, port=0)
        self.server.start()

    def render(self) -> bytes:
        self.rendered += 1
        self.gate.wait(30)
        return self.page

    def ask(self, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(host, self.server.port, timeout=5)
        connection.request(method, path)
        response = connection.getresponse()
        found = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return found

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        status, headers, body = self.ask(path)
        assert headers["content-type"] == "application/json"
        return status, json.loads(body)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=5)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.gate.set()
    served.server.stop()


def test_live_means_that_the_loop_turned_lately(served: Served) -> None:
    status, answer = served.get("/livez")
    assert (status, answer["status"]) == (200, "ok")
    served.clock.at += STALE_S - 0.1
    assert served.get("/livez")[0] == 200
    served.clock.at += 0.2
    status, answer = served.get("/livez")
    assert (status, answer["status"], answer["tick_age_s"]) == (503, "stuck", 10.1)
    served.state.tick()
    assert served.get("/livez")[0] == 200


def test_a_database_that_is_away_takes_readiness_and_not_life(served: Served) -> None:
    """A restart would not bring it back; it would lose the work in hand."""
    served.state.set_state(ServiceState.READY)
    served.state.set_workers(ready=2, total=2)
    assert served.get("/readyz")[0] == 200
    served.state.set_degraded(Degraded.DATABASE_UNREACHABLE, True)
    assert served.get("/livez")[0] == 200
    status, answer = served.get("/readyz")
    assert status == 503
    assert answer["reasons"] == ["the database cannot be reached"]
    served.state.set_degraded(Degraded.DATABASE_UNREACHABLE, False)
    assert served.get("/readyz")[0] == 200


def test_readiness_names_each_reason(served: Served) -> None:
    assert served.get("/readyz")[1]["reasons"] == ["the service is starting"]
    served.state.set_state(ServiceState.READY)
    served.state.set_workers(ready=0, total=2)
    assert served.get("/readyz")[1]["reasons"] == ["no worker is ready (0 of 2)"]
    served.state.set_workers(ready=1, total=2)
    served.state.set_degraded(Degraded.POLLING, True)
    status, answer = served.get("/readyz")
    assert (status, answer["degraded"], answer["workers"]) == (200, ["polling"], {"ready": 1, "total": 2})
    served.state.set_state(ServiceState.DRAINING)
    served.clock.at += 60
    status, answer = served.get("/readyz")
    assert status == 503
    assert answer["reasons"] == ["the supervisor's loop has not turned for 60 s", "the service is draining"]
    assert answer["state"] == "draining"


def test_metrics_are_served_as_prometheus_reads_them(served: Served) -> None:
    status, headers, body = served.ask("/metrics?x=1")
    assert (status, body) == (200, served.page)
    assert headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_page_that_fails_is_a_500_and_the_server_goes_on(served: Served) -> None:
    served.page = None  # type: ignore[assignment]
    assert served.ask("/metrics")[0] == 500
    assert served.get("/livez")[0] == 200


def test_other_paths_and_methods(served: Served) -> None:
    assert served.ask("/")[0] == 404
    assert served.ask("/livez", "POST")[0] == 405
    status, headers, body = served.ask("/livez", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_a_slow_page_delays_no_probe_and_is_made_once_for_all_who_wait(served: Served) -> None:
    served.gate.clear()
    waiting = [served.connect() for _ in range(5)]
    for client in waiting:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    wait_until(lambda: served.rendered == 1)
    began = time.monotonic()
    assert served.get("/livez")[0] == 200
    assert time.monotonic() - began < within(1, busy_s=8)
    served.gate.set()
    for client in waiting:
        answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        client.close()
    assert served.rendered == 1


def test_clients_that_never_finish_asking_cannot_keep_probes_out(served: Served) -> None:
    slow = [served.connect() for _ in range(3 * MAX_CONNECTIONS)]
    for client in slow:
        with contextlib.suppress(OSError):
            client.sendall(b"GET /livez HTTP/1.1\r\nX: ")
    began = time.monotonic()
    for _ in range(20):
        assert served.get("/livez")[0] == 200
    assert time.monotonic() - began < 5
    assert threading.active_count() < 20
    assert len(served.server._clients) <= MAX_CONNECTIONS
    for client in slow:
        client.close()


def test_clients_that_never_read_cannot_either(served: Served) -> None:
    served.page = b"x" * 5_000_000
    slow = [served.connect() for _ in range(10)]
    for client in slow:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert served.get("/livez")[0] == 200
    assert len(served.ask("/metrics")[2]) == 5_000_000
    for client in slow:
        client.close()


@pytest.mark.parametrize("noise", [b"\r\n\r\n", b"\x16\x03\x01" + b"\0" * 200, b"GET\r\n\r\n", b"x" * 100_000])
def test_noise_harms_nothing(served: Served, noise: bytes) -> None:
    client = served.connect()
    with contextlib.suppress(OSError):
        client.sendall(noise)
        client.shutdown(socket.SHUT_WR)
        client.makefile("rb").read()
    client.close()
    assert served.get("/livez")[0] == 200


def test_it_answers_while_the_parents_loop_is_stuck(served: Served) -> None:
    """In the thread of a blocked loop, as the kubelet would find it."""

    async def parent() -> None:
        served.state.tick()
        answers: list[int] = []
        prober = threading.Thread(target=lambda: answers.append(served.get("/livez")[0]))
        prober.start()
        prober.join(5)  # blocks this loop on purpose
        assert answers == [200]

    asyncio.run(parent())


def test_a_port_in_use_is_told_with_the_name_of_the_setting(served: Served) -> None:
    another = HealthServer(HealthState(), lambda: b"", host="127.0.0.1", port=served.server.port)
    with pytest.raises(SettingsInvalid) as caught:
        another.start()
    assert caught.value.problems == [
        f"SUPERVISOR_HEALTH_PORT={served.server.port}: in use on 127.0.0.1: "
        "choose another, or auto for a free one, or off for none"
    ]
    another.stop()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "x" * 300])
def test_an_address_that_is_not_here_is_told_too(host: str) -> None:
    with pytest.raises(SettingsInvalid, match="SUPERVISOR_HEALTH_HOST="):
        HealthServer(HealthState(), lambda: b"", host=host, port=0).start()


@pytest.mark.parametrize("host", ["::1", "::"])
def test_it_binds_ipv6_and_on_the_any_address_both(host: str) -> None:
    try:
        served = Served(host)
    except SettingsInvalid:
        missing("IPv6 is missing: ::1 cannot be bound (sysctl net.ipv6.conf.lo.disable_ipv6=0)")
    assert served.ask("/livez", host="::1")[0] == 200
    if host == "::":
        assert served.ask("/livez", host="127.0.0.1")[0] == 200
    served.server.stop()


def test_after_stop_the_port_is_free_and_no_thread_is_left(served: Served) -> None:
    client = served.connect()
    served.server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", served.server.port), timeout=1)
    again = HealthServer(HealthState(), lambda: b"", host="127.0.0.1", port=served.server.port)
    again.start()
    again.stop()
    client.close()
    assert "health" not in [thread.name for thread in threading.enumerate()]
