"""The chart, rendered by helm with each example, against the schemas of Kubernetes and of the Spark operator.

The pod templates of `deploy/spark_submit` are those of the chart.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
import yaml
from jsonschema import Draft7Validator

from services.bigtable_reader.settings import Settings as BigtableReaderSettings
from services.cdc_consumer.settings import Settings as ConsumerSettings
from services.dead_letter.settings import Settings as DeadLetterSettings
from services.dead_letter.settings import watched_services
from services.spanner_reader.settings import Settings as SpannerReaderSettings
from shared.runtime.settings import read_settings, variable_name
from tests.deploy.terraform_module import MODULE, ROOT, TOOLS

CHART: Final = ROOT / "deploy/helm/millrace"
EXAMPLES: Final = sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))
NAMES: Final = [file.stem for file in EXAMPLES]
VERSIONS: Final = ("1.29", "1.33", "1.37")
SETTINGS: Final[Mapping[str, type[Any]]] = {
    "spanner_reader": SpannerReaderSettings,
    "bigtable_reader": BigtableReaderSettings,
    "cdc_consumer": ConsumerSettings,
    "dead_letter": DeadLetterSettings,
}
FILES: Final = {"TABLES_FILE", "API_TOKEN_FILE"}
KEDA: Final = "keda.sh/v1alpha1"
OPERATOR: Final = "sparkoperator.k8s.io/v1beta2"
DEAD_LETTER: Final = "millrace-dead-letter"


def helm(*words: str, version: str = VERSIONS[-1]) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart."""
    command = [str(TOOLS / "bin/helm"), *words, "--kube-version", f"{version}.0", "--namespace", "millrace"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def template(example: str, *words: str, version: str = VERSIONS[-1]) -> subprocess.CompletedProcess[str]:
    """Render the chart with an example."""
    values = ROOT / f"deploy/helm/examples/{example}.yaml"
    return helm("template", "millrace", str(CHART), "--values", str(values), *words, version=version)


@cache
def rendered(example: str, *words: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects that the chart makes."""
    ran = template(example, *words)
    assert ran.returncode == 0, ran.stderr
    return [one for one in yaml.safe_load_all(ran.stdout) if one]


def of_kind(example: str, *kinds: str) -> Sequence[Mapping[str, Any]]:
    """Return those of some kinds."""
    return [one for one in rendered(example) if one["kind"] in kinds]


def services(example: str) -> Iterator[Mapping[str, Any]]:
    """Yield the templates of the pods that are services."""
    for one in of_kind(example, "Deployment", "StatefulSet"):
        yield one["spec"]["template"]
    for one in of_kind(example, "SparkApplication"):
        yield one["spec"]["driver"]["template"]


def executors(example: str) -> Iterator[Mapping[str, Any]]:
    """Yield the templates of Spark's executors."""
    for one in of_kind(example, "ConfigMap"):
        if "executor.yaml" in one["data"]:
            yield yaml.safe_load(one["data"]["executor.yaml"])
    for one in of_kind(example, "SparkApplication"):
        yield one["spec"]["executor"]["template"]


def pods(example: str) -> Iterator[Mapping[str, Any]]:
    """Yield the templates of all pods."""
    yield from services(example)
    yield from executors(example)


def application(*words: str) -> Mapping[str, Any]:
    """Return the SparkApplication of its example."""
    (found,) = (one for one in rendered("spark-operator", *words) if one["kind"] == "SparkApplication")
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", NAMES)
def test_every_object_fits_the_schema_of_its_version_of_kubernetes(tmp_path: Path, example: str, version: str) -> None:
    ran = template(example, version=version)
    assert ran.returncode == 0, ran.stderr
    objects = [one for one in yaml.safe_load_all(ran.stdout) if one and one["apiVersion"] not in (KEDA, OPERATOR)]
    assert len(objects) > len(SETTINGS)
    named = ({**pod, "metadata": {**pod["metadata"], "name": "pod"}} for pod in pods(example))
    objects += [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in named]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))

    command = [str(TOOLS / "bin/kubernetes-validate"), "--strict", "-k", version, str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "WARN" not in checked.stdout + checked.stderr


@pytest.mark.parametrize("example", NAMES)
def test_helm_finds_nothing_to_complain_about(example: str) -> None:
    ran = helm("lint", "--strict", str(CHART), "--values", str(ROOT / f"deploy/helm/examples/{example}.yaml"))

    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    "wrong", ["unheardOf=1", "keda.unheardOf=1", "consumer.settings.SUBSCRIPTON=x", "spannerReaders.shop.image=x"]
)
def test_an_unknown_value_is_refused(wrong: str) -> None:
    ran = template("spanner", "--set", wrong)

    assert ran.returncode != 0
    assert re.search(rf"additional properties '{wrong.partition('=')[0].rpartition('.')[2]}' not allowed", ran.stderr)


