"""What stands in deploy/ names options that there are, and metrics that there are."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import scannery
from scannery.cli.main import app
from scannery.serving.process.maintain import STOP_S
from scannery.serving.telemetry.metrics import Histogram, ServerMetrics
from tests.cluster.processes import Process, wait_until
from tests.data import ROOT
from tests.served import ROWS, make_library_store
from tests.tools.ports import free_ports

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


@pytest.mark.system
@pytest.mark.parametrize(
    ("file", "command", "port", "kinds"),
    [
        ("scannery", "serve", 7077, ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"]),
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
    # HTTP is beside it, at a port that is the same on both sides: clients are told the server's own.
    assert ("--http" in given) == ("http" in ports) == (command == "serve")
    beside = [(ports["http"], "http")] if "http" in ports else []
    assert given.get("--http", "") == "".join(f"0.0.0.0:{number}" for number, _ in beside)
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    assert {container[probe]["grpc"]["port"] for probe in ("startupProbe", "readinessProbe")} == {port}
    assert container["livenessProbe"]["tcpSocket"]["port"] in ports
    assert [(entry["port"], entry["targetPort"]) for entry in service["spec"]["ports"]] == [
        (port, "grpc"),
        *beside,
    ]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    # Beyond loopback, somebody is asked for credentials, or nobody else can come; and no key travels in the clear.
    assert ("--keys" in given) != ("--insecure" in given)
    assert ("--keys" in given) == ("--behind-tls" in given)
    assert_hardened(pod["spec"], container)
    assert_closed(next(each for each in documents if each["kind"] == "NetworkPolicy"), pod["metadata"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        v["name"] for v in pod["spec"]["volumes"]
    }
    drain_s, stop_s = 10, container["lifecycle"]["preStop"]["exec"]["command"][1]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_s + 5 + int(stop_s)


@pytest.mark.system
def test_a_cluster_has_its_groups_in_each_row_and_roots_that_find_them() -> None:
    documents = loaded("kubernetes/cluster.yaml")
    rows = [each for each in documents if each["kind"] == "StatefulSet"]
    policies = [each for each in documents if each["kind"] == "NetworkPolicy"]
    assert len(rows) == 2
    for row in rows:
        pod = row["spec"]["template"]
        [container] = pod["spec"]["containers"]
        given = flags(container["args"])
        assert given.keys() <= options_of("serve")
        assert given["--role"] == "leaf"
        # The group is the ordinal of the pod, so a row has each group once.
        assert given["--group"] == f"$(GROUP)/{row['spec']['replicas']}"
        # Roots use HTTP, whose port leaves tell them, and their network policies name it.
        ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
        assert given["--http"] == f"0.0.0.0:{ports['http']}"
        assert {"port": "http"} in policies[0]["spec"]["ingress"][0]["ports"]
        assert {"port": ports["http"]} in policies[1]["spec"]["egress"][1]["ports"]
        [variable] = container["env"]
        assert variable["name"] == "GROUP"
        assert variable["valueFrom"]["fieldRef"]["fieldPath"].endswith("['apps.kubernetes.io/pod-index']")
        assert row["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        assert_hardened(pod["spec"], container)
        assert_closed(policies[0], pod["metadata"])
        claims = {each["metadata"]["name"] for each in row["spec"]["volumeClaimTemplates"]}
        volumes = {each["name"] for each in pod["spec"]["volumes"]} | claims
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    [root] = (each for each in documents if each["kind"] == "Deployment")
    [container] = root["spec"]["template"]["spec"]["containers"]
    given = flags(container["args"])
    assert given.keys() <= options_of("serve")
    assert given["--role"] == "root"
    [headless] = [
        each
        for each in documents
        if each["kind"] == "Service" and each["metadata"]["name"] == "scannery-leaf"
    ]
    [port] = headless["spec"]["ports"]
    assert given["--leaves"] == f"dns:///{headless['metadata']['name']}:{port['port']}"
    assert headless["spec"]["selector"] == {"app": "scannery-leaf"}
    assert rows[0]["spec"]["serviceName"] == headless["metadata"]["name"]
    assert_hardened(root["spec"]["template"]["spec"], container)
    assert_closed(policies[1], root["spec"]["template"]["metadata"])
    [scaler] = [each for each in documents if each["kind"] == "HorizontalPodAutoscaler"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == root["metadata"]["name"]


def test_a_cluster_starts_without_a_log_and_its_secret() -> None:
    text = (DEPLOY / "kubernetes" / "cluster.yaml").read_text()
    assert "SCANNERY_LOG" not in text
    assert set(re.findall(r"secretName: ([\w-]+)", text)) == {"scannery-keys"}
    assert "secretKeyRef" not in text
    assert "scannery-maintain" not in text


def test_a_cluster_with_a_log_has_processes_that_maintain_it() -> None:
    maintain, policy = loaded("kustomize/log/maintain.yaml")
    pod = maintain["spec"]["template"]
    [container] = pod["spec"]["containers"]
    given = flags(container["args"])
    assert container["command"] == ["scannery", "maintain"]
    known = get_command(app).commands["maintain"]  # type: ignore[attr-defined]
    opposites = {option for parameter in known.params for option in parameter.secondary_opts}
    assert given.keys() <= options_of("maintain") | opposites
    [port] = container["ports"]
    assert given["--metrics-listen"] == f"0.0.0.0:{port['containerPort']}"
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    # The URL of the log may have a password: not among the arguments.
    assert "--log" not in given
    [log] = container["env"]
    assert (log["name"], list(log["valueFrom"])) == ("SCANNERY_LOG", ["secretKeyRef"])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= STOP_S + 5
    assert_hardened(pod["spec"], container, writes=True)
    assert_closed(policy, pod["metadata"])
    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.system
def test_manifests_are_valid() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    paths = [*(DEPLOY / "kubernetes").glob("*.yaml"), DEPLOY / "kustomize" / "log" / "maintain.yaml"]
    for path in sorted(paths):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                validator.validate(document, validator.latest_version(), strict=True)


def rendered(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what `kubectl apply -k` would apply, by kind and name, checked against the schema of Kubernetes."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    validator = pytest.importorskip("kubernetes_validate")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    for document in documents:
        validator.validate(document, validator.latest_version(), strict=True)
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


@pytest.mark.system
def test_the_kustomization_changes_what_its_values_say_and_nothing_else(tmp_path: Path) -> None:
    base = rendered(DEPLOY / "kubernetes")
    assert len(base) == len(loaded("kubernetes/cluster.yaml"))
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    file = folder / "kustomize" / "kustomization.yaml"
    text = (
        file.read_text()
        .replace("- store=/store", "- store=s3://bucket/store")
        .replace('newTag: "1"', "newTag: two")
    )
    file.write_text(text.replace("# components:", "components:"))
    changed = rendered(folder / "kustomize")
    values = changed.pop(("ConfigMap", "scannery-cluster"))["data"]
    assert values["store"] == "s3://bucket/store"
    own = {(each["kind"], each["metadata"]["name"]): each for each in loaded("kustomize/log/maintain.yaml")}
    assert changed.keys() == base.keys() | own.keys()
    [*_, to_database] = own["NetworkPolicy", "scannery-maintain"]["spec"]["egress"]
    assert to_database["ports"] == [{"port": 5432}]
    log = {"name": "SCANNERY_LOG", "valueFrom": {"secretKeyRef": {"name": "scannery-log", "key": "url"}}}
    for key, document in (base | own).items():
        if key[0] not in ("StatefulSet", "Deployment"):
            if key in (("NetworkPolicy", "scannery-leaf"), ("NetworkPolicy", "scannery-root")):
                document["spec"]["egress"].append(to_database)
            assert changed[key] == document
            continue
        [container] = document["spec"]["template"]["spec"]["containers"]
        container["image"] = "registry.example/scannery:two"
        container["args"] = [
            argument.replace("--store=/store", f"--store={values['store']}").replace(
                "/4", f"/{values['groups']}"
            )
            for argument in container["args"]
        ]
        if key not in own:
            container["env"] = [log, *container.get("env", ())]
            # The first write registers the log in the store, and leases say what must not be collected.
            pod = document["spec"]["template"]["spec"]
            [volume] = [each for each in pod["volumes"] if each["name"] == "store"]
            [mount] = [each for each in container["volumeMounts"] if each["name"] == "store"]
            assert volume["persistentVolumeClaim"]["readOnly"]
            assert mount["readOnly"]
            volume["persistentVolumeClaim"]["readOnly"] = mount["readOnly"] = False
        if key[0] == "StatefulSet":
            document["spec"]["replicas"] = int(values["groups"])
            container["resources"]["requests"] |= {"cpu": values["leaf-cpu"], "memory": values["leaf-memory"]}
            container["resources"]["limits"]["memory"] = values["leaf-memory"]
            [claim] = document["spec"]["volumeClaimTemplates"]
            claim["spec"]["resources"]["requests"]["storage"] = values["leaf-cache"]
        assert changed[key] == document


def assert_hardened(pod: dict[str, Any], container: dict[str, Any], *, writes: bool = False) -> None:
    """Not root, nothing to write but what it needs, and no more of that than it may have."""
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    whole = pod["securityContext"]
    assert whole["runAsNonRoot"]
    assert whole["runAsUser"] == whole["runAsGroup"] == whole["fsGroup"] == 10001
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
    for volume in pod["volumes"]:
        if "emptyDir" in volume:
            assert volume["emptyDir"]["sizeLimit"]
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o400
    read = ("keys",) if writes else ("store", "keys")
    assert all(mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] in read)


def assert_closed(policy: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Whoever may come is named, for each port, and where it may go."""
    spec = policy["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= metadata["labels"].items()
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] and rule["ports"] for rule in spec["ingress"])
    assert all(rule["to"] and rule["ports"] for rule in spec["egress"])
    [metrics] = [rule for rule in spec["ingress"] if {"port": "metrics"} in rule["ports"]]
    assert "namespaceSelector" in metrics["from"][0]


