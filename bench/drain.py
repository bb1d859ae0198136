"""How fast a backlog of no-op jobs empties, and what a job costs: processor time and WAL.

A round of the service: a fresh migrated database; `supervisor run` is started and waits, ready and idle; a checkpoint;
all jobs are committed at once (one COPY by enqueue_many); the clock runs from the commit to the empty queue, wake-up
and last acknowledgement included. A round of a bare loop or a peer: the same database server, as many jobs, its own
workers; the clock runs from its first handler's start to its last one's. So what is compared is never favoured by it.

Plain SQL is pgbench.py: the ceiling for anything that does its work through two commits per batch of 50. Processor time
is that of the round, and WAL what the server wrote in it; adding the jobs is in neither ("whole" has both in).
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import psycopg

from bench import parts, pgbench
from bench.ground import Ground, in_turns, opened, place, row, until
from bench.jobs import noop
from bench.peers.crew import Crew, tell
from bench.peers.env import Installed, PeerMissing, install
from bench.peers.registry import OTHERS, PEERS
from bench.report import Chart, Report, Say, Shown, Table
from bench.server import BenchServer
from bench.service import BenchService
from bench.stats import Summary, readable
from supervisor.settings import PREFETCH_SHORT

HELP: Final = "how fast workers empty a backlog of no-op jobs, and what a job costs"
NOTE: Final = "x" * 100
ROUND_DEADLINE_S: Final = 120.0
PEER_DEADLINE_S: Final = 60.0
BARE: Final = "service"
KEEPING: Final = "service, history"
PLAIN: Final = "plain SQL"
_POLL_S: Final = 0.01
_PARTS_OF: Final = 400
_PARTS_ROUNDS: Final = 60
# What a slow peer's round is cut to, so that it ends: figures are rates.
_SLOW: Final = {"procrastinate": 2_000, "oban": 10_000}


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        cpu_us: Processor time per job in microseconds, by whom.
        wal_bytes: Written per job while the queue was emptied.
        wal_whole: The same with adding the jobs.
    """

    jobs: int
    seconds: float
    cpu_us: dict[str, float]
    wal_bytes: float
    wal_whole: float

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--jobs", type=int, metavar="N", help="jobs per round (default: 50000, or 100000 if --full)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="workers (default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, default=10, metavar="N", help="jobs a worker runs at once (default: %(default)s)"
    )
    parser.add_argument("--prefetch", type=int, metavar="N", help="jobs claimed beyond these (default: the service's)")
    parser.add_argument(
        "--history", choices=("on", "off", "both"), default="both", help="of the service (default: %(default)s)"
    )
    against(parser)
    place(parser)


def at_once(settings: Mapping[str, int]) -> int:
    """The most jobs that one claim takes with these settings."""
    return settings["concurrency"] + settings.get("prefetch", PREFETCH_SHORT)


def against(parser: argparse.ArgumentParser) -> None:
    """The option that names peers."""
    parser.add_argument(
        "--against", default="", metavar="PEER,...", help=f"peers to run beside it: {', '.join(OTHERS)}; or all"
    )


def peers(options: argparse.Namespace, say: Say) -> dict[str, Installed]:
    """The bare loop and the peers asked for, installed; those that cannot be are told and left out."""
    names = OTHERS if options.against == "all" else tuple(filter(None, options.against.split(",")))
    if unknown := [name for name in names if name not in OTHERS]:
        raise SystemExit(f"unknown peers: {', '.join(unknown)}; there are {', '.join(OTHERS)}")
    found = {}
    for name in ("bare", *names):
        try:
            found[name] = install(PEERS[name], say)
        except PeerMissing as missing:
            if name == "bare":
                raise SystemExit(str(missing)) from None
            say(f"left out: {missing}")
    return found


def run(options: argparse.Namespace, say: Say) -> Report:
    """Measure everybody in turns."""
    settings = {"processes": options.processes, "concurrency": options.concurrency}
    if options.prefetch is not None:
        settings["prefetch"] = options.prefetch
    jobs = options.jobs or (100_000 if options.full else 50_000)
    kept = {"on": [KEEPING], "off": [BARE], "both": [BARE, KEEPING]}[options.history]
    others = peers(options, say)
    with opened(options, say) as ground:
        measure = {
            **{name: partial(_service, ground, jobs, settings, name == KEEPING) for name in kept},
            **{name: partial(_peer, ground, jobs, other) for name, other in others.items()},
            PLAIN: partial(_plain, ground, jobs),
        }

        def one(name: str, number: int) -> Round:
            found = _tried(name, partial(measure[name], f"drain_{number}"), again=name in others, say=say)
            say(f"round {number}: {name} {readable(found.rate)} jobs/s ({found.seconds:.2f} s)")
            return found

        rounds = in_turns(list(measure), options.rounds, one)
        with ground.database("parts") as url:
            made_of = parts.measure(url, min(_PARTS_OF, jobs), _PARTS_ROUNDS)
        return _report(ground, rounds, made_of, {**settings, "jobs": jobs}, others, say)