@pytest.mark.parametrize("example", ["cluster", "spark-operator"])
@pytest.mark.parametrize("wrong", ["consumer.replicas=2", "keda.enabled=true"])
def test_a_driver_of_executors_is_alone(example: str, wrong: str) -> None:
    ran = template(example, "--set", wrong)

    name = {"keda.enabled=true": "keda.maxConsumers"}.get(wrong, "consumer.replicas")
    assert f"{name} has to be 1 with consumer.executors and with consumer.kind=SparkApplication" in ran.stderr


def test_readers_whose_long_names_differ_in_their_ends_have_objects_of_their_own(tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/examples/spanner.yaml").read_text())
    (reader,) = values["spannerReaders"].values()
    values["spannerReaders"] = {"orders-europe-west1": reader, "orders-europe-west4": reader}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    ran = helm("template", "millrace-production", str(CHART), "--values", str(file))
    objects = [one for one in yaml.safe_load_all(ran.stdout) if one]

    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    assert len([name for kind, name in names if kind == "Deployment"]) == 2
    assert all(len(name) <= 46 for kind, name in names if kind in {"Deployment", "Service"})


def test_a_release_that_is_rolled_back_replaces_a_pod_that_was_never_ready() -> None:
    sets = of_kind("spanner", "StatefulSet")

    assert {one["metadata"]["name"] for one in sets} == {DEAD_LETTER, "millrace-cdc-consumer"}
    assert {one["spec"]["podManagementPolicy"] for one in sets} == {"Parallel"}


def test_a_tables_file_is_kept_as_it_is_whatever_its_first_line_looks_like(tmp_path: Path) -> None:
    text = "    # indented\n\n[tables.orders]\n  mode = 'mirror'\n"
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"tablesFile": text}))

    found = [one["data"] for one in rendered("spanner", "--values", str(file)) if one["kind"] == "ConfigMap"]

    assert found == [{"tables.toml": text}]


def test_dead_letters_are_never_kept_in_the_pod_alone() -> None:
    assert "databaseSecret" in template("spanner", "--set", "deadLetter.storage=").stderr


@pytest.mark.parametrize("example", NAMES)
def test_a_service_is_given_nothing_that_it_does_not_know_and_all_that_it_needs(tmp_path: Path, example: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    found = set()
    for pod in services(example):
        (container,) = pod["spec"]["containers"]
        service = container["image"].rpartition("/")[2].partition(":")[0]
        variables = {each["name"]: each.get("value", "postgresql://db/letters") for each in container["env"]}
        known = {variable_name(field) for field in SETTINGS[service].__dataclass_fields__.values()}
        assert variables.keys() - known <= {"SPARK_CONF_DIR", "SPARK_LOCAL_HOSTNAME"}
        read_settings(SETTINGS[service], variables | {name: str(file) for name in FILES & variables.keys()})
        found.add(service)

    assert found >= {"cdc_consumer", "dead_letter"}


def test_the_console_polls_each_service_by_its_component_and_also_while_it_is_not_ready(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    readers = {}
    for kind in ("spanner", "bigtable"):
        (reader, *_) = yaml.safe_load((ROOT / f"deploy/helm/examples/{kind}.yaml").read_text())[
            f"{kind}Readers"
        ].values()
        readers[f"{kind}Readers"] = {"twice": reader, "consumer": reader}
    file.write_text(yaml.safe_dump(readers))
    objects = rendered("spanner", "--values", str(file))
    services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
    (dead_letter,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("StatefulSet", DEAD_LETTER))
    (container,) = dead_letter["spec"]["template"]["spec"]["containers"]
    (text,) = (one["value"] for one in container["env"] if one["name"] == "CONSOLE_SERVICES")

    watched = watched_services(text)

    assert watched["bigtable-reader-consumer"] == "http://millrace-bigtable-reader-consumer:8080"
    assert set(watched.values()) == {f"http://{name}:8080" for name in services.keys() - {DEAD_LETTER}}
    assert all(spec["publishNotReadyAddresses"] is True for spec in services.values())


@pytest.mark.parametrize("example", NAMES)
def test_pods_meet_the_restricted_standard(example: str) -> None:
    for pod in pods(example):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec.keys() & {"hostNetwork", "hostPID", "hostIPC"} == set()
        kinds = {key for volume in spec["volumes"] for key in volume}
        assert kinds <= {"name", "emptyDir", "configMap", "secret", "persistentVolumeClaim"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("example", NAMES)
def test_kubernetes_keeps_the_end_of_a_failed_containers_log(example: str) -> None:
    for pod in pods(example):
        for container in pod["spec"]["containers"]:
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("example", NAMES)
def test_a_restart_comes_from_healthz_alone(example: str) -> None:
    for pod in services(example):
        (container,) = pod["spec"]["containers"]
        paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}

        assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
        assert pod["spec"]["terminationGracePeriodSeconds"] > 10


@pytest.mark.parametrize("example", NAMES)
def test_what_selects_pods_selects_some(example: str) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(example)]
    selectors = [one["spec"]["selector"] for one in of_kind(example, "Service")]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in of_kind(example, "PodDisruptionBudget")]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in of_kind(example, "NetworkPolicy")]

    assert len(selectors) > len(labels)
    for selector in selectors:
        assert [one for one in labels if selector.items() <= one.items()]


