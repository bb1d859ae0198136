"""Run chaos for a while and print the verdict: `python -m tests.chaos --seconds 60 --seed 7`."""

import argparse
import json
import random
import sys
import time
from pathlib import Path

from tests.chaos.run import run


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    words.add_argument("--seconds", type=float, default=60.0)
    words.add_argument("--seed", type=int, default=None, help="default: from the clock; printed")
    words.add_argument("--per-s", type=float, default=100.0, help="jobs enqueued per second")
    words.add_argument("--pause-s", type=float, default=1.0, help="mean pause between faults")
    words.add_argument("--only", default="", help="comma separated names of faults")
    words.add_argument("--pg", default="18")
    words.add_argument("--logs", type=Path, help="where the services' logs go if the verdict is not clean")
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"chaos: seed {seed}, {asked.seconds:g} s", file=sys.stderr, flush=True)
    began = time.monotonic()
    report = run(
        seed=seed,
        seconds=asked.seconds,
        per_s=asked.per_s,
        only=asked.only,
        version=asked.pg,
        pause_s=asked.pause_s,
        logs=asked.logs,
    )
    if asked.json:
        print(json.dumps(report.as_json(), default=str))
    else:
        print(report.text())
    print(f"chaos: seed {seed}, took {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0 if report.verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
