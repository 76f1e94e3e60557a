"""`make cluster`: the chart's pods run on a node, one of each kind is killed, and BigQuery equals its sources."""

import json
import os
import re
import shlex
import shutil
import time
import urllib.parse
import urllib.request
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import pytest
import yaml
from rich.console import Console

from deploy.local.platform.creation import Platform, tables_file
from deploy.local.platform.emulators import HOST, ROOT
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import child_environment
from deploy.local.platform.stack import running_platform, stack_of
from deploy.local.proof.containers import (
    CONSUMER,
    DEAD_LETTER,
    KILL_ALL,
    READERS,
    ContainerSettings,
    Killer,
    RestartedEndpoint,
)
from deploy.local.proof.launching import LocalLauncher
from deploy.local.proof.run import prove
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.cluster.node import GATEWAY, NAME, node
from tests.deploy.kubernetes import Cluster, api_server
from tests.deploy.terraform_module import TOOLS

CHART: Final = str(ROOT / "deploy/helm/millrace")
IMAGES: Final = ROOT / ".run" / "images"
NAMESPACE: Final = "millrace"
SERVICES: Final = (*READERS, CONSUMER, DEAD_LETTER)
CRASHED: Final = {"bigtable_reader_hourly_weather", DEAD_LETTER}
"""What runs in their container is killed; the others lose their pod."""
PAGE: Final = (ROOT / "docs/how-to/deploy-on-google-cloud.md").read_text()
OURS: Final = ("CHECKPOINT_LOCATION", "DATABASE", "TABLES_FILE")
"""Settings that the chart or the image has."""
READY: Final = timedelta(minutes=10)
GRACE: Final = timedelta(seconds=30)
"""terminationGracePeriodSeconds: a service that takes longer is killed."""