def test_a_large_number_in_the_values_reaches_the_service_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("consumer: {settings: {MICRO_BATCH_BYTES: 1073741824}}")
    variables = [
        variable
        for one in rendered("spanner", "--values", str(file))
        if one["kind"] == "StatefulSet"
        for container in one["spec"]["template"]["spec"]["containers"]
        for variable in container["env"]
    ]

    assert {"name": "MICRO_BATCH_BYTES", "value": "1073741824"} in variables


@pytest.mark.parametrize("example", NAMES)
def test_a_service_account_is_one_that_terraform_lets_act(example: str) -> None:
    accounts = {one["metadata"]["name"] for one in of_kind(example, "ServiceAccount")}
    used = {pod["spec"]["serviceAccountName"] for pod in pods(example) if "serviceAccountName" in pod["spec"]}
    member = '[${var.kubernetes_namespace}/${replace(each.value, "_", "-")}]'

    acting = {
        one["metadata"]["name"]
        for one in of_kind(example, "ServiceAccount")
        if "iam.gke.io/gcp-service-account" in one["metadata"].get("annotations", {})
    }
    assert used <= acting
    assert used <= accounts == {service.replace("_", "-") for service in SETTINGS}
    assert member in (MODULE / "identities.tf").read_text()


def test_only_a_driver_of_executors_may_ask_kubernetes() -> None:
    for example in NAMES:
        asking = [pod for pod in pods(example) if pod["spec"]["automountServiceAccountToken"]]
        assert bool(asking) == bool(of_kind(example, "Role")) == bool([*executors(example)])


def test_a_token_is_random_unless_there_is_a_secret() -> None:
    (first,), (second,) = (
        [one["data"]["token"] for one in yaml.safe_load_all(template("spanner").stdout) if one["kind"] == "Secret"]
        for _ in range(2)
    )

    assert first != second
    assert of_kind("bigtable", "Secret") == []


def test_an_image_with_a_digest_is_named_by_it() -> None:
    digest = f"sha256:{'0' * 64}"
    ran = template("cluster", "--set", f"image.digests.cdc_consumer={digest},image.tag=0.7.0")
    named = re.findall(r"image:? (\S+/(?:cdc_consumer|dead_letter)\S*)", ran.stdout)

    assert {name.rpartition("/")[2] for name in named} == {f"cdc_consumer:0.7.0@{digest}", "dead_letter:0.7.0"}
    assert len(named) == 3  # of a driver, its executors and the dead-letter service


def test_executors_reach_the_driver() -> None:
    (conf,) = (
        one["data"]["spark-defaults.conf"]
        for one in of_kind("cluster", "ConfigMap")
        if "spark-defaults.conf" in one["data"]
    )
    options = dict(line.split(maxsplit=1) for line in conf.splitlines())
    (consumer,) = (one for one in of_kind("cluster", "StatefulSet") if "consumer" in one["metadata"]["name"])
    (container,) = consumer["spec"]["template"]["spec"]["containers"]

    assert options["spark.kubernetes.driver.pod.name"] == f"{consumer['metadata']['name']}-0"
    assert options["spark.kubernetes.container.image"] == container["image"]
    assert options["spark.kubernetes.executor.podTemplateFile"] == "/etc/spark/executor.yaml"
    assert {"name": "spark", "mountPath": "/etc/spark", "readOnly": True} in container["volumeMounts"]
    assert any(one["metadata"]["name"] == "millrace-spark" for one in of_kind("cluster", "NetworkPolicy"))


