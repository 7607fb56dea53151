"""The Kubernetes manifests: rendered, validated against the schemas, and held against the command that they run."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from kubernetes_validate import latest_version, validate

from tiedreq.cli import command as tiedreq_command

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUBECTL = shutil.which("kubectl")
REPLICAS = ["base", "overlays/small", "overlays/three-zone", "overlays/tls"]
FORMS = [*REPLICAS, "overlays/one-pod", "overlays/sidecar"]
KUSTOMIZE_SECONDS = 60

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed here")


@cache
def rendered(form: str) -> tuple[dict[str, Any], ...]:
    """The objects that ``kubectl apply -k`` would send."""
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "kustomize", str(KUBERNETES / form)], capture_output=True, text=True, timeout=KUSTOMIZE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(form: str, kind: str) -> list[dict[str, Any]]:
    return [found for found in rendered(form) if found["kind"] == kind]


def pod_specs(form: str) -> list[dict[str, Any]]:
    sets = [
        found["spec"]["template"]["spec"] for kind in ("StatefulSet", "Deployment") for found in of_kind(form, kind)
    ]
    return sets + [found["spec"] for found in of_kind(form, "Pod")]


def containers(form: str) -> list[dict[str, Any]]:
    """Of our image."""
    found = [c for spec in pod_specs(form) for c in spec["containers"] if c["image"] == "tiedreq"]
    assert found, f"{form} runs no container of ours"
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_object_is_valid(form: str) -> None:
    objects = rendered(form)
    assert objects, "what has no objects has no invalid ones"
    for found in objects:
        validate(found, latest_version(), strict=True)


def test_an_invalid_object_is_noticed() -> None:
    """The validation above is none if it passes this."""
    (broken,) = of_kind("base", "StatefulSet")
    broken = {**broken, "spec": {**broken["spec"], "replica": 4}}
    with pytest.raises(Exception, match="replica"):
        validate(broken, latest_version(), strict=True)


@pytest.mark.parametrize("form", FORMS)
def test_the_command_takes_the_arguments(form: str, tmp_path: Path) -> None:
    """A manifest that names an option that ``tiedreq`` no longer has would only fail in the cluster."""
    for container in containers(form):
        arguments = [stand_in(text, tmp_path) for text in container["args"]]
        command = tiedreq_command.get_command(click.Context(tiedreq_command), arguments[0])
        assert command is not None
        context = command.make_context(arguments[0], arguments[1:])
        assert context.params["name"], form


def stand_in(text: str, folder: Path) -> str:
    """The argument as the kubelet and the volumes would make it: variables filled in, files there."""
    text = re.sub(r"\$\((\w+)\)", lambda found: "10.0.0.7" if found[1].endswith("IP") else "tiedreq-0", text)
    option, equals, value = text.partition("=")
    if equals and value.startswith("/run/"):
        path = folder / Path(value).name
        path.write_text("content")
        return f"{option}={path}"
    return text


def test_an_unknown_option_would_be_noticed(tmp_path: Path) -> None:
    arguments = [*containers("base")[0]["args"], "--no-such-option=1"]
    arguments = [stand_in(text, tmp_path) for text in arguments]
    with pytest.raises(click.NoSuchOption):
        tiedreq_command.commands["serve"].make_context("serve", arguments[1:])


@pytest.mark.parametrize("form", FORMS)
def test_pods_run_without_privileges(form: str) -> None:
    for spec in pod_specs(form):
        assert spec["automountServiceAccountToken"] is False
    for container in containers(form):
        security = {**pod_specs(form)[0].get("securityContext", {}), **container["securityContext"]}
        assert security["runAsNonRoot"] is True and security["runAsUser"] == 10001
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("form", REPLICAS)
def test_the_drain_fits_into_the_grace_period(form: str) -> None:
    for found in of_kind(form, "StatefulSet"):
        spec = found["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        (drain,) = [text for text in container["args"] if text.startswith("--drain-timeout=")]
        seconds = float(drain.removeprefix("--drain-timeout=").removesuffix("s"))
        assert seconds + 5 <= spec["terminationGracePeriodSeconds"]
        assert "kill -TERM 1" in container["lifecycle"]["preStop"]["exec"]["command"][-1]


@pytest.mark.parametrize("form", REPLICAS)
def test_the_parts_find_each_other(form: str) -> None:
    """Selectors select, services exist, the budget of disruptions covers every replica, one may go at a time."""
    services = {found["metadata"]["name"]: found["spec"] for found in of_kind(form, "Service")}
    (budget,) = of_kind(form, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    sets = of_kind(form, "StatefulSet")
    assert len({found["metadata"]["name"] for found in sets}) == len(sets)
    for found in sets:
        labels = found["spec"]["template"]["metadata"]["labels"]
        assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
        peers = services[found["spec"]["serviceName"]]
        assert peers["clusterIP"] == "None" and peers["publishNotReadyAddresses"] is True
        for service in services.values():
            assert service["selector"].items() <= labels.items()
        (container,) = found["spec"]["template"]["spec"]["containers"]
        (discover,) = [text for text in container["args"] if text.startswith("--discover=")]
        assert re.search(rf"://{found['spec']['serviceName']}:{peers['ports'][0]['port']}$", discover)
        volumes = {volume["name"] for volume in found["spec"]["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_a_sidecar_stands_beside_a_deployment_that_stays_as_it_is() -> None:
    (deployment,) = of_kind("overlays/sidecar", "Deployment")
    names = [container["name"] for container in deployment["spec"]["template"]["spec"]["containers"]]
    assert sorted(names) == ["tiedreq", "web"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == {"app": "web"}
    (sidecar,) = containers("overlays/sidecar")
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    for service in of_kind("overlays/sidecar", "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    options = dict(text.removeprefix("--").split("=", 1) for text in sidecar["args"][1:])
    listens = {options[name].rpartition(":")[2] for name in ("listen", "passage", "http", "metrics")}
    assert listens == {str(port) for port in ports.values()}
    assert options["discover"] == "dns://tiedreq-sidecars:7000"


def test_each_of_three_zones_says_which_it_is() -> None:
    zones = {}
    for found in of_kind("overlays/three-zone", "StatefulSet"):
        spec = found["spec"]["template"]["spec"]
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        (told,) = [text for text in spec["containers"][0]["args"] if text.startswith("--zone=")]
        assert terms[0]["matchExpressions"][0]["values"] == [told.removeprefix("--zone=")]
        zones[found["metadata"]["name"]] = told
    assert zones == {"tiedreq-a": "--zone=a", "tiedreq-b": "--zone=b", "tiedreq-c": "--zone=c"}


def test_with_tls_every_address_is_secure() -> None:
    (container,) = containers("overlays/tls")
    assert not [text for text in container["args"] if re.search(r"=(ws|dns)://", text)]
    assert {"--tls-cert", "--tls-key", "--tls-ca"} <= {text.partition("=")[0] for text in container["args"]}


def test_the_example_service_is_one() -> None:
    (configuration,) = of_kind("base", "ConfigMap")
    names: dict[str, Any] = {}
    exec(compile(configuration["data"]["app.py"], "app.py", "exec"), names)
    assert names["service"].name == "example"
