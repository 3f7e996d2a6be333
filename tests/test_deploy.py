"""What stands in deploy/ names options that there are, and metrics that there are."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from typer.main import get_command

from scannery.cli.main import app
from scannery.serving.metrics import Histogram, ServerMetrics
from tests.data import ROOT

DEPLOY = ROOT / "deploy"


def options_of(command: str) -> set[str]:
    found = get_command(app).commands[command]  # type: ignore[attr-defined]
    return {option for parameter in found.params for option in parameter.opts}


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def loaded(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def flags(arguments: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (argument.partition("=") for argument in arguments)}


@pytest.mark.parametrize(
    ("file", "command", "port", "kinds"),
    [
        ("scannery", "serve", 7077, ["Deployment", "Service", "PodDisruptionBudget"]),
        ("encoder", "encoder", 7078, ["Deployment", "Service", "NetworkPolicy"]),
    ],
)
def test_manifests_start_processes_with_options_that_they_have(
    file: str, command: str, port: int, kinds: list[str]
) -> None:
    documents = loaded(f"kubernetes/{file}.yaml")
    assert [document["kind"] for document in documents] == kinds
    deployment, service = documents[:2]
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    given = flags(container["args"])
    assert given.keys() <= options_of(command)
    assert container.get("command", ["scannery", "serve"]) == ["scannery", command]
    # Ports: what it listens on, what is declared, what probes ask, what the service hands on.
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    assert given["--listen"] == f"0.0.0.0:{ports['grpc']}" == f"0.0.0.0:{port}"
    assert given["--metrics-listen"] == f"0.0.0.0:{ports['metrics']}"
    # The native protocol is beside it, at a port that is the same on both sides: clients are told the server's own.
    assert ("--native" in given) == ("native" in ports) == (command == "serve")
    beside = [(ports["native"], "native")] if "native" in ports else []
    assert given.get("--native", "") == "".join(f"0.0.0.0:{number}" for number, _ in beside)
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    assert {container[probe]["grpc"]["port"] for probe in ("startupProbe", "readinessProbe")} == {port}
    assert container["livenessProbe"]["tcpSocket"]["port"] in ports
    assert [(entry["port"], entry["targetPort"]) for entry in service["spec"]["ports"]] == [
        (port, "grpc"),
        *beside,
    ]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    # Beyond loopback, somebody is asked for credentials, or nobody else can come.
    assert ("--keys" in given) != ("--insecure" in given and "NetworkPolicy" in kinds)
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        v["name"] for v in pod["spec"]["volumes"]
    }
    drain_s, stop_s = 10, container["lifecycle"]["preStop"]["exec"]["command"][1]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_s + 5 + int(stop_s)


def test_manifests_are_valid() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            validator.validate(document, validator.latest_version(), strict=True)


def test_the_image_and_the_compose_files_start_what_there_is() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert options_in(dockerfile.split("ENTRYPOINT")[1]) <= options_of("serve")
    extras = re.findall(r"'\.\[([\w,]+)\]'", dockerfile)[0].split(",")
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    ports = re.findall(r"EXPOSE (.*)", dockerfile)[0].split()
    [compose], [encoder] = loaded("compose.yaml"), loaded("compose.encoder.yaml")
    server = compose["services"]["scannery"]
    assert [entry.split(":")[1:] for entry in server["ports"]] == [[port, port] for port in ports[:-1]]
    starts = re.search(r"CMD (\[.*?\])", dockerfile.replace("\\\n", ""), re.DOTALL)
    assert starts
    command = json.loads(starts[1])
    by_default = dict(itertools.pairwise(command))
    options = ("--listen", "--native", "--metrics-listen")
    assert [by_default[name] for name in options] == [f"0.0.0.0:{port}" for port in ports]
    targets = loaded("prometheus.yaml")[0]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"scannery:{ports[-1]}"]
    # The second file is laid over the first.
    both = encoder["services"]
    assert flags(both["scannery"]["command"]).keys() <= options_of("serve")
    laid_over = flags(both["scannery"]["command"])
    assert [laid_over[name] for name in options] == [by_default[name] for name in options]
    given = flags(both["encoder"]["command"])
    assert given.keys() <= options_of("encoder")
    assert both["encoder"]["entrypoint"] == ["scannery", "encoder"]
    assert flags(both["scannery"]["command"])["--encoder"] == f"encoder:{given['--listen'].split(':')[1]}"
    assert encoder["networks"]["encoder"]["internal"]
    for service in (server, both["encoder"]):
        mounts = [volume.split(":") for volume in service["volumes"]]
        named = {source for source, *_ in mounts if not source.startswith(".")}
        assert named <= compose["volumes"].keys() | encoder["volumes"].keys()
        # Where a volume is mounted, the image has a folder of the user that the process runs as.
        assert {target for source, target, *_ in mounts if source in named} == {"/home/scannery/cache"}
    assert "install --directory --owner scannery /home/scannery/cache" in dockerfile


@pytest.mark.parametrize(("unit", "command"), [("scannery", "serve"), ("scannery-encoder", "encoder")])
def test_units_start_processes_with_options_that_they_have(unit: str, command: str) -> None:
    text = (DEPLOY / f"{unit}.service").read_text()
    [start] = re.findall(r"ExecStart=(.*)", text)
    assert f"/scannery {command} " in start
    assert options_in(start) <= options_of(command)


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    shown = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    named = set(re.findall(r"scannery_\w+", " ".join(shown)))
    known: set[str] = set()
    for family in ServerMetrics().registry.families:
        known.add(family.name)
        if isinstance(family, Histogram):
            known |= {f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    assert named <= known
    assert {family.name for family in ServerMetrics().registry.families} <= {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in named
    } | {"scannery_index_up", "scannery_workers", "scannery_sampled_plans_total"}


def test_systemd_understands_the_units() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(DEPLOY.glob("*.service")))],
        capture_output=True,
        text=True,
        check=False,
    )
    # The program is not installed here; nothing else may be wrong.
    problems = [line for line in done.stderr.splitlines() if re.match(r"scannery(-encoder)?\.service", line)]
    assert [line for line in problems if "is not executable" not in line] == []