@pytest.mark.parametrize("executors", [0, 2])
def test_an_application_fits_the_schema_of_the_spark_operator(executors: int) -> None:
    definition = yaml.safe_load((TOOLS / "sparkapplication.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    found = application("--set", f"consumer.executors={executors}")

    assert f"{definition['spec']['group']}/{version['name']}" == OPERATOR
    schema = Draft7Validator(closed(version["schema"]["openAPIV3Schema"]))
    assert [error.message for error in schema.iter_errors(found)] == []
    assert [error.message for error in schema.iter_errors({**found, "spec": {**found["spec"], "unheardOf": 1}})]


def closed(schema: Any) -> Any:
    """Return a schema that refuses the fields that Kubernetes would leave out."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    open_to_all = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
    return (
        found
        if open_to_all or not isinstance(schema.get("properties"), dict)
        else found | {"additionalProperties": False}
    )


def test_an_application_is_the_consumer_under_the_names_that_the_operator_looks_for() -> None:
    spec = application()["spec"]
    (driver,), (executor,) = (spec[side]["template"]["spec"]["containers"] for side in ("driver", "executor"))

    assert (driver["name"], executor["name"]) == ("spark-kubernetes-driver", "spark-kubernetes-executor")
    assert spec["sparkVersion"] == pyspark.__version__
    assert (ROOT / spec["mainApplicationFile"].removeprefix("local:///app/")).is_file()
    assert spec["restartPolicy"] == {
        "type": "Always",
        "onFailureRetryInterval": 10,
        "onSubmissionFailureRetryInterval": 10,
    }
    assert spec["driver"]["serviceAccount"] == driver_account(spec) == spec["executor"]["serviceAccount"]
    (claim,) = of_kind("spark-operator", "PersistentVolumeClaim")
    assert {"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in spec["driver"][
        "template"
    ]["spec"]["volumes"]


def test_an_executor_does_not_have_the_labels_of_the_application() -> None:
    """The operator labels every pod as the application is, and then as `labels` of its side say."""
    found = application()
    driver, executor = found["spec"]["driver"], found["spec"]["executor"]

    assert found["metadata"]["labels"] == driver["template"]["metadata"]["labels"]
    assert executor["labels"] == executor["template"]["metadata"]["labels"] != found["metadata"]["labels"]


def driver_account(spec: Mapping[str, Any]) -> str:
    return str(spec["driver"]["template"]["spec"]["serviceAccountName"])


def test_an_application_without_executors_runs_spark_in_its_driver() -> None:
    found = application("--set", "consumer.executors=0")["spec"]
    (driver,) = found["driver"]["template"]["spec"]["containers"]

    assert {"name": "SPARK_MASTER", "value": "local[2]"} in driver["env"]
    assert found["executor"].keys() == {"serviceAccount"}


def test_a_driver_has_the_memory_that_its_resources_say() -> None:
    words = ("--set", "consumer.settings.SPARK_DRIVER_MEMORY=1536m", "--set", "consumer.resources.limits.memory=4Gi")
    driver = application(*words)["spec"]["driver"]

    assert (driver["memory"], driver["memoryOverhead"]) == ("1536m", "2560m")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("consumer.resources.limits.memory=1.5Gi", "consumer.resources.limits.memory is 1.5Gi: with consumer.kind="),
        ("consumer.resources.limits.memory=null", "consumer.resources.limits.memory is not set: with consumer.kind="),
        ("consumer.resources=null", "consumer.resources.limits.memory is not set: with consumer.kind=SparkApplication"),
        ("consumer.settings.SPARK_DRIVER_MEMORY=2048k", "consumer.settings.SPARK_DRIVER_MEMORY is 2048k: with"),
        ("consumer.settings.SPARK_DRIVER_MEMORY=4g", "4g, leaves nothing of it to Python: raise the limit, or lower"),
        ("consumer.settings.SPARK_DRIVER_MEMORY=3g", "3g, leaves nothing of it to Python: raise the limit, or lower"),
    ],
)
def test_an_application_whose_memory_cannot_be_known_or_is_too_small_is_refused(given: str, why: str) -> None:
    ran = template("spark-operator", "--set", given)

    assert ran.returncode != 0
    assert why in ran.stderr


@pytest.mark.parametrize("example", ["cluster", "spark-operator"])
def test_executors_of_another_spark_are_refused(example: str) -> None:
    words = ("--set", "consumer.settings.SPARK_MASTER=k8s://https://10.0.0.1:443")

    assert "remove SPARK_MASTER, or set consumer.executors to 0" in template(example, *words).stderr
    assert rendered(example, *words, "--set", "consumer.executors=0")


def test_what_needs_a_statefulset_is_not_there_for_an_application() -> None:
    words = ("--set", "keda.enabled=true", "--set", "keda.maxConsumers=1")
    there = {one["kind"] for one in rendered("spark-operator", *words) if "consumer" in one["metadata"]["name"]}

    assert there == {"PersistentVolumeClaim", "Role", "RoleBinding", "Service", "ServiceAccount", "SparkApplication"}


@pytest.mark.parametrize("side", ["driver", "executor"])
def test_the_pods_of_spark_submit_are_those_of_the_chart(side: str) -> None:
    pod = yaml.safe_load((ROOT / f"deploy/spark_submit/{side}.yaml").read_text())["spec"]
    chart = application()["spec"][side]["template"]["spec"]
    (container,), (chart_container,) = pod.pop("containers"), chart["containers"]

    assert pod.pop("volumes") == [one for one in chart["volumes"] if one["name"] == "tmp"]
    assert container.pop("volumeMounts") == [one for one in chart_container["volumeMounts"] if one["name"] == "tmp"]
    assert container.pop("name") == side
    assert pod.items() <= chart.items()
    assert container.items() <= chart_container.items()


def test_driver_and_executors_have_the_key_that_the_tables_file_names() -> None:
    (tables,) = (one["data"]["tables.toml"] for one in of_kind("cluster", "ConfigMap") if "tables.toml" in one["data"])
    mount = {"name": "mask", "mountPath": str(Path(tomllib.loads(tables)["mask_key_file"]).parent), "readOnly": True}
    named = {container["name"]: container for pod in pods("cluster") for container in pod["spec"]["containers"]}

    for name in ("consumer", "spark-kubernetes-executor"):
        assert mount in named[name]["volumeMounts"]
    assert mount not in named["reader"]["volumeMounts"]


def test_what_the_page_has_kubectl_reach_is_there() -> None:
    page = (ROOT / "docs/how-to/deploy-on-google-cloud.md").read_text()
    named = {(kind, name) for kind, name in re.findall(r"\b(deployment|statefulset|service)/([a-z-]+)", page)}
    there = {
        (one["kind"].lower(), one["metadata"]["name"]) for name in ("spanner", "bigtable") for one in rendered(name)
    }

    assert {kind for kind, _name in named} == {"deployment", "statefulset", "service"}
    assert named <= there


def test_readers_are_scaled_by_cpu_and_lag_and_consumers_by_the_oldest_message() -> None:
    triggers = {
        one["spec"]["scaleTargetRef"]["name"]: {each["type"]: each["metadata"] for each in one["spec"]["triggers"]}
        for one in of_kind("bigtable", "ScaledObject")
    }
    consumer, reader = triggers["millrace-cdc-consumer"], triggers["millrace-bigtable-reader-weather"]

    assert consumer.keys() == {"gcp-pubsub"}
    assert consumer["gcp-pubsub"]["mode"] == "OldestUnackedMessageAge"
    assert consumer["gcp-pubsub"]["subscriptionName"].endswith("/millrace-bigquery")
    assert reader.keys() == {"cpu", "prometheus"}
    assert reader["prometheus"]["query"].startswith("max(millrace_reader_lag_seconds{")


@pytest.mark.parametrize("several", ["consumer.replicas=2", "keda.enabled=true"])
def test_several_consumers_delete_nothing_by_themselves_without_asking_the_source(several: str) -> None:
    words = ("--set", f"{several},consumer.settings.DELETE_MISSING_ROWS=automatic")
    assert "one does not know what the others hold" in template("spanner", *words).stderr
    assert template("spanner", *words, "--set", "consumer.settings.SOURCE_ROWS=x").returncode == 0


def test_consumers_are_scaled_by_a_subscription_of_another_project_too() -> None:
    full = "projects/other/subscriptions/x"
    objects = rendered("bigtable", "--set", f"consumer.settings.SUBSCRIPTION={full}")
    names = [
        trigger["metadata"]["subscriptionName"]
        for one in objects
        if one["kind"] == "ScaledObject"
        for trigger in one["spec"]["triggers"]
        if trigger["type"] == "gcp-pubsub"
    ]

    assert names == [full]


def test_a_reader_is_scaled_by_the_lag_of_its_own_pods_and_not_while_it_is_paused() -> None:
    """Not by that of a reader whose name begins as its own does."""
    (query,) = (
        trigger["metadata"]["query"]
        for one in of_kind("bigtable", "ScaledObject")
        for trigger in one["spec"]["triggers"]
        if trigger["type"] == "prometheus" and "weather" in one["metadata"]["name"]
    )
    lags, paused = re.findall(r'pod=~"([^"]+)"', query)

    assert lags == paused
    assert re.fullmatch(lags, "millrace-bigtable-reader-weather-7d9f8c6b5-x2x2x")
    assert not re.fullmatch(lags, "millrace-bigtable-reader-weather-eu-6c5d4b3a2-y3y3y")
    assert re.search(r" unless on\(pod\) millrace_reader_paused{[^}]+} == 1\)$", query)


@pytest.mark.parametrize("example", ["spanner", "bigtable"])
def test_all_that_may_have_copies_keeps_all_but_one_of_them(example: str) -> None:
    budgets = of_kind(example, "PodDisruptionBudget")
    may = {one["metadata"]["name"] for one in of_kind(example, "Deployment", "StatefulSet")} - {DEAD_LETTER}

    assert {one["metadata"]["name"] for one in budgets} == may
    assert {one["spec"]["maxUnavailable"] for one in budgets} == {1}


@pytest.mark.parametrize("example", ["spanner", "bigtable"])
def test_metrics_and_the_console_are_all_that_is_reached_and_what_leaves_goes_to_named_ports(example: str) -> None:
    policies = of_kind(example, "NetworkPolicy")
    ports = {
        direction: {
            port["port"] for one in policies for rule in one["spec"].get(direction, []) for port in rule["ports"]
        }
        for direction in ("ingress", "egress")
    }

    assert ports["ingress"] == ({8080, 8090} if example == "bigtable" else {8080})
    assert ports["egress"] == {53, 443, 80, 988, 8080}  # names, Google, identity, the console's view of the services


def test_prometheus_can_tell_services_from_each_other_by_the_labels_that_the_page_names() -> None:
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    (text,) = re.findall(r"```yaml\n(scrape_configs:.+?)```", page, re.DOTALL)
    ((only, job, *more),) = (scraping["relabel_configs"] for scraping in yaml.safe_load(text)["scrape_configs"])

    jobs = []
    for pod in services("bigtable"):
        (port, *_) = (one["name"] for container in pod["spec"]["containers"] for one in container["ports"])
        found = {
            f"__meta_kubernetes_pod_label_{re.sub('[./]', '_', k)}": v for k, v in pod["metadata"]["labels"].items()
        }
        found["__meta_kubernetes_pod_container_port_name"] = port
        assert ";".join(found[name] for name in only["source_labels"]) == only["regex"]
        jobs.append(job["separator"].join(found[name] for name in job["source_labels"]))
    assert (job["target_label"], only["action"]) == ("job", "keep")
    of_pod = {one["target_label"] for one in more if one["source_labels"] == ["__meta_kubernetes_pod_name"]}
    assert "instance" in of_pod, "the rule for restarts would see another series of each pod that is made again"
    assert sorted(jobs) == ["millrace-bigtable-reader-weather", "millrace-cdc-consumer", "millrace-dead-letter"]


def test_keda_scales_what_there_is() -> None:
    there = {(one["kind"], one["metadata"]["name"]) for one in rendered("bigtable")}
    scaled = of_kind("bigtable", "ScaledObject")

    assert {one["scaleTargetRef"].get("kind", "Deployment") for one in (each["spec"] for each in scaled)} == {
        "Deployment",
        "StatefulSet",
    }
    for one in scaled:
        target = one["spec"]["scaleTargetRef"]
        assert (target.get("kind", "Deployment"), target["name"]) in there
        assert 1 <= one["spec"]["minReplicaCount"] <= one["spec"]["maxReplicaCount"]
        for trigger in one["spec"]["triggers"]:
            assert all(isinstance(value, str) for value in trigger["metadata"].values())
    for one in of_kind("bigtable", "Deployment"):
        assert "replicas" not in one["spec"], "KEDA and the chart would take turns"
