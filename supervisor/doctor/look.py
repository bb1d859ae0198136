"""What checks look at: the settings, the database, this machine; facts that several need are asked once.

Elsewhere: running the checks (examine.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from supervisor.db.examine import Asker, ServerFacts
from supervisor.db.health import TableHealth
from supervisor.settings import Settings

T = TypeVar("T")
CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on something is told.

    Attributes:
        patience_s: for one statement. check_s: for one check; a server that is silent for longer is given up.
        long_s, very_long_s: a transaction that holds back vacuum is a warning, a problem.
        late_s: how long after its time something should have been cleared away by a supervisor.
        paused_s: for how long a queue may be paused before it is a warning.
        waited_s: a due job that waits for longer while nobody runs jobs is a problem.
        sample: the most rows looked at per lane. gates: of jobs with gates, and of links to parents.
        dead_rows, dead_share: dead rows of a table that has not been vacuumed for vacuum_s.
        bloat_bytes, bloat_share: of an index. slot_bytes: of log that a slot keeps.
        skew_s: between this host's clock and the server's.
    """

    patience_s: float = 5.0
    check_s: float = 15.0
    long_s: float = 300.0
    very_long_s: float = 3600.0
    late_s: float = 300.0
    waited_s: float = 60.0
    paused_s: float = 3 * 86_400.0
    sample: int = 1000
    gates: int = 10_000
    dead_rows: int = 50_000
    dead_share: float = 0.5
    vacuum_s: float = 900.0
    bloat_bytes: int = 100 * 2**20
    bloat_share: float = 0.5
    slot_bytes: int = 2**30
    skew_s: float = 2.0
    notices: float = 0.25
    ids: float = 0.5
    strays: int = 1000


@dataclass(slots=True)
class Look:
    """One examination.

    Attributes:
        address: where LISTEN would be sent to; None does not try.
        kinds: what the handlers of these settings know; None: not known.
        purpose: whose rights the role must have (roles.py).
        ask: None where the database cannot be reached; a check that needs it is not run then.
    """

    settings: Settings
    ask: Asker | None
    address: str | None = None
    kinds: frozenset[str] | None = None
    purpose: str = "worker"
    limits: Limits = field(default_factory=Limits)
    cgroup: Path = CGROUP
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The queue's schema."""
        return self.settings.schema_

    @property
    def db(self) -> Asker:
        """The database; only for checks that are run with one."""
        assert self.ask is not None
        return self.ask

    async def server(self) -> ServerFacts:
        """What the server is."""
        return await self._once("server", self.db.server)

    async def pooled(self) -> bool:
        """Whether a pooler stands in between."""
        return await self._once("pooled", self.db.pooled)

    async def health(self) -> TableHealth:
        """Sizes, dead rows, snapshots, slots."""
        return await self._once("health", self.db.health)

    async def _once(self, name: str, question: Callable[[], Awaitable[T]]) -> T:
        if name not in self._known:
            self._known[name] = await question()
        return cast(T, self._known[name])