class Pods:
    """The pods of the chart, by the names of the services in docker-compose.yaml."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def pod(self, service: str) -> Mapping[str, Any] | None:
        """Return the pod of a service that is not being deleted."""
        label = f"--selector=app.kubernetes.io/component={service.replace('_', '-')}"
        ran = self._cluster.run("kubectl", "get", "pods", f"--namespace={NAMESPACE}", label, "--output=json")
        found = json.loads(ran.stdout)["items"] if ran.returncode == 0 else []
        return next((one for one in found if "deletionTimestamp" not in one["metadata"]), None)

    def name(self, service: str) -> str:
        """Return the name of its pod."""
        found = self.pod(service)
        assert found is not None, f"there is no pod of {service}"
        return str(found["metadata"]["name"])

    def inside(self, service: str, *command: str) -> tuple[int, str]:
        """Run a command in the container of a service; return its exit code and its output."""
        ran = self._cluster.run("kubectl", "exec", f"--namespace={NAMESPACE}", self.name(service), "--", *command)
        return ran.returncode, ran.stdout if ran.returncode == 0 else ran.stdout + ran.stderr

    def start(self, service: str) -> object:
        """Return which pod it is, and how often its container was started again."""
        found = self.pod(service)
        return found and (found["metadata"]["uid"], restarts(found))

    def is_ready(self, service: str) -> bool:
        """Return whether the kubelet finds it ready."""
        found = self.pod(service)
        conditions = found["status"].get("conditions", []) if found else []
        return {"type": "Ready", "status": "True"} in [
            {key: one[key] for key in ("type", "status")} for one in conditions
        ]

    def kill(self, service: str) -> None:
        """Delete its pod without a grace period, or kill what runs in it."""
        if service in CRASHED:
            self.inside(service, *KILL_ALL)
        else:
            words = ("--force", "--grace-period=0", "--wait=false", f"--namespace={NAMESPACE}")
            self._cluster.run("kubectl", "delete", "pod", self.name(service), *words)


def restarts(pod: Mapping[str, Any]) -> int:
    """Return how often the kubelet has started the container again."""
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))


class PodEndpoint(RestartedEndpoint):
    """A service in a pod: another pod has another address."""

    def __init__(self, pods: Pods, service: str) -> None:
        super().__init__("")
        self._pods, self._service = pods, service

    def _get(self, path: str) -> str | None:
        if not self.address:
            found = self._pods.pod(self._service)
            ip = found["status"].get("podIP") if found else None
            self.address = f"{ip}:8080" if ip else ""
        answer = super()._get(path) if self.address else None
        if answer is None:
            self.address = ""
        return answer


def values(made: Platform) -> Mapping[str, Any]:
    """Return the values of the chart for the demo's sources and the emulators."""

    def settings(environment: Mapping[str, str]) -> Mapping[str, str]:
        return {name: value.replace(HOST, GATEWAY) for name, value in environment.items() if name not in OURS}

    def readers(pipelines: Any) -> Mapping[str, Any]:
        return {
            one.name_of_source.replace("_", "-"): {
                "settings": {**settings(one.reader_environment()), "HEARTBEAT_INTERVAL": "1s"}
            }
            for one in pipelines
        }

    return {
        "image": {"tag": (IMAGES / "tag").read_text()},
        "tablesFile": tables_file(),
        "spannerReaders": readers(one for _, one in made.databases),
        "bigtableReaders": readers(one for _, one in made.wide_tables),
        # one replica each, and less processor than the defaults: all of them are on one machine of two cores
        "readerDefaults": {"replicas": 1, "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}},
        "consumer": {"settings": settings(made.flow.consumer_environment(Path()))},
        "deadLetter": {"settings": settings(made.flow.dead_letter_environment(Path()))},
    }


def installed(cluster: Cluster, made: Platform, directory: Path) -> Pods:
    """Install the chart into a namespace of the restricted standard, with volumes for what its pods claim."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    objects = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}]
    for name in ("one", "two"):
        path = directory / "volumes" / name
        path.mkdir(parents=True)
        objects.append(volume(name, path))
    cluster.done("kubectl", "create", "--filename=-", given=yaml.safe_dump_all(objects))
    cluster.done(
        *("helm", "install", "millrace", CHART, f"--namespace={NAMESPACE}", "--values=-"),
        given=yaml.safe_dump(values(made)),
    )
    return Pods(cluster)


def volume(name: str, path: Path) -> dict[str, Any]:
    """Return a volume that is a directory of the node: root's, so that a pod writes to it by its fsGroup alone."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def commands_of_the_page(verb: str, reader: str = "") -> Sequence[Sequence[str]]:
    """Return the page's kubectl commands of a kind, with the name of a reader that is there."""
    found = re.findall(rf"^ +kubectl (--namespace millrace {verb} .*)$", PAGE, re.MULTILINE)
    return [shlex.split(one.replace("-shop ", f"-{reader} ")) for one in found]


def check_as_the_page_says(cluster: Cluster, made: Platform, logs: Path) -> Sequence[str]:
    """Run `doctor` and `status` in the pods, and what they say of Bigtable; return the commands that fail."""
    (_, spanner), (_, bigtable) = made.databases[0], made.wide_tables[0]
    name = spanner.name_of_source.replace("_", "-")
    commands = [*commands_of_the_page("exec", name)]
    assert len(commands) == 5
    pod = f"deployment/millrace-bigtable-reader-{bigtable.name_of_source.replace('_', '-')}"
    module = ("python", "-m", "services.bigtable_reader")
    commands += [("--namespace", NAMESPACE, "exec", pod, "--", *module, command) for command in ("doctor", "status")]
    failed = []
    with (logs / "checks.txt").open("w") as file:
        for words in commands:
            ran = cluster.run("kubectl", *words)
            file.write(f"$ kubectl {' '.join(words)}\n{ran.stdout}{ran.stderr}exit code {ran.returncode}\n\n")
            if ran.returncode:
                failed.append(f"kubectl {' '.join(words)}: {ran.stdout}{ran.stderr}")
    return failed


def console_page(cluster: Cluster) -> str:
    """Return the console's first page, signed in, through the chart's Service, as the page opens it."""
    (words,) = commands_of_the_page("port-forward")
    address = f"http://{HOST}:{words[-1]}/sign-in"
    secret = ("get", "secret", "millrace-dead-letter-api", "--output=jsonpath={.data.token}")
    token = b64decode(cluster.done("kubectl", "--namespace", NAMESPACE, *secret)).decode()
    command = [str(TOOLS / "bin" / "kubectl"), f"--kubeconfig={cluster.config}", *words]
    forwarding = cluster.processes.start("port_forward", command)
    try:
        cluster.processes.wait_until(
            lambda: "Forwarding from" in forwarding.output(), "the port to be forwarded", GRACE
        )
        return signed_in(address, token)
    finally:
        forwarding.end()


def signed_in(address: str, token: str) -> str:
    """Return the page that follows the form which asks for the token."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(address, timeout=GRACE.total_seconds()) as form:
        hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]+)"', form.read().decode())
    data = urllib.parse.urlencode([*hidden, ("token", token)]).encode()
    filled_in = urllib.request.Request(address, data, {"Origin": address.removesuffix("/sign-in")})
    with browser.open(filled_in, timeout=GRACE.total_seconds()) as page:
        return str(page.read().decode())


@pytest.mark.timeout(3600)  # some forty minutes on a busy machine: as long as `make containers` without its builds
def test_bigquery_equals_its_sources_although_a_pod_of_each_kind_was_killed() -> None:
    began = time.monotonic()
    stop, settings, console = Stop(), read_settings(ContainerSettings, os.environ), Console(highlight=False)

    def print_line(text: str) -> None:
        console.print(f"[{time.monotonic() - began:5.1f} s] {text}", markup=False, soft_wrap=True)

    shutil.rmtree(ROOT / ".run" / "cluster", ignore_errors=True)
    logs, directory = ROOT / ".run" / "cluster", Path(mkdtemp())  # short, for the names of sockets end after 107 bytes
    with (
        Processes(logs, child_environment(os.environ), stop) as processes,
        api_server(processes, directory) as cluster,
        node(cluster, IMAGES, directory),
        running_platform(processes, print_line, settings.sources, settings.before) as made,
    ):
        pods = installed(cluster, made, directory)
        try:
            print_line("the chart is installed")

            def wait() -> None:
                for service in SERVICES:
                    processes.wait_until(partial(pods.is_ready, service), f"{service} to be ready", READY)
                    print_line(f"{service} is ready")

            wait()
            endpoints = {service: PodEndpoint(pods, service) for service in SERVICES}
            *readers, consumer, dead_letter = endpoints.values()
            stack = stack_of(made, readers, consumer, dead_letter)
            killer = Killer(pods, settings, stop, print_line)
            launch = LocalLauncher(processes.environment, processes.stop)
            report = prove(settings, stack, killer.command, launch, console, print_line, stop, killer.happen)
            report.print(console)
            failed = check_as_the_page_says(cluster, made, logs)
            page = console_page(cluster)
            started_again = {service: restarts(pods.pod(service) or {"status": {}}) for service in SERVICES}
        finally:
            keep_logs(cluster, directory, logs)
        asked = time.monotonic()
        cluster.done("helm", "uninstall", "millrace", f"--namespace={NAMESPACE}")
        processes.wait_until(lambda: not cluster.items(NAMESPACE, "pods"), "the pods to end", 2 * GRACE)
        ended = timedelta(seconds=time.monotonic() - asked)
        print_line(f"the pods have ended after {ended.total_seconds():.0f} s")

    assert report.equal
    assert failed == []
    assert "Sign out" in page
    assert {service for service, times in started_again.items() if times} == CRASHED
    assert ended < GRACE


def keep_logs(cluster: Cluster, directory: Path, logs: Path) -> None:
    """Keep what the pods and the node have written."""
    for name, words in {"pods.txt": ("describe", "pods,pv,pvc"), "events.txt": ("get", "events")}.items():
        (logs / name).write_text(cluster.run("kubectl", *words, f"--namespace={NAMESPACE}").stdout)
    for file in (directory / "logs").rglob("*.log"):
        (logs / f"{file.parent.parent.name}-{file.name}").write_bytes(file.read_bytes())