def _tried(name: str, measure: Callable[[], Round], *, again: bool, say: Say) -> Round:
    """A peer may hang now and then, computing for ever: then its round is taken once more."""
    try:
        return measure()
    except RuntimeError as error:
        if not again:
            raise
        say(f"{name} once more: {error}")
        return measure()


def _service(ground: Ground, jobs: int, settings: dict[str, int], history: bool, database: str) -> Round:
    with (
        ground.database(database) as url,
        psycopg.connect(url, autocommit=True) as watch,
        psycopg.connect(url) as conn,
        BenchService(url, **settings, **({} if history else {"keep_history_days": 0})) as service,
    ):
        # Until it says that it waits, enqueueing would not wake it.
        until(watch, service, "select exists (select from supervisor.waiting)", 30)
        # A checkpoint afterwards would have each page of the queue written to the WAL once more, in whole.
        watch.execute("checkpoint")
        start = _wal(watch)
        noop.enqueue_many(conn, [{"n": n, "note": NOTE} for n in range(jobs)])
        last = row(conn, "select max(id) from supervisor.job")[0]
        before, written = _cpu(ground.server, service), _wal(watch)
        began = time.monotonic()
        conn.commit()
        # Asking for one row by its id costs next to nothing; whether any is left is asked once that one is gone.
        until(
            watch,
            service,
            f"select not exists (select from supervisor.job where id = {last})",
            ROUND_DEADLINE_S,
            _POLL_S,
        )
        until(watch, service, "select not exists (select from supervisor.job)", ROUND_DEADLINE_S, _POLL_S)
        seconds = time.monotonic() - began
        after, ended = _cpu(ground.server, service), _wal(watch)
        if history and (count := row(watch, "select count(distinct id) from supervisor.history")[0]) != jobs:
            raise RuntimeError(f"{jobs} jobs were enqueued and {count} are in the history: nothing was measured")
    return Round(jobs, seconds, _spent(before, after, jobs), (ended - written) / jobs, (ended - start) / jobs)


