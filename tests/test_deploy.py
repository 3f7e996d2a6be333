"""What stands in deploy/ names options that there are, and metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml
from typer.main import get_command

from scannery.cli.main import app
from scannery.serving.metrics import Histogram, ServerMetrics
from tests.data import ROOT

DEPLOY = ROOT / "deploy"


def serve_options() -> set[str]:
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {option for parameter in command.params for option in parameter.opts}


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def test_manifests_start_the_server_with_options_that_it_has() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "scannery.yaml").read_text()))
    kinds = [document["kind"] for document in documents]
    assert kinds == ["Deployment", "Service", "PodDisruptionBudget"]
    pod = documents[0]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert {argument.split("=")[0] for argument in container["args"]} <= serve_options()
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert container["readinessProbe"]["grpc"]["port"] == container["ports"][0]["containerPort"] == 7077
    entry = (DEPLOY / "Dockerfile").read_text().split("ENTRYPOINT")[1]
    assert options_in(entry) <= serve_options()
    unit = (DEPLOY / "scannery.service").read_text()
    assert options_in(re.findall(r"ExecStart=(.*)", unit)[0]) <= serve_options()
    assert set(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]) >= {"scannery"}
    assert yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]


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


def test_systemd_understands_the_unit(tmp_path: object) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "scannery.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    # The program is not installed here; nothing else may be wrong.
    problems = [line for line in done.stderr.splitlines() if "scannery.service" in line]
    assert [line for line in problems if "is not executable" not in line] == []
