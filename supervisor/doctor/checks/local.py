"""Checks of the settings and of this machine; they need no database."""

from collections.abc import Iterable
from pathlib import Path

from supervisor import grace
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, warning
from supervisor.settings import unknown_variables
from supervisor.wording import length


async def settings(look: Look) -> Iterable[Verdict]:
    """Settings against each other, beyond what refuses a start, and names that look misspelt."""
    chosen = look.settings
    found = [warning(line, "correct its name, or unset it") for line in unknown_variables()]
    if chosen.statement_timeout_s > chosen.lease_s:
        found.append(
            warning(
                f"a statement may take {chosen.statement_timeout_s:g} s and a lease lasts {chosen.lease_s:g} s: "
                "results may come when their lease has passed, and the jobs run twice",
                f"set SUPERVISOR_STATEMENT_TIMEOUT_S to {chosen.lease_s / 2:g} or raise SUPERVISOR_LEASE_S",
            )
        )
    if chosen.retry_cap_s > chosen.keep_dead_days * 86400:
        found.append(
            note(
                f"retries may be {length(chosen.retry_cap_s)} apart, longer than dead jobs are kept "
                f"({chosen.keep_dead_days} d)",
                "lower SUPERVISOR_RETRY_CAP_S if that is not meant",
            )
        )
    if chosen.database_url is None:
        found.append(
            note(
                "no address is set: the embedded PostgreSQL is used, which is meant for development",
                "set SUPERVISOR_DATABASE_URL for a service that others use",
            )
        )
    if not chosen.wake:
        found.append(
            note(
                f"SUPERVISOR_WAKE is off: a job waits up to {chosen.poll_without_listen_s:g} s to be found",
                "set SUPERVISOR_WAKE=true for jobs that start within milliseconds",
            )
        )
    return found or [ok("the settings fit together")]


async def drain(look: Look) -> Iterable[Verdict]:
    """The drain against the platform's patience."""
    chosen = look.settings
    needed = grace.needed_s(chosen.drain_timeout_s)
    if chosen.termination_grace_s is None:
        return [
            note(
                f"a stop may take {needed:g} s (a drain of {chosen.drain_timeout_s:g} s with what comes before and "
                "after it); what the platform allows is not known here",
                f"set SUPERVISOR_TERMINATION_GRACE_S to the platform's grace, at least {needed:g}",
            )
        ]
    short = grace.shortage(chosen.drain_timeout_s, chosen.termination_grace_s)
    if short:
        what, _, remedy = short.partition(". ")
        return [warning(what, remedy)]
    return [ok(f"the platform waits {chosen.termination_grace_s:g} s, a stop takes at most {needed:g} s")]


async def memory(look: Look) -> Iterable[Verdict]:
    """What workers may grow to against the limit of this container."""
    chosen, limit = look.settings, memory_limit_mb(look.cgroup)
    if limit is None:
        return [ok("no memory limit is set for this container")]
    if chosen.max_rss_mb is None:
        return [
            note(
                f"this container may use {limit} MiB and SUPERVISOR_MAX_RSS_MB is not set: a worker that leaks ends "
                "by the kernel's hand, and costs the job it runs a crash",
                f"set SUPERVISOR_MAX_RSS_MB to at most {max(1, limit // (chosen.processes + 1))}",
            )
        ]
    growth = chosen.max_rss_mb * chosen.processes
    if growth >= limit:
        return [
            warning(
                f"{chosen.processes} workers may each grow by {chosen.max_rss_mb} MiB, {growth} MiB in all, and this "
                f"container may use {limit} MiB: the kernel kills before a worker is replaced",
                f"set SUPERVISOR_MAX_RSS_MB to at most {max(1, limit // (chosen.processes + 1))}, lower "
                "SUPERVISOR_PROCESSES, or raise the container's memory limit",
            )
        ]
    return [ok(f"{chosen.processes} workers may grow by {growth} MiB in all, of {limit} MiB")]


def memory_limit_mb(cgroup: Path) -> int | None:
    """The memory limit of this container in MiB; None where there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 2**60:  # version 1 says "none" by a number near 2^63
            return int(text) // 2**20
    return None
