"""The Kubernetes manifests: valid, safe, and consistent with the service that they run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor import grace
from supervisor.grace import needed_s
from supervisor.settings import unknown_variables, variable
from tests.deploy import shipped
from tests.deploy.shipped import COMPONENTS, KUBERNETES, OVERLAYS, ROOT, Manifest, of_kind, render
from tests.support.database import Database

# Kinds that come with operators; Kubernetes itself has no schema for them.
RELAY = "supervisor-relay"
CUSTOM = {"PodMonitor", "ServiceMonitor", "ScaledObject", "TriggerAuthentication"}


@pytest.fixture(params=[*OVERLAYS, *(f"small+{name}" for name in COMPONENTS)])
def manifests(request: pytest.FixtureRequest, tmp_path: Path) -> list[Manifest]:
    overlay, _, component = request.param.partition("+")
    if component:
        return render(shipped.with_component(tmp_path, component))
    return render(ROOT / KUBERNETES / "overlays" / overlay)


def test_each_overlay_and_component_is_valid(manifests: list[Manifest], tmp_path: Path) -> None:
    standard = [one for one in manifests if one["kind"] not in CUSTOM]
    page = tmp_path / "rendered.yaml"
    page.write_text(yaml.safe_dump_all(standard))
    shipped.run(shipped.tool("kubernetes-validate"), "--strict", "--quiet", "-k", "1.37", page)
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(names) == len(set(names))


def test_checkov_finds_nothing_that_is_not_excused(tmp_path: Path) -> None:
    for overlay in OVERLAYS:
        text = yaml.safe_dump_all(render(ROOT / KUBERNETES / "overlays" / overlay))
        (tmp_path / f"{overlay}.yaml").write_text(text)
    for component in COMPONENTS:
        text = yaml.safe_dump_all(render(shipped.with_component(tmp_path, component)))
        (tmp_path / f"{component}.yaml").write_text(text)
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    said = shipped.run(shipped.tool("checkov"), "--config-file", ROOT / "deploy" / "checkov.yaml", "-d", tmp_path)
    assert "Passed checks" in said


def test_hadolint_finds_nothing() -> None:
    shipped.run(shipped.tool("hadolint"), ROOT / "Dockerfile")


def test_no_secret_is_part_of_what_is_applied(manifests: list[Manifest]) -> None:
    assert not [one["metadata"]["name"] for one in manifests if one["kind"] == "Secret"]


def test_each_probe_asks_the_right_question(manifests: list[Manifest]) -> None:
    """B44: a database that is away makes pods unready, and restarts none of them."""
    [container] = of_kind(manifests, "Deployment", "supervisor")["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"] <= 10


def test_the_relay_is_off_until_its_component_turns_it_on(tmp_path: Path) -> None:
    """Without a broker there is nothing to wait for; with one, relays share the work and one may go."""
    for overlay in OVERLAYS:
        assert of_kind(render(ROOT / KUBERNETES / "overlays" / overlay), "Deployment", RELAY)["spec"]["replicas"] == 0
    manifests = render(shipped.with_component(tmp_path, "relay"))
    assert of_kind(manifests, "Deployment", RELAY)["spec"]["replicas"] == 2
    assert of_kind(manifests, "PodDisruptionBudget", RELAY)["spec"]["maxUnavailable"] == 1
    policy = of_kind(manifests, "NetworkPolicy", "supervisor-broker")["spec"]
    assert 4222 in [port["port"] for rule in policy["egress"] for port in rule["ports"]]


def test_a_relay_is_probed_as_its_page_answers_and_given_the_time_of_its_drain(manifests: list[Manifest]) -> None:
    """B44 for relays: a broker or a database that is away restarts none."""
    pod = of_kind(manifests, "Deployment", RELAY)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    service = shipped.stop_of_manifests("rendered", manifests)
    assert pod["terminationGracePeriodSeconds"] >= service.drain_s + grace.GOODBYE_S
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["volumes"]}


def test_selectors_find_the_pods_and_ports_they_are_for(manifests: list[Manifest]) -> None:
    pods = [one["spec"]["template"] for one in manifests if one["kind"] in {"Deployment", "Job"}]

    def chosen(selector: dict[str, Any]) -> list[Any]:
        wanted = selector.get("matchLabels", selector).items()
        return [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]

    for one in manifests:
        spec = one.get("spec", {})
        if one["kind"] in {"Service", "PodDisruptionBudget", "PodMonitor", "Deployment"}:
            [pod] = chosen(spec["selector"])
            ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
            named = {port.get("targetPort") for port in spec.get("ports", [])}
            named |= {port["port"] for port in spec.get("podMetricsEndpoints", [])}
            assert named <= ports, one["metadata"]["name"]
        if one["kind"] == "NetworkPolicy":
            assert chosen(spec["podSelector"])
        if one["kind"] == "ServiceMonitor":
            [service] = [
                other
                for other in manifests
                if other["kind"] == "Service"
                and spec["selector"]["matchLabels"].items() <= other["metadata"]["labels"].items()
            ]
            assert {end["port"] for end in spec["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}


def test_each_variable_that_is_set_is_a_setting(manifests: list[Manifest]) -> None:
    names = set()
    for one in manifests:
        if one["kind"] == "ConfigMap":
            names |= one["data"].keys()
        if one["kind"] in {"Deployment", "Job"}:
            names |= {e["name"] for c in one["spec"]["template"]["spec"]["containers"] for e in c["env"]}
    assert names
    assert [name for name in names if not shipped.is_setting(name)] == []
    assert unknown_variables(dict.fromkeys(names, "")) == []


def test_the_grace_of_each_overlay_covers_hook_drain_and_putting_back(manifests: list[Manifest]) -> None:
    """B07: what the pod is given, what the service is told, and what a drain needs."""
    assert list(shipped.stop_of_manifests("rendered", manifests).problems()) == []


def test_the_grace_of_the_compose_file_covers_the_drain() -> None:
    """B07."""
    assert list(shipped.stop_of_compose(shipped.compose()).problems()) == []
    drain = variable("drain_timeout_s")
    [problem] = shipped.stop_of_compose(shipped.compose({drain: "60"})).problems()
    assert f"{needed_s(60):g}" in problem


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_drain_limit_above_the_grace_does_not_pass_the_check(overlay: str, tmp_path: Path) -> None:
    """B07: whoever raises one of the two alone is told, with the numbers."""
    shutil.copytree(ROOT / KUBERNETES, tmp_path / "kubernetes")
    place = tmp_path / "kubernetes" / "overlays" / overlay
    settings = place / "settings.env"
    if not settings.exists():
        settings = tmp_path / "kubernetes" / "base" / "settings.env"
    lines = [
        "SUPERVISOR_DRAIN_TIMEOUT_S=100" if line.startswith("SUPERVISOR_DRAIN_TIMEOUT_S=") else line
        for line in settings.read_text().splitlines()
    ]
    settings.write_text("\n".join(lines) + "\n")
    [problem] = shipped.stop_of_manifests(overlay, render(place)).problems()
    assert "100 s" in problem
    assert f"to {needed_s(100):g}" in problem


def test_the_query_of_the_scaler_is_the_age_of_the_oldest_due_job(db: Database, tmp_path: Path) -> None:
    scaler = of_kind(render(shipped.with_component(tmp_path, "scale-keda-postgres")), "ScaledObject")
    [trigger] = scaler["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert db.value(query) == 0
    for queue, since in (("a", "40 s"), ("b", "90 s"), ("b", "-1 h")):
        db.execute(
            "select supervisor.enqueue('x', queue => %s, headers => jsonb_build_object('q', %s::text))", (queue, since)
        )
    db.execute("update supervisor.job set run_at = now() - (headers ->> 'q')::interval")
    db.execute("select supervisor.discover()")
    assert db.value(query) == pytest.approx(90, abs=20)
