"""`python -m bench NAME [options]`."""

import argparse
import json
import signal
import sys
from pathlib import Path

from bench import (
    backlog,
    blocked,
    crash,
    drain,
    enqueue,
    history,
    idle,
    lab,
    lanes,
    latency,
    memory,
    outbox,
    pinned,
    scale,
    shutdown,
    suite,
    sustained,
)
from bench.chart import draw
from bench.report import Bench, as_dict

BENCHES: dict[str, Bench] = {
    "drain": drain,
    "latency": latency,
    "enqueue": enqueue,
    "pinned": pinned,
    "backlog": backlog,
    "history": history,
    "lanes": lanes,
    "blocked": blocked,
    "scale": scale,
    "idle": idle,
    "memory": memory,
    "lab": lab,
    "crash": crash,
    "shutdown": shutdown,
    "sustained": sustained,
    "outbox": outbox,
}


def main() -> int:
    """Run one bench; 0 if it could measure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the service on a server of its own.")
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, bench in BENCHES.items():
        one = names.add_parser(name, help=bench.HELP, description=bench.HELP)
        one.add_argument("--chart", type=Path, metavar="FILE", help="draw the figures, as .svg or .png")
        one.add_argument("--json", action="store_true", help="print all figures as JSON, and nothing else")
        bench.arguments(one)
    suite.arguments(names.add_parser("all", help=suite.HELP, description=suite.HELP))
    options = parser.parse_args()
    # As by Ctrl-C: its server and its services end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    if options.name == "all":
        return suite.run(options, BENCHES, lambda text: print(text, flush=True))
    report = BENCHES[options.name].run(options, say)
    if options.chart and report.chart:
        draw(report.chart, options.chart)
    if options.json:
        print(json.dumps({**as_dict(options.name, report), "line": report.line}, indent=2))
    else:
        print(f"\n{report.line}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
