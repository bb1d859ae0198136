"""One chaos run: load and faults side by side, then calm, then the checker."""

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import faults
from tests.chaos.checker import Verdict, check
from tests.chaos.load import Enqueuer, recent_jobs
from tests.chaos.world import World
from tests.support import proc
from tests.support.servers import Servers

PRODUCERS = 4
CALM_DEADLINE_S = 120.0


@dataclass
class Report:
    """What was done and what came of it."""

    seed: int
    verdict: Verdict
    record: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    drained_s: float = 0.0
    log_tail: str = ""

    def kinds(self) -> Counter[str]:
        return Counter(entry["fault"] for entry in self.record)

    def text(self) -> str:
        kinds = self.kinds()
        lines = [
            f"seed              {self.seed}",
            f"faults            {sum(kinds.values())}",
            f"kinds of faults   {len(kinds)}",
            "  " + ", ".join(f"{name} {count}" for name, count in kinds.most_common()),
            *(f"  not on this machine: {name}: {why}" for name, why in self.missing.items()),
            self.verdict.table(),
            f"calm after        {self.drained_s:.0f} s",
            f"verdict: {'CLEAN' if self.verdict.clean else 'NOT CLEAN'} after {sum(kinds.values())} faults of "
            f"{len(kinds)} kinds under {self.verdict.jobs} jobs, seed {self.seed}",
        ]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "clean": self.verdict.clean,
            "faults": self.kinds(),
            "missing": self.missing,
            **self.verdict.__dict__,
        }


def run(
    *,
    seed: int,
    seconds: float,
    per_s: float = 100.0,
    only: str = "",
    version: str = "18",
    pause_s: float = 1.5,
    logs: Path | None = None,
) -> Report:
    """Run chaos for *seconds*, wait for calm, and judge; the services' logs go to *logs* if the verdict is bad."""
    proc.adopt_orphans()
    rng = random.Random(seed)
    names = set(only.split(",")) if only else set(faults.FAULTS)
    servers = Servers()
    world = None
    try:
        world = World(servers.get(version), nodes=2, processes=2, concurrency=4, lease_s=3.0)
        missing = faults.missing(world)
        for fault, why in missing.items():
            print(f"chaos: without {fault}: {why}", file=sys.stderr, flush=True)
        names -= set(missing)
        recent = recent_jobs()
        producers = [
            Enqueuer(world.db.conninfo, rng.randrange(2**31), per_s / PRODUCERS, poison=0.001, recent=recent)
            for _ in range(PRODUCERS)
        ]
        for producer in producers:
            producer.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            name, does = faults.pick(rng)
            pause = rng.uniform(0.2, 1.0) * pause_s
            if name in names:
                does(world, rng)
                world.revive(rng)
                time.sleep(pause)
        world.calm()
        world.revive(rng)
        for producer in producers:
            producer.stop()
        for producer in producers:
            producer.join(20)
        drained_s = _wait_for_calm(world)
        verdict = check(world.db)
        services = world.close()
        tail = "" if verdict.clean else "\n".join(service.tail(60) for service in services[-2:])
        if not verdict.clean and logs:
            logs.write_text("\n".join(service.tail(1_000_000) for service in services))
        return Report(seed, verdict, world.record, missing, drained_s, tail)
    finally:
        if world is not None:
            world.abandon()
        servers.close()
        if world is not None and world.disk is not None:
            world.disk.close()


def _wait_for_calm(world: World) -> float:
    """Wait until nothing is queued or running but what waits for dead jobs; how many seconds that took."""
    began = time.monotonic()
    left = -1
    while time.monotonic() < began + CALM_DEADLINE_S:
        world.revive(random.Random(0))
        left = world.db.value("select count(*)::int from supervisor.job where id not in (select id from chaos_waiting)")
        if left == 0:
            break
        time.sleep(0.2)
    else:
        print(f"chaos: {left} jobs left after {CALM_DEADLINE_S:g} s of calm", file=sys.stderr)
    return time.monotonic() - began
