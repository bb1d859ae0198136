"""The files that people read and copy agree with each other and with the service."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from supervisor.settings import unknown_variables
from tests.deploy import shipped
from tests.deploy.shipped import ROOT

COMPOSE = (ROOT / "compose.yaml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def example() -> dict[str, str]:
    lines = [line for line in EXAMPLE.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_example_names_each_variable_of_the_compose_file_with_its_default() -> None:
    variables = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))
    assert {name: example().get(name) for name in variables} == variables


def test_each_setting_in_the_example_exists() -> None:
    settings = [name for name in example() if name.startswith("SUPERVISOR_")]
    assert [name for name in settings if not shipped.is_setting(name)] == []
    assert unknown_variables(example()) == []


def test_ports_are_published_on_loopback_and_images_have_tags() -> None:
    services = shipped.compose()["services"]
    ports = [port for one in services.values() for port in one.get("ports", [])]
    assert len(ports) == 3
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    images = {one["image"] for one in services.values()}
    assert [
        image for image in images if not re.fullmatch(r"[\w/.-]+:[\w.-]+", image) or image.endswith(":latest")
    ] == []


def test_no_service_of_ours_may_write_or_gain_rights() -> None:
    ours = [one for one in shipped.compose()["services"].values() if "build" in one]
    assert len(ours) == 4
    for one in ours:
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert not [name for name in one["environment"] if re.search("URL$|PASSWORD$|TOKEN$", name)]


def test_the_images_label_is_the_version_of_the_project() -> None:
    assert f"ARG VERSION={PROJECT['version']}\n" in DOCKERFILE
    images = [
        image
        for overlay in shipped.OVERLAYS
        for image in yaml.safe_load(
            (ROOT / shipped.KUBERNETES / "overlays" / overlay / "kustomization.yaml").read_text()
        )["images"]
    ]
    assert {str(image["newTag"]) for image in images} == {PROJECT["version"]}


def test_the_dockerfile_needs_no_frontend_from_elsewhere_and_runs_as_a_number() -> None:
    assert "syntax=" not in DOCKERFILE
    assert "@sha256" not in DOCKERFILE
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    assert re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", DOCKERFILE, re.MULTILINE) == ['["supervisor"]', '["run"]']


@pytest.mark.parametrize("extras", ["", "webhook", "dashboard,webhook"])
def test_what_the_image_installs_is_what_the_project_names(extras: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "requirements.py", extras], capture_output=True, text=True, check=True
    )
    wanted = list(PROJECT["dependencies"])
    for name in filter(None, extras.split(",")):
        wanted += PROJECT["optional-dependencies"][name]
    assert done.stdout.splitlines() == wanted


def test_an_extra_that_is_not_there_is_named_with_those_that_are() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "requirements.py", "dashbord"], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "'dashbord' is not an extra of pg-supervisor: choose from " in done.stderr
    assert ", dashboard, " in done.stderr


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as they are made for links."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_the_operations_page_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", OPERATIONS)
    assert len(links) > 10
    for path, anchor in links:
        page = (ROOT / "docs" / path) if path else ROOT / "docs" / "operations.md"
        assert page.exists(), path
        assert not anchor or anchor in anchors(page.read_text(encoding="utf-8")), anchor


def test_settings_that_the_operations_page_names_exist() -> None:
    named = set(re.findall(r"SUPERVISOR_[A-Z_]+", OPERATIONS))
    assert [name for name in sorted(named) if not shipped.is_setting(name)] == []


def test_metrics_that_scalers_and_the_operations_page_ask_for_exist() -> None:
    known = set(
        re.findall(r"^\| `(supervisor_\w+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    scalers = [path.read_text(encoding="utf-8") for path in (ROOT / shipped.KUBERNETES).rglob("*.yaml")]
    asked = set(re.findall(r"\((supervisor_\w+)", "".join(scalers)))
    assert len(asked) == 1
    named = asked | set(re.findall(r"`(supervisor_\w+)", OPERATIONS))
    assert sorted(named - known) == []


def test_the_pages_sum_of_the_grace_is_the_services() -> None:
    from supervisor import grace

    numbers = [grace.HOOK_START_S, grace.KILL_AFTER_DRAIN_S, grace.SETTLE_S, grace.END_S]
    assert f"{sum(numbers):g} s longer" in EXAMPLE
    told = re.search(r"^grace >= (.*)$", OPERATIONS, re.MULTILINE)
    assert told
    assert [float(number) for number in re.findall(r"(?<!\w)\d+(?:\.\d+)?", told[1])] == numbers


def test_each_alert_has_its_place_on_the_operations_page_and_no_other_has() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "supervisor.rules.yml").read_text(encoding="utf-8"))
    alerts = {rule["alert"]: rule["annotations"]["runbook"] for group in rules["groups"] for rule in group["rules"]}
    entries = set(re.findall(r"^### (\w+)$", OPERATIONS.partition("\n## Alerts\n")[2], re.MULTILINE))
    assert entries == alerts.keys()
    assert alerts == {name: f"docs/operations.md#{name.lower()}" for name in alerts}


def test_grafana_is_given_the_prometheus_and_the_dashboards_that_compose_mounts() -> None:
    services = shipped.compose()["services"]
    mounts = dict(mount.removesuffix(":ro").rsplit(":", 1)[::-1] for mount in services["grafana"]["volumes"])
    provisioning = ROOT / mounts["/etc/grafana/provisioning"]
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "supervisor.yml").read_text())["providers"]
    assert list((ROOT / mounts[provider["options"]["path"]]).glob("*.json"))
    config = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yml").read_text())
    assert config["rule_files"] == ["/etc/prometheus/rules/*.rules.yml"]
    rules = dict(mount.removesuffix(":ro").rsplit(":", 1)[::-1] for mount in services["prometheus"]["volumes"])
    assert list((ROOT / rules["/etc/prometheus/rules"]).glob("*.rules.yml"))


def test_the_page_of_the_tests_names_tests_that_exist_and_leaves_no_file_out() -> None:
    """Files of one room (unit/) are found by its name; the others by what they promise."""
    tests = ROOT / "tests"
    promises = (tests / "README.md").read_text(encoding="utf-8").split("## Behaviours")[1]
    named, file = set(), ""
    for found, test in re.findall(r"`((?:\w+/)?test_\w+\.py|)(?:::(test_\w+))?`", promises):
        file = found or file
        if file:
            named.add(file)
            assert not test or f"def {test}(" in (tests / file).read_text(encoding="utf-8"), f"{file}::{test}"
    whole = set(re.findall(r"`(\w+)/?`", promises)) | {"unit"}
    files = {path.relative_to(tests) for path in tests.glob("*/test_*.py")}
    assert [str(path) for path in sorted(files) if str(path) not in named and path.parts[0] not in whole] == []