def _peer(ground: Ground, jobs: int, peer: Installed, database: str) -> Round:
    jobs = min(jobs, _SLOW.get(peer.peer.name, jobs))
    with ground.database(database, schema=False) as url, psycopg.connect(url, autocommit=True) as watch:
        tell(peer, "setup", url)
        watch.execute("checkpoint")
        start = _wal(watch)
        calls, most = -(-jobs // peer.peer.bulk), min(jobs, peer.peer.bulk)
        tell(peer, "fill", url, most, calls)
        jobs = most * calls
        watch.execute("analyze")
        with Crew(
            peer, url, processes=peer.peer.processes, concurrency=peer.peer.concurrency, mode="drain"
        ) as crew:  # fmt: skip
            before = {"workers": crew.cpu_s(), "server": ground.server.cpu_s()}
            written = _wal(watch)
            crew.go()
            seconds = crew.drained(jobs, PEER_DEADLINE_S)
            until(watch, None, peer.peer.left.replace("count(*)", "count(*) = 0"), 30, 0.05)
            after = {"workers": crew.cpu_s(), "server": ground.server.cpu_s()}
            ended = _wal(watch)
    return Round(jobs, seconds, _spent(before, after, jobs), (ended - written) / jobs, (ended - start) / jobs)


def _plain(ground: Ground, jobs: int, database: str) -> Round:
    with ground.database(database, schema=False) as url, psycopg.connect(url, autocommit=True) as watch:
        watch.execute("checkpoint")
        start = _wal(watch)
        pgbench.fill(url, noop.kind, noop.encode(n=0, note=NOTE), jobs)
        before, written = {"server": ground.server.cpu_s()}, _wal(watch)
        drained = pgbench.drain(ground.server, database, jobs)
        after, ended = {"server": ground.server.cpu_s()}, _wal(watch)
    spent = _spent(before, after, drained.jobs)
    return Round(drained.jobs, drained.seconds, spent, (ended - written) / drained.jobs, (ended - start) / drained.jobs)


def _cpu(server: BenchServer, service: BenchService) -> dict[str, float]:
    return {**service.cpu_s(), "server": server.cpu_s()}


def _spent(before: dict[str, float], after: dict[str, float], jobs: int) -> dict[str, float]:
    return {who: round((after[who] - before[who]) / jobs * 1e6, 1) for who in after}


def _wal(conn: psycopg.Connection[Any]) -> int:
    return int(row(conn, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0])


def _report(
    ground: Ground, rounds: dict[str, list[Round]], made_of: parts.Found, settings: dict[str, int],
    others: dict[str, Installed], say: Say,
) -> Report:  # fmt: skip
    rates = {name: Summary.of([one.rate for one in found]) for name, found in rounds.items()}
    cpu = {
        name: {who: Summary.of([one.cpu_us[who] for one in found]).median for who in found[0].cpu_us}
        for name, found in rounds.items()
    }
    wal = {name: Summary.of([one.wal_bytes for one in found]).median for name, found in rounds.items()}
    whole = {name: Summary.of([one.wal_whole for one in found]).median for name, found in rounds.items()}
    ours: list[str] = [name for name in (BARE, KEEPING) if name in rounds]
    ratios = {
        name: {other: _ratio(rounds[name], rounds[other]) for other in rounds if other not in ours} for name in ours
    }
    table = Table(
        "drain",
        ("", "jobs/s", "spread", "us workers", "us server", "WAL B", "with adding", *(f"{name} is" for name in ours)),
        [
            (
                f"{name} {others[name].version}" if name in others and name != "bare" else name,
                readable(rates[name].median),
                f"{readable(rates[name].low)}-{readable(rates[name].high)}",
                readable(cpu[name]["workers"]) if "workers" in cpu[name] else "-",
                readable(cpu[name]["server"]),
                f"{wal[name]:,.0f}",
                f"{whole[name]:,.0f}",
                *(f"{ratios[one][name].median:.2f} x" if name in ratios[one] else "-" for one in ours),
            )
            for name in rounds
        ],
    )
    say(table.markdown())
    profile = _parts(made_of)
    say(profile.markdown())
    for name in ours:
        say(f"{name}: the parent {readable(cpu[name]['parent'])} us per job")
    first = ours[-1]
    line = (
        f"drain: {readable(rates[first].median)} jobs/s ({readable(rates[first].low)}-{readable(rates[first].high)} in "
        f"{rates[first].rounds} rounds), {ratios[first]['bare'].median:.2f} x a bare asyncpg loop, "
        f"{ratios[first][PLAIN].median:.2f} x plain SQL by pgbench ({settings['processes']} workers, no-op jobs, "
        f"history {'on' if first == KEEPING else 'off'}, up to {at_once(settings)} jobs a claim; "
        f"{ground.where()})"
    )
    chart = Chart(
        "drain", "jobs/s", "bars",
        {name: [one.median] for name, one in rates.items()},
        spread={name: (one.low, one.high) for name, one in rates.items()},
    )  # fmt: skip
    figures = {
        **ground.facts(),
        "settings": settings,
        "jobs_per_s": {name: one.as_dict() for name, one in rates.items()},
        "cpu_us_per_job": cpu,
        "wal_bytes_per_job": {name: round(value) for name, value in wal.items()},
        "wal_bytes_per_job_with_adding": {name: round(value) for name, value in whole.items()},
        "ratios": {name: {other: one.as_dict() for other, one in found.items()} for name, found in ratios.items()},
        "versions": {name: one.version for name, one in others.items()},
        "rounds": {name: [asdict(one) for one in found] for name, found in rounds.items()},
        "parts_us": {"worker": made_of.worker, "server": made_of.server},
    }
    return Report(line, figures, [table, profile], chart, _shown(ratios, cpu, wal))


def _parts(found: parts.Found) -> Table:
    """What a job takes, part by part, where nothing else runs."""
    sums = (sum(us for part, us in found.worker.items() if part != "task"), sum(found.server.values()))
    return Table(
        "what a job is made of",
        ("part, alone on the machine", "us worker", "us server"),
        [
            *(
                (part, f"{us:.2f}", f"{found.server[part]:.2f}" if part in found.server else "")
                for part, us in found.worker.items()
                if part != "task"
            ),
            ("of run: an empty task", f"{found.worker['task']:.2f}", ""),
            ("together", f"{sums[0]:.2f}", f"{sums[1]:.2f}"),
        ],
    )


def _ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> Summary:
    """Round by round: the two of a round ran within seconds of each other."""
    return Summary.of([one.rate / other.rate for one, other in zip(ours, theirs, strict=True)])


def _shown(
    ratios: dict[str, dict[str, Summary]], cpu: dict[str, dict[str, float]], wal: dict[str, float]
) -> list[Shown]:
    shown = []
    wanted = {
        BARE: {"graphile-worker": 1.2, "bare": 0.75},
        KEEPING: {"pg-boss": 1.3, "pgqueuer": 1.5, "oban": 5.0, "procrastinate": 35.0},
    }
    for name, least in wanted.items():
        figure = "drain with history kept" if name == KEEPING else "drain without history"
        for other, factor in least.items():
            found = ratios.get(name, {}).get(other)
            if found is not None:
                whom = "the bare asyncpg loop" if other == "bare" else other
                shown.append(
                    Shown(
                        f"drain-{other}", figure, f">= {factor:g} x {whom}",
                        f"{found.median:.2f} x ({found.low:.2f}-{found.high:.2f})", found.median >= factor,
                    )
                )  # fmt: skip
    if BARE in cpu:
        for who, most in (("workers", 15), ("server", 20)):
            spent = cpu[BARE][who]
            figure = f"CPU per no-op job, {who} (no history)"
            shown.append(Shown(f"cpu-{who}", figure, f"<= {most} us", f"{readable(spent)} us", spent <= most))
    for name, most in ((BARE, 350), (KEEPING, 800)):
        if name in wal:
            figure = f"WAL per job{' with history' if name == KEEPING else ''}"
            key = "wal-history" if name == KEEPING else "wal"
            shown.append(Shown(key, figure, f"<= {most} B", f"{wal[name]:.0f} B", wal[name] <= most))
    return shown
