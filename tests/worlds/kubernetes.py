"""What Spark's cluster mode needs of Kubernetes: an API that keeps what is created, and a pod that is a process."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pyspark

from deploy.local.platform.emulators import HOST, ROOT, free_port
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Service

ENTRYPOINT: Final = ROOT / "services/cdc_consumer/entrypoint.sh"
SPARK: Final = Path(pyspark.__file__).parent


class KubernetesApi:
    """The objects that were created, by kind."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.objects: list[Mapping[str, Any]] = []

    def of_kind(self, kind: str) -> Sequence[Mapping[str, Any]]:
        return [one for one in self.objects if one["kind"] == kind]

    @property
    def pod(self) -> Mapping[str, Any]:
        """Return the one pod there is."""
        (pod,) = self.of_kind("Pod")
        return pod

    def submit(self, environment: Mapping[str, str], *arguments: str) -> None:
        """Run Spark's own `spark-submit` in cluster mode, until the pod of the driver is created."""
        command = [str(SPARK / "bin/spark-submit"), "--master", f"k8s://{self.address}", "--deploy-mode", "cluster"]
        # It would find a cluster of this user's in ~/.kube/config, and wait until the pod ends.
        environment = {**environment, "SPARK_HOME": str(SPARK), "KUBECONFIG": "/dev/null", "SPARK_LOCAL_IP": HOST}
        wait = "spark.kubernetes.submission.waitAppCompletion=false"
        ran = subprocess.run(
            [*command, "--conf", wait, *arguments],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr

    def start_pod(self, processes: Processes, name: str, **changed: str | None) -> Service:
        """Start what the pod's container is, as a process: its arguments, its environment and its ConfigMaps."""
        spec = self.pod["spec"]
        (container,) = spec["containers"]
        words = "\n".join(container["args"])
        for path, directory in self._mounted(processes.directory / f"{name}-pod", spec["volumes"], container):
            words = words.replace(path, directory)
        port = free_port()
        environment = {one["name"]: one.get("value", HOST) for one in container["env"]}  # a reference: to the pod's IP
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{processes.environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(processes.directory / f"{name}-spark"),
            "PORT": str(port),
        }
        given = {key: value for key, value in {**environment, **changed}.items() if value is not None}
        return Service(processes.start(name, [str(ENTRYPOINT), *words.split("\n")], given), port, given)

    def _mounted(
        self, root: Path, volumes: Sequence[Mapping[str, Any]], container: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Write the ConfigMaps that a container mounts to a disk; yield each path, and where that is here."""
        shutil.rmtree(root, ignore_errors=True)
        data = {one["metadata"]["name"]: one["data"] for one in self.of_kind("ConfigMap")}
        maps = {one["name"]: one["configMap"] for one in volumes if "configMap" in one}
        for mount in container["volumeMounts"]:
            if (volume := maps.get(mount["name"])) is None:
                continue
            directory = root / mount["name"]
            directory.mkdir(parents=True)
            for item in volume["items"]:
                (directory / item["path"]).write_text(data[volume["name"]][item["key"]])
            yield mount["mountPath"], str(directory)


@contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """Serve the part of Kubernetes' API that creates objects, for the block."""
    api = KubernetesApi("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            created = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            created["metadata"] |= {"uid": f"{len(api.objects)}", "resourceVersion": "1", "namespace": "millrace"}
            api.objects.append(created)
            answer = json.dumps(created).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PATCH = do_POST  # noqa: N815  server-side apply

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        api.address = f"http://{HOST}:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, name="Kubernetes' API")
        serving.start()
        try:
            yield api
        finally:
            server.shutdown()
            serving.join()
