"""The chart as a user installs it, on Kubernetes' API server: what is accepted, which pods are, and what is refused."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.local.platform.processes import Processes
from tests.deploy.kubernetes import Cluster, api_server
from tests.deploy.terraform_module import ROOT, TOOLS

CHART: Final = str(ROOT / "deploy/helm/millrace")
EXAMPLES: Final = {file.stem: str(file) for file in sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))}
SECRETS: Final = {"millrace-api": "token", "mask-key": "key", "dead-letters-database": "url"}
WORKLOADS: Final = "deployments,statefulsets"
LONGEST: Final = timedelta(minutes=2)
DRIVER: Final = """
import sys, time
from pyspark.sql import SparkSession
from services.cdc_consumer.adapters.spark.spark_session import spark_settings
builder = SparkSession.builder
for name, value in spark_settings("k8s://" + sys.argv[1], "512m", 8).items():
    builder = builder.config(name, value)
builder.getOrCreate()
time.sleep(600)
"""
"""Opens the session of the consumer, which asks Kubernetes for executors."""
CREATE: Final = ("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors")
STRICT: Final = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors")


@pytest.fixture(scope="module")
def cluster(platform_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return an API server that knows the kinds of KEDA and of the Spark operator."""
    with api_server(platform_processes, tmp_path_factory.mktemp("kubernetes")) as cluster:
        for kinds in ("keda", "sparkapplication.yaml"):
            ran = cluster.run("kubectl", "apply", "--server-side", f"--filename={TOOLS / kinds}")
            assert ran.returncode == 0, ran.stderr
        cluster.done("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield cluster


def prepared(cluster: Cluster, namespace: str) -> str:
    """Make a namespace for pods that meet the restricted standard, with the secrets that examples name."""
    cluster.done("kubectl", "create", "namespace", namespace)
    levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.done("kubectl", "label", "namespace", namespace, *levels)
    for name, key in SECRETS.items():
        words = ("create", "secret", "generic", name, f"--from-literal={key}=x", f"--namespace={namespace}")
        cluster.done("kubectl", *words)
    return namespace


def rendered(cluster: Cluster, example: str) -> list[dict[str, Any]]:
    """Return the objects that the chart makes."""
    text = cluster.done("helm", "template", "millrace", CHART, f"--values={EXAMPLES[example]}", "--kube-version=1.37.0")
    return [one for one in yaml.safe_load_all(text) if one]


def pods(cluster: Cluster, namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the first pod of each workload, as its controller makes it."""
    for one in cluster.items(namespace, WORKLOADS):
        template = one["spec"]["template"]
        claims = [claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])]
        name = f"{one['metadata']['name']}-0"
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}} for claim in claims]
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name},
            "spec": {**template["spec"], "volumes": [*template["spec"]["volumes"], *volumes]},
        }


@pytest.fixture(scope="module", params=EXAMPLES)
def installed(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Return the namespace into which an example is installed, which has its name."""
    example: str = request.param
    prepared(cluster, example)
    cluster.done("helm", "install", "millrace", CHART, f"--namespace={example}", f"--values={EXAMPLES[example]}")
    return example


def test_every_object_is_accepted_without_a_warning(cluster: Cluster, installed: str) -> None:
    manifest = cluster.done("helm", "get", "manifest", "millrace", f"--namespace={installed}")

    done = cluster.done(
        "kubectl", *STRICT, "--force-conflicts", f"--namespace={installed}", "--filename=-", given=manifest
    )

    assert len(done.splitlines()) == len([one for one in yaml.safe_load_all(manifest) if one])


def test_every_pod_is_admitted(cluster: Cluster, installed: str) -> None:
    wanted = yaml.safe_dump_all(pods(cluster, installed))

    done = cluster.done("kubectl", *CREATE, f"--namespace={installed}", "--filename=-", given=wanted)

    assert len(done.splitlines()) == len(cluster.items(installed, WORKLOADS)) >= 2


def test_a_misspelt_field_is_refused(cluster: Cluster) -> None:
    text = yaml.safe_dump_all(rendered(cluster, "bigtable"))
    for field, wrong in (("readinessProbe", "readynessProbe"), ("minReplicaCount", "minReplicas")):
        ran = cluster.run("kubectl", *STRICT, "--filename=-", given=text.replace(field, wrong))

        assert ran.returncode != 0
        assert wrong in ran.stderr


def test_keda_refuses_a_value_of_another_type(cluster: Cluster) -> None:
    text = yaml.safe_dump_all(one for one in rendered(cluster, "bigtable") if one["kind"] == "ScaledObject")

    ran = cluster.run(
        "kubectl", *STRICT, "--filename=-", given=text.replace("minReplicaCount: 1", "minReplicaCount: x")
    )

    assert ran.returncode != 0
    assert "spec.minReplicaCount" in ran.stderr


def test_a_pod_that_may_gain_privileges_is_refused(cluster: Cluster) -> None:
    namespace = prepared(cluster, "refused")
    words = (f"--namespace={namespace}", f"--values={EXAMPLES['spanner']}")
    cluster.done("helm", "install", "millrace", CHART, *words)
    for pod in pods(cluster, namespace):
        (container,) = pod["spec"]["containers"]
        container["securityContext"]["allowPrivilegeEscalation"] = True

        ran = cluster.run("kubectl", *CREATE, f"--namespace={namespace}", "--filename=-", given=yaml.safe_dump(pod))

        assert ran.returncode != 0
        assert 'violates PodSecurity "restricted:latest"' in ran.stderr


def test_an_upgrade_keeps_the_token_and_restarts_workloads_only_if_values_change(cluster: Cluster) -> None:
    namespace = prepared(cluster, "upgraded")
    words = ("millrace", CHART, f"--namespace={namespace}", f"--values={EXAMPLES['spanner']}")
    cluster.done("helm", "install", *words)
    installed = state(cluster, namespace)

    cluster.done("helm", "upgrade", *words)
    assert state(cluster, namespace) == installed

    cluster.done("helm", "upgrade", *words, "--set-string", "tablesFile=[tables]")
    token, workloads = state(cluster, namespace)
    assert token == installed[0]
    assert {name for name, made in workloads.items() if made != installed[1][name]} == workloads.keys()

    cluster.done("helm", "rollback", "millrace", "1", f"--namespace={namespace}")
    assert state(cluster, namespace)[0] == token

    cluster.done("helm", "uninstall", "millrace", f"--namespace={namespace}")
    assert cluster.items(namespace, f"{WORKLOADS},services,configmaps,networkpolicies") == []


def test_a_larger_volume_of_dead_letters_is_taken_once_the_statefulset_is_gone_as_the_runbook_says(
    cluster: Cluster,
) -> None:
    namespace = prepared(cluster, "larger")
    words = ("millrace", CHART, f"--namespace={namespace}", f"--values={EXAMPLES['spanner']}")
    larger = ("helm", "upgrade", *words, "--set=deadLetter.storage=20Gi")
    cluster.done("helm", "install", *words)
    assert "field is immutable" in cluster.run(*larger).stderr
    page = (ROOT / "docs/runbooks/dead-letter.md").read_text()
    (delete,) = re.findall(r"^kubectl --namespace millrace (delete .+)$", page, re.MULTILINE)
    (claim,) = re.findall(r"patch pvc (\S+)", page)

    here = ("kubectl", f"--namespace={namespace}")
    cluster.done(*here, *delete.split(), "--wait=false")
    # no controller is here, which would let the pod alone and take this off
    removed = '{"metadata": {"finalizers": null}}'
    cluster.done(*here, "patch", "statefulset", "millrace-dead-letter", "--type=merge", f"--patch={removed}")
    cluster.done(*larger)

    (made,) = (one for one in pods(cluster, namespace) if one["metadata"]["name"] == "millrace-dead-letter-0")
    assert claim in {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in made["spec"]["volumes"]}
    sets = {one["metadata"]["name"]: one["spec"] for one in cluster.items(namespace, "statefulsets")}
    (wanted,) = sets["millrace-dead-letter"]["volumeClaimTemplates"]
    assert wanted["spec"]["resources"] == {"requests": {"storage": "20Gi"}}


def state(cluster: Cluster, namespace: str) -> tuple[str, Mapping[str, int]]:
    """Return the token, and of each workload how often what it wants has changed."""
    (token,) = (
        one["data"]["token"]
        for one in cluster.items(namespace, "secrets")
        if one["metadata"]["name"] == "millrace-dead-letter-api"
    )
    found = cluster.items(namespace, WORKLOADS)
    return token, {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}


def test_spark_gets_its_executors_by_the_rights_of_the_consumer(cluster: Cluster, tmp_path: Path) -> None:
    namespace = prepared(cluster, "spark")
    words = (f"--namespace={namespace}", f"--values={EXAMPLES['cluster']}")
    cluster.done("helm", "install", "millrace", CHART, *words)
    (driver,) = (pod for pod in pods(cluster, namespace) if pod["metadata"]["name"] == "millrace-cdc-consumer-0")
    cluster.done("kubectl", "create", f"--namespace={namespace}", "--filename=-", given=yaml.safe_dump(driver))
    (files,) = (one["data"] for one in cluster.items(namespace, "configmaps") if "executor.yaml" in one["data"])
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("/etc/spark", str(tmp_path)))
    token = cluster.done("kubectl", "create", "token", "cdc-consumer", f"--namespace={namespace}").strip()
    with (tmp_path / "spark-defaults.conf").open("a") as file:  # a pod has both where Spark looks for them
        file.write(f"spark.kubernetes.authenticate.oauthToken {token}\n")
        file.write(f"spark.kubernetes.authenticate.caCertFile {cluster.authority}\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_HOSTNAME": "127.0.0.1", "PYTHONPATH": str(ROOT)}

    spark = cluster.processes.start("driver", [sys.executable, "-c", DRIVER, cluster.address], environment)
    try:
        cluster.processes.wait_until(lambda: len(executors(cluster, namespace)) == 4, "four executors", LONGEST)
        (one, *_) = executors(cluster, namespace)
    finally:
        spark.end()

    assert one["spec"]["serviceAccountName"] == "cdc-consumer"
    assert one["spec"]["automountServiceAccountToken"] is False
    assert {"name": "mask", "mountPath": "/etc/millrace/mask", "readOnly": True} in one["spec"]["containers"][0][
        "volumeMounts"
    ]


def executors(cluster: Cluster, namespace: str) -> Sequence[Mapping[str, Any]]:
    """Return the pods that Spark has asked for."""
    pods = cluster.items(namespace, "pods")
    return [one for one in pods if one["metadata"]["labels"].get("spark-role") == "executor"]
