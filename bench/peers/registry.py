"""The peers by name: packages, program, and how many processes do best on two cores."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Peer:
    """Another queue, or a bare loop.

    Attributes:
        kind: here: runs in the benches' own environment; python, node: in one of its own.
        program: A module of this package, or a file beside it.
        packages: From PyPI or npm.
        least: The oldest Python that its current release runs on.
        left: A query for the number of jobs that are not finished.
        processes, concurrency: Its workers in `drain`, and what each runs at once.
        bulk: Most jobs of one bulk call.
    """

    name: str
    kind: Literal["here", "python", "node"]
    program: str
    left: str = ""
    packages: tuple[str, ...] = ()
    least: tuple[int, int] = (3, 11)
    processes: int = 4
    concurrency: int = 50
    bulk: int = 10_000


_ALL: Final = (
    Peer("bare", "here", "bare", "select count(*) from plain_job"),
    Peer("plain", "here", "plain"),
    Peer("service", "here", "own"),
    Peer(
        "graphile-worker", "node", "graphile.mjs", "select count(*) from graphile_worker.jobs",
        ("graphile-worker",), concurrency=24,
    ),
    Peer(
        "pg-boss", "node", "pgboss.mjs", "select count(*) from pgboss.job where state < 'completed'",
        ("pg-boss",), concurrency=500,
    ),
    Peer(
        "pgqueuer", "python", "pgqueuer", "select count(*) from pgqueuer",
        ("pgqueuer", "asyncpg", "uvloop"), concurrency=200,
    ),
    Peer(
        "procrastinate", "python", "procrastinate",
        "select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        ("procrastinate", "psycopg[binary]", "uvloop"), concurrency=10,
    ),
    Peer(
        "oban", "python", "oban", "select count(*) from oban_jobs where state in ('available', 'executing')",
        ("oban", "psycopg[binary]", "uvloop"), least=(3, 12), concurrency=50,
    ),
)  # fmt: skip

PEERS: Final[Mapping[str, Peer]] = MappingProxyType({peer.name: peer for peer in _ALL})
OTHERS: Final = tuple(peer.name for peer in _ALL if peer.kind != "here")
