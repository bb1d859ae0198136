"""`python -m supervisor.metrics` writes docs/metrics.md."""

from collections.abc import Iterable
from pathlib import Path

from supervisor.metrics.facts import FACTS
from supervisor.metrics.labels import MAX_LABELS
from supervisor.metrics.numbers import Described, Metrics

_HEAD = f"""# Metrics

Written by `python -m supervisor.metrics`; do not edit. `/metrics` on `SUPERVISOR_HEALTH_PORT` shows the whole process
tree of one service, your own metrics in handlers included (create them at import, with prometheus_client). A scrape
asks neither the database nor the workers.

* **Labels are bounded.** `queue` and `kind` have the names that handlers and settings know, at most {MAX_LABELS} each;
  all others are `other`.
* **Counters go on** when workers die or are recycled; they start at 0 with the service. What a worker had stored is
  counted even if it was killed at that moment.
* **Several services on one database**: counters and the gauges of processes are each service's own: `sum` them. The
  gauges of the database are the same from each: `max by (queue, status) (supervisor_queue_jobs)`.
* **Nothing stale.** Gauges of the database are read every `SUPERVISOR_WATCH_EVERY_S` (of tables and gates: six times
  that). When it does not answer they are left off the page after three intervals, and `supervisor_refresh_age_seconds`
  goes on growing.
* **The table `tally`** keeps ended runs by minute, queue and event (done, failed, dead, crashed, cancelled, snoozed,
  released) for a week: throughput without a Prometheus. Services add what they counted at the same interval, each run
  once; while the database is away they keep it. A service that is killed takes its last interval with it.
* Alert rules and a dashboard that use them: `deploy/prometheus`, `deploy/grafana`.
"""


def document() -> str:
    """docs/metrics.md, from the descriptions."""
    return "\n".join(
        [
            _HEAD,
            *_table("Of the processes", Metrics().described),
            *_table("Of the service, the queue and the database", FACTS.values()),
        ]
    )


def _table(title: str, metrics: Iterable[Described]) -> list[str]:
    lines = [f"## {title}", "", "| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.type} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in sorted(metrics)
    ]
    return [*lines, ""]


if __name__ == "__main__":
    target = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    target.write_text(document(), encoding="utf-8")
    print(f"wrote {target}")
