"""The shipped alert rules and dashboard: valid, tested one by one, and of metrics that exist."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from supervisor.metrics.__main__ import document
from supervisor.metrics.facts import FACTS
from supervisor.metrics.numbers import Metrics
from tests.support.prometheus import tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "supervisor.rules.yml"
TESTS = ROOT / "deploy" / "prometheus" / "tests" / "alerts.test.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "supervisor.json"
OF_THE_CLIENT = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Every panel that shows something."""
    found: list[dict[str, Any]] = [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] != "row"]
    return found


def expressions() -> list[str]:
    """All there are, of alerts and panels."""
    return [rule["expr"] for rule in alerts()] + [target["expr"] for one in panels() for target in one["targets"]]


def described() -> dict[str, tuple[str, ...]]:
    """Every sample's name with the labels it has."""
    known = {one.name: one.labels for one in FACTS.values()}
    for one in Metrics().described:
        if one.type == "histogram":
            known |= {f"{one.name}_bucket": (*one.labels, "le")}
            known |= {f"{one.name}_{part}": one.labels for part in ("sum", "count")}
        else:
            known[one.name] = one.labels
    return known


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_on_metrics_is_what_the_metrics_say() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == document(), "run `python -m supervisor.metrics`"


def test_rules_and_configuration_are_valid() -> None:
    run(tool("promtool"), "check", "rules", str(RULES))
    run(tool("promtool"), "check", "config", str(ROOT / "deploy" / "prometheus" / "prometheus.yml"))


def test_each_alert_fires_when_it_should_and_is_silent_when_it_should_not() -> None:
    assert "SUCCESS" in run(tool("promtool"), "test", "rules", str(TESTS))


def test_each_alert_is_tested_both_ways_and_says_what_to_do() -> None:
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    assert set(names) == fired == silent
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description", "runbook"} <= rule["annotations"].keys()
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_each_alert_has_its_place_in_the_operations_page() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert {rule["alert"] for rule in alerts()} <= {heading.strip("` ") for heading in headings}


def test_every_name_and_label_in_use_exists() -> None:
    known = described()
    for expression in expressions():
        for name, matchers in re.findall(r"\b((?:supervisor|process)_[a-z_]+)\s*(?:\{([^}]*)\})?", expression):
            assert name in known or name in OF_THE_CLIENT, f"{name} in {expression}"
            labels = set(re.findall(r"(\w+)\s*[=!]~?\s*\"", matchers)) - {"job", "instance"}
            assert labels <= set(known.get(name, ())), f"{labels} of {name} in {expression}"


def test_every_metric_is_on_the_dashboard() -> None:
    """A number that nobody sees is of no use: where one is left out of it, say why here."""
    shown = " ".join(target["expr"] for one in panels() for target in one["targets"])
    missing = {name for name in described() if name not in shown}
    assert {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in missing} <= {
        # Of histograms the buckets or the sums are enough.
        one.name
        for one in Metrics().described
        if one.type == "histogram"
    }


def test_the_dashboard_can_be_read_by_people() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert {"instance", "queue"} <= {variable["name"] for variable in dashboard["templating"]["list"]}
    assert len({one["id"] for one in dashboard["panels"]}) == len(dashboard["panels"])
    for one in panels():
        assert one["title"], one
        assert one["description"].endswith("."), one["title"]
        assert one["datasource"]["uid"] == "${datasource}"
    taken: set[tuple[int, int]] = set()
    for one in dashboard["panels"]:
        place = one["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{one['title']} lies over another"
        assert place["x"] + place["w"] <= 24
        taken |= cells