def image_extras() -> set[str]:
    return set(
        re.findall(r"^ARG EXTRAS=([\w,-]+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[0].split(",")
    )


def environment_of(node: Any) -> dict[str, str]:
    """Return all variables that a manifest or compose file sets, with their values or the hints beside them."""
    if isinstance(node, list):
        pairs = {each["name"]: str(each) for each in node if isinstance(each, dict) and "name" in each}
        return pairs | {name: text for each in node for name, text in environment_of(each).items()}
    if isinstance(node, dict):
        own = node.get("environment", {})
        own = own if isinstance(own, dict) else dict(one.partition("=")[::2] for one in own)
        inner = {name: text for each in node.values() for name, text in environment_of(each).items()}
        return {**inner, **{str(name): str(value) for name, value in own.items()}}
    if isinstance(node, str) and "kind: " in node:  # a patch
        return environment_of(yaml.safe_load(node))
    return {}


EXTRA_OF = {"SCANNERY_LOG": "postgres", "OTEL_": "otel"}
"""The extra that reads what a variable names. Logs of images are in PostgreSQL: their file systems are read-only."""


@pytest.mark.system
def test_the_image_has_the_extras_that_its_files_need() -> None:
    files = [
        *DEPLOY.glob("compose*.yaml"),
        *DEPLOY.glob("kubernetes/*.yaml"),
        *DEPLOY.glob("kustomize/**/*.yaml"),
    ]
    variables = {name for file in files for name in environment_of(loaded(str(file.relative_to(DEPLOY))))}
    assert "SCANNERY_LOG" in variables
    needed = {extra for name in variables for start, extra in EXTRA_OF.items() if name.startswith(start)}
    needed |= {"postgres" for file in files if "postgresql://" in file.read_text()}
    # Examples and the demo's model.
    assert needed | {"minilm"} <= image_extras()


def test_what_compose_mounts_for_monitoring_is_complete() -> None:
    [compose] = loaded("compose.yaml")
    services = {
        name: each for name, each in compose["services"].items() if each.get("profiles") == ["monitoring"]
    }
    for service in services.values():
        mounts = [volume.split(":") for volume in service["volumes"]]
        for source, *_ in mounts:
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        if service.get(
            "ports"
        ):  # a port of a container is published only through a network that is not internal
            assert "default" in service["networks"]
    ports = {name: each["ports"][0].rsplit(":", 1)[1] for name, each in services.items()}
    assert ports == {"prometheus": "9090", "alertmanager": "9093", "grafana": "3000"}
    [prometheus] = loaded("prometheus.yaml")
    [manager] = prometheus["alerting"]["alertmanagers"]
    assert manager["static_configs"][0]["targets"] == [f"alertmanager:{ports['alertmanager']}"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services["prometheus"]["volumes"]}
    assert all(f"/etc/prometheus/{name}" in mounted for name in prometheus["rule_files"])
    [alerts] = loaded("alertmanager.yaml")
    assert alerts["route"]["receiver"] in {receiver["name"] for receiver in alerts["receivers"]}
    # Grafana finds its data source, and the dashboard where the provider looks.
    [source] = loaded("grafana/datasources/prometheus.yaml")[0]["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", f"http://prometheus:{ports['prometheus']}")
    [provider] = loaded("grafana/dashboards/scannery.yaml")[0]["providers"]
    targets = {volume.split(":")[1]: volume.split(":")[0] for volume in services["grafana"]["volumes"]}
    assert targets[f"{provider['options']['path']}/scannery.json"] == "./grafana.json"
    assert {"/etc/grafana/provisioning/datasources", "/etc/grafana/provisioning/dashboards"} <= targets.keys()
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    assert {one["query"] for one in dashboard["templating"]["list"]} == {source["type"]}


def test_the_image_and_the_compose_files_start_what_there_is() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert options_in(dockerfile.split("ENTRYPOINT")[1]) <= options_of("serve")
    assert image_extras() <= {
        *re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    }
    assert '".[$EXTRAS]"' in dockerfile
    ports = re.findall(r"EXPOSE (.*)", dockerfile)[0].split()
    [compose], [encoder] = loaded("compose.yaml"), loaded("compose.encoder.yaml")
    server = compose["services"]["scannery"]
    # On the loopback of the machine: what is published goes around its firewall.
    assert server["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
    starts = re.search(r"CMD (\[.*?\])", dockerfile.replace("\\\n", ""), re.DOTALL)
    assert starts
    command = json.loads(starts[1])
    by_default = dict(itertools.pairwise(command))
    options = ("--listen", "--http")
    assert [by_default[name] for name in options] == [f"0.0.0.0:{port}" for port in ports]
    # By itself, the image sends no key in the clear, and shows its metrics to nobody else.
    assert {"--keys", "--tls-cert", "--tls-key"} <= by_default.keys()
    assert by_default["--metrics-listen"].startswith("127.0.0.1:")
    given = flags(server["command"])
    assert given.keys() <= options_of("serve")
    assert [given[name] for name in options] == [by_default[name] for name in options]
    assert "--behind-tls" in given
    targets = loaded("prometheus.yaml")[0]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"scannery:{given['--metrics-listen'].split(':')[1]}"]
    # The second file is laid over the first.
    both = encoder["services"]
    laid_over = flags(both["scannery"]["command"])
    assert laid_over == {**given, "--encoder": laid_over["--encoder"]}
    given = flags(both["encoder"]["command"])
    assert given.keys() <= options_of("encoder")
    assert both["encoder"]["entrypoint"] == ["scannery", "encoder"]
    assert laid_over["--encoder"] == f"encoder:{given['--listen'].split(':')[1]}"
    assert encoder["networks"]["encoder"]["internal"]
    assert both["encoder"]["networks"] == ["encoder"]
    for service in (server, both["encoder"]):
        mounts = [volume.split(":") for volume in service["volumes"]]
        named = {source for source, *_ in mounts if not source.startswith(".")}
        assert named <= compose["volumes"].keys() | encoder["volumes"].keys()
        # Where a volume is mounted, the image has a folder of the user that the process runs as.
        assert {target for source, target, *_ in mounts if source in named} == {"/home/scannery/cache"}
        assert service["user"] == "10001:10001"
    assert "--mode 0700 /home/scannery/cache" in dockerfile
    assert "USER 10001:10001" in dockerfile


def test_files_that_are_replaced_are_mounted_by_their_folder() -> None:
    """Through the mount of a file, its successor is never seen: a revoked key would stay good."""
    [compose] = loaded("compose.yaml")
    keys = flags(compose["services"]["scannery"]["command"])["--keys"]
    mounts = [volume.split(":") for volume in compose["services"]["scannery"]["volumes"]]
    [source] = [source for source, target, *_ in mounts if keys.startswith(f"{target}/")]
    assert not source.endswith(".json")
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert "keys.json:" not in dockerfile
    [deployment] = [each for each in loaded("kubernetes/scannery.yaml") if each["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert all("subPath" not in mount for mount in container["volumeMounts"])


@pytest.mark.parametrize("name", ["compose.yaml", "compose.encoder.yaml"])
def test_containers_may_write_little_and_gain_no_rights(name: str) -> None:
    [compose] = loaded(name)
    for service in compose["services"].values():
        if "image" not in service:
            continue  # laid over another
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"]
        assert service["pids_limit"]
        assert all("size=" in each and "nosuid" in each for each in service["tmpfs"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert all(network["internal"] for network in compose["networks"].values())


def test_builds_get_the_sources_and_nothing_else() -> None:
    """Keys that lie beside them must not get into an image, and what builds it is constrained."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    rooms = {link.readlink().name for link in (ROOT / "src" / "scannery").iterdir() if link.is_symlink()}
    assert allowed == rooms | {"src", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    last = lines[len(allowed) + 1 :]
    assert {"**/*.key", "**/*.pem", "**/*keys*.json"} <= set(last)
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert "PIP_CONSTRAINT=/src/constraints.txt" in dockerfile
    assert "PIP_BUILD_CONSTRAINT=/src/constraints.txt" in dockerfile
    constraints = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^setuptools==", constraints, re.MULTILINE)
    assert re.search(r"^wheel==", constraints, re.MULTILINE)


@pytest.mark.parametrize(
    ("unit", "command"),
    [
        ("scannery", "serve"),
        ("scannery-encoder", "encoder"),
        ("scannery-leaf@", "serve"),
        ("scannery-maintain", "maintain"),
        ("scannery-root", "serve"),
    ],
)
def test_units_start_processes_with_options_that_they_have(unit: str, command: str) -> None:
    text = (DEPLOY / f"{unit}.service").read_text()
    [start] = re.findall(r"ExecStart=(.*)", text)
    assert f"/scannery {command} " in start
    assert options_in(start) <= options_of(command)


@pytest.mark.parametrize(
    "unit", ["scannery", "scannery-encoder", "scannery-leaf@", "scannery-maintain", "scannery-root"]
)
def test_units_have_few_rights(unit: str) -> None:
    lines = (DEPLOY / f"{unit}.service").read_text().splitlines()
    assert {
        "UMask=0077", "CacheDirectoryMode=0700", "NoNewPrivileges=yes", "CapabilityBoundingSet=",
        "ProtectSystem=strict", "SystemCallFilter=@system-service",
    } <= set(lines)  # fmt: skip
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert "127.0.0.1:" in settings["ExecStart"].split("--metrics-listen ")[1][:10]
    if unit != "scannery-encoder":
        assert settings["StateDirectoryMode"] == "0700"
        return
    # The encoder can read the store, and write nothing that the server reads.
    assert "StateDirectory" not in settings
    assert settings["ReadOnlyPaths"] == "-/var/lib/scannery"
    assert "-/etc/scannery" in settings["InaccessiblePaths"]
    assert settings["CacheDirectory"] == "scannery-encoder"
    assert "SCANNERY_CACHE_DIR=/var/cache/scannery-encoder " in settings["Environment"]


@pytest.mark.system
def test_units_of_a_cluster_are_leaves_and_roots_that_serve_with_these_options(tmp_path: Path) -> None:
    """What systemd would start, with paths and ports of this test and no keys: the root has the rows of its leaf."""
    store = make_library_store(tmp_path)
    leaf_port, root_port = free_ports(2)
    (tmp_path / "leaves").write_text(f"127.0.0.1:{leaf_port}\n")
    with ExitStack() as stack:
        for unit, instance in (("scannery-leaf@", "0"), ("scannery-root", "")):
            given = flags_of_unit(unit, instance)
            assert not given.keys() & {"--insecure", "--behind-tls"}
            assert {"--keys", "--tls-cert", "--tls-key"} <= given.keys()
            role = {name: given[name] for name in ("--role", "--group", "--leaves") if name in given}
            if "--leaves" in role:
                role["--leaves"] = role["--leaves"].replace("/etc/scannery", str(tmp_path))
            process = Process(store, leaf_port if instance else root_port, *itertools.chain(*role.items()))
            stack.callback(process.kill)
            process.start()
            process.wait()
        client = stack.enter_context(scannery.connect(f"127.0.0.1:{root_port}"))
        wait_until(lambda: client.index("library").count() == ROWS)


def flags_of_unit(unit: str, instance: str) -> dict[str, str]:
    """Return the options of a unit as systemd expands them, of a cluster of one group."""
    [start] = re.findall(r"ExecStart=\S+ serve (.*)", (DEPLOY / f"{unit}.service").read_text())
    variables = {"%i": instance, "${SCANNERY_GROUPS}": "1", "${SCANNERY_HOST}": "127.0.0.1"}
    for name, value in variables.items():
        start = start.replace(name, value)
    assert "$" not in start
    return dict(itertools.pairwise(start.split()))


def known_metrics() -> set[str]:
    known: set[str] = set()
    for family in ServerMetrics().registry.families:
        known.add(family.name)
        if isinstance(family, Histogram):
            known |= {f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    return known


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    shown = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    named = set(re.findall(r"scannery_\w+", " ".join(shown)))
    assert named <= known_metrics()
    assert {family.name for family in ServerMetrics().registry.families} <= {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in named
    } | {"scannery_index_up", "scannery_workers", "scannery_sampled_plans_total"}


def test_alerts_use_metrics_that_there_are_and_the_runbook_has_each() -> None:
    [content] = loaded("alerts.yaml")
    assert loaded("prometheus.yaml")[0]["rule_files"] == ["alerts.yaml"]
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    named = set(re.findall(r"scannery_\w+", " ".join(rule["expr"] for rule in rules)))
    assert named <= known_metrics()
    recorded = {rule["record"] for rule in rules if "record" in rule}
    assert recorded == set(re.findall(r"scannery:\w+:\w+", " ".join(rule["expr"] for rule in rules)))
    alerts = [rule for rule in rules if "alert" in rule]
    assert all(rule["labels"]["severity"] in ("page", "ticket") for rule in alerts)
    runbook = (ROOT / "docs" / "operations" / "cluster-runbook.md").read_text()
    assert {rule["alert"] for rule in alerts} == set(re.findall(r"`(Scannery[A-Z]\w+)`", runbook))


def test_prometheus_understands_the_alerts() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    done = subprocess.run(
        ["promtool", "check", "rules", str(DEPLOY / "alerts.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.system
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
    problems = [line for line in done.stderr.splitlines() if re.match(r"scannery[a-z@-]*\.service", line)]
    assert [line for line in problems if "is not executable" not in line] == []
