"""The shipped files as what they become: rendered manifests, a compose file with its defaults filled in.

Always true: a grace and the drain limit it goes with are read from the same rendered thing, as the platform
would read them.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from supervisor import grace
from supervisor.settings import Settings, variable
from tests.support.tools import missing

ROOT: Final = Path(__file__).parents[2]
KUBERNETES: Final = Path("deploy/kubernetes")
OVERLAYS: Final = tuple(sorted(path.name for path in (ROOT / KUBERNETES / "overlays").iterdir()))
COMPONENTS: Final = tuple(sorted(path.name for path in (ROOT / KUBERNETES / "components").iterdir()))
Manifest = dict[str, Any]


def tool(name: str) -> str:
    """The path of a program of requirements.txt."""
    for place in (ROOT / ".venv-deploy" / "bin", Path(sys.executable).parent):
        if (place / name).exists():
            return str(place / name)
    missing(f"{name} is not there: run `make deploy-tools`")


def run(*command: str | os.PathLike[str], **options: Any) -> str:
    """The output of a tool; the test fails with all it said if it does not succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, **options)
    assert done.returncode == 0, f"{command[0]}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def render(place: Path) -> list[Manifest]:
    """What `kubectl apply -k` would send for a kustomization."""
    return [one for one in yaml.safe_load_all(run(tool("kubectl"), "kustomize", place)) if one]


def with_component(scratch: Path, component: str, root: Path = ROOT) -> Path:
    """A kustomization of the small overlay and one component."""
    place = scratch / f"small-{component}"
    place.mkdir()
    here = os.path.relpath(root / KUBERNETES, place)
    small = yaml.safe_load((root / KUBERNETES / "overlays/small/kustomization.yaml").read_text())
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "supervisor",
        "resources": [f"{here}/overlays/small"],
        "components": [f"{here}/components/{component}"],
        "images": small["images"],
    }
    (place / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return place


def of_kind(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one manifest of a kind (and name)."""
    [found] = [one for one in manifests if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    return found


def compose(given: Mapping[str, str] = MappingProxyType({})) -> Manifest:
    """compose.yaml with its variables as *given* or by default."""

    def fill(match: re.Match[str]) -> str:
        return given.get(match[1], match[2] or "")

    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    document: Manifest = yaml.safe_load(re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", fill, text))
    return document


class Stop(NamedTuple):
    """What one shipped file says about a stop, in seconds."""

    where: str
    grace_s: float
    told_s: float | None
    drain_s: float

    def problems(self) -> Iterator[str]:
        """What does not fit together."""
        if short := grace.shortage(self.drain_s, self.grace_s):
            yield f"{self.where}: {short}"
        if self.told_s != self.grace_s:
            yield f"{self.where}: gives {self.grace_s:g} s, and tells the service {self.told_s} s"


def stop_of_compose(document: Manifest) -> Stop:
    """Of the service in a compose file."""
    service = document["services"]["supervisor"]
    return _stop("compose.yaml", float(service["stop_grace_period"].removesuffix("s")), service["environment"])


def stop_of_manifests(where: str, manifests: list[Manifest]) -> Stop:
    """Of the pods in rendered manifests, settings looked up as the pod does."""
    pod = of_kind(manifests, "Deployment", "supervisor")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["supervisor", "drain", "--wait"]
    settings: dict[str, str] = {}
    for source in container["envFrom"]:
        settings |= of_kind(manifests, "ConfigMap", source["configMapRef"]["name"])["data"]
    settings |= {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return _stop(where, float(pod["terminationGracePeriodSeconds"]), settings)


def _stop(where: str, grace_s: float, settings: dict[str, str]) -> Stop:
    told = settings.get("SUPERVISOR_TERMINATION_GRACE_S")
    drain = settings.get("SUPERVISOR_DRAIN_TIMEOUT_S", Settings.model_fields["drain_timeout_s"].default)
    return Stop(where, grace_s, float(told) if told else None, float(drain))


def is_setting(name: str) -> bool:
    """Whether an environment variable is one of the service's, or names the file of one that may be in a file."""
    names = {variable(field) for field in Settings.model_fields}
    return name in names or name.removesuffix("_FILE") in names
