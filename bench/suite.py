"""All benches in one run, and the page that is made of it: `python -m bench all --out docs/benchmarks.md`.

Each bench runs by itself, one after the other, with the arguments of suite.toml, and gives its tables, its chart and
what was promised of it. The page is benchmarks.md.in with these put in; what bounds a figure that was not reached is
told from suite.toml, only where it was not. Nothing else on the page is written by hand.

Always true: a bench that fails is named on the page with its error, and the exit code says so.
"""

import argparse
import json
import re
import textwrap
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.chart import draw
from bench.report import Bench, Report, Say, Shown, Table, as_dict

HELP: Final = "all benches one after the other (about 25 minutes), and docs/benchmarks.md made of them"
BEGIN: Final = "<!-- bench: begin -->"
END: Final = "<!-- bench: end -->"
_HERE: Final = Path(__file__).resolve().parent


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the suite."""
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks.md"), metavar="FILE", help="the page")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="for charts (default: benchmarks/ beside the page)")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the short form between this file's marks too")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="all figures, as JSON")
    parser.add_argument("--only", default="", metavar="NAME,...", help="these benches only")
    parser.add_argument("--peers", default="all", metavar="PEER,...", help="of drain, latency, enqueue; or none")
    parser.add_argument("--small", action="store_true", help="at sizes that show nothing: a test of the suite itself")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the servers' files go (default: temporary)")


def run(options: argparse.Namespace, benches: Mapping[str, Bench], say: Say) -> int:
    """Run them and write the page; 0 if all could measure."""
    plan = tomllib.loads((_HERE / "suite.toml").read_text())
    names = list(filter(None, options.only.split(","))) or list(plan["run"])
    if unknown := [name for name in names if name not in benches]:
        raise SystemExit(f"unknown benches: {', '.join(unknown)}; there are {', '.join(benches)}")
    reports: dict[str, Report] = {}
    failed: dict[str, str] = {}
    began = time.monotonic()
    for name in names:
        words = list(plan["small" if options.small else "run"].get(name, "").split())
        if name in plan["peers"]["benches"] and options.peers != "none":
            words += ["--against", options.peers]
        if options.dir:
            words += ["--dir", str(options.dir)]
        say(f"\n== {name} {' '.join(words)}")
        parser = argparse.ArgumentParser(prog=name)
        benches[name].arguments(parser)
        try:
            reports[name] = benches[name].run(parser.parse_args(words), say)
        except (Exception, SystemExit) as error:  # one bench that cannot measure does not end the others
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            say(f"{name} failed: {failed[name]}")
        else:
            say(reports[name].line)
    _write(options, plan, reports, failed, time.monotonic() - began)
    say(f"\nwritten: {options.out} ({(time.monotonic() - began) / 60:.1f} minutes)")
    return 1 if failed else 0


def _write(
    options: argparse.Namespace, plan: dict[str, Any], reports: dict[str, Report], failed: dict[str, str], took_s: float
) -> None:
    charts = options.charts or options.out.parent / options.out.stem
    charts.mkdir(parents=True, exist_ok=True)
    sections = []
    for name, report in reports.items():
        text = [f"## {name}", "", plan["about"].get(name, ""), "", report.line, ""]
        for table in report.tables:
            text += [table.markdown(), ""]
        if report.chart is not None:
            file = charts / f"{name}.svg"
            draw(report.chart, file)
            text += [f"![{report.chart.title}]({file.relative_to(options.out.parent)})", ""]
        sections.append("\n".join(text))
    for name, error in failed.items():
        sections.append(f"## {name}\n\nIt could not measure: `{error}`\n")
    shown = [one for report in reports.values() for one in report.shown]
    first = next((report.figures for report in reports.values() if "machine" in report.figures), {})
    filled = (_HERE / "benchmarks.md.in").read_text()
    for word, value in {
        "machine": _machine(first),
        "minutes": f"{took_s / 60:.0f}",
        "promised": _promised(shown),
        "missed": _missed(shown, plan["bounds"]),
        "sections": "\n".join(sections),
    }.items():
        filled = filled.replace("{{" + word + "}}", value)
    options.out.write_text(filled.rstrip() + "\n")
    if options.readme:
        options.readme.write_text(_between_marks(options.readme.read_text(), _short_form(reports)))
    if options.figures:
        everything = {name: as_dict(name, report) for name, report in reports.items()}
        options.figures.write_text(json.dumps({"figures": everything, "failed": failed}, indent=2, default=str) + "\n")


def _short_form(reports: dict[str, Report]) -> str:
    """A line for each bench; what is said of the machine is said once, by whoever has the marks."""
    said = []
    for name, report in reports.items():
        told = re.sub(r"[;(,] ?[0-9]+ cores shared with [^)]*\)", ")", report.line.removeprefix(f"{name}: "))
        words = f"* **{name}**: {told.replace(' ()', '').replace(' )', '')}. `python -m bench {name}`"
        said.append(textwrap.fill(words, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    return "\n".join(said)


def _between_marks(text: str, short: str) -> str:
    before, began, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (began and ended):
        raise SystemExit(f"--readme: the file has no marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{short}\n{END}{after}"


def _promised(shown: list[Shown]) -> str:
    rows = [(one.figure, one.wanted, one.measured, "yes" if one.reached else "**no**") for one in shown]
    return Table("", ("figure", "wanted", "measured", "reached"), rows).markdown() if rows else "Nothing was measured."


def _missed(shown: list[Shown], bounds: dict[str, str]) -> str:
    missed = [one for one in shown if not one.reached]
    if not missed:
        return "Every figure was reached."
    unsaid = "Nobody has said yet what bounds it."
    return "\n".join(
        f"* **{one.figure}** ({one.wanted}): {one.measured}. {bounds.get(one.key, unsaid)}" for one in missed
    )


def _machine(figures: dict[str, Any]) -> str:
    found, shown = figures.get("machine", {}), figures.get("postgresql", {})
    facts = [f"{key}: {value}" for key, value in {**found, **shown}.items()]
    return "\n".join(f"* {fact}" for fact in facts) or "* not known"
