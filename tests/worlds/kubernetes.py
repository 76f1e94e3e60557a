"""What Spark needs of Kubernetes: an API that keeps what is created, and pods that are processes of this machine."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pyspark

from deploy.local.platform.emulators import HOST, ROOT
from deploy.local.platform.processes import Process, Processes

ENTRYPOINT: Final = ROOT / "services/cdc_consumer/entrypoint.sh"
SPARK: Final = Path(pyspark.__file__).parent


class Kubernetes:
    """The objects that were created. Nothing is started by itself."""

    def __init__(self) -> None:
        self.address = ""
        self.objects: list[dict[str, Any]] = []

    def of_kind(self, kind: str) -> Sequence[dict[str, Any]]:
        return [one for one in self.objects if one["kind"] == kind]

    def pods(self, role: str) -> Sequence[dict[str, Any]]:
        """Return the pods of a role of Spark's: driver or executor."""
        return [one for one in self.of_kind("Pod") if one["metadata"]["labels"]["spark-role"] == role]

    def create(self, created: dict[str, Any]) -> None:
        created["metadata"] |= {"uid": f"{len(self.objects)}", "resourceVersion": "1", "namespace": "millrace"}
        if created["kind"] == "Pod":
            created["status"] = {"phase": "Pending"}
        self.objects.append(created)

    def found(self, path: str) -> Mapping[str, Any] | None:
        """Return what a path names: the pods of a role, or one pod."""
        place, _, query = path.partition("?")
        if place.endswith("/pods"):
            items = self.pods("executor" if "executor" in query else "driver")
            return {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}
        name = place.rpartition("/")[2]
        return next((one for one in self.of_kind("Pod") if one["metadata"]["name"] == name), None)

    def start(self, processes: Processes, pod: dict[str, Any], name: str, **changed: str | None) -> Process:
        """Start what a pod's container is: its arguments, its environment and its ConfigMaps."""
        (container,) = pod["spec"]["containers"]
        root = processes.directory / f"{name}-pod"
        mounted = {one["mountPath"]: str(root / one["name"]) for one in container["volumeMounts"]}
        self._write_config_maps(root, pod["spec"]["volumes"], mounted)
        words = [here(word, mounted) for word in container["args"]]
        environment = {one["name"]: value_of(one, pod) for one in container["env"]}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{processes.environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(processes.directory / f"{name}-spark"),
            "SPARK_CONF_DIR": str(processes.directory),
        }
        given = {key: value for key, value in {**environment, **changed}.items() if value is not None}
        pod["status"]["phase"] = "Running"
        return processes.start(name, [str(ENTRYPOINT), *words], given)

    def _write_config_maps(self, root: Path, volumes: Sequence[Mapping[str, Any]], mounted: Mapping[str, str]) -> None:
        data = {one["metadata"]["name"]: one["data"] for one in self.of_kind("ConfigMap")}
        for volume in volumes:
            (root / volume["name"]).mkdir(parents=True, exist_ok=True)
            for item in volume.get("configMap", {}).get("items", []):
                text = data[volume["configMap"]["name"]][item["key"]]
                (root / volume["name"] / item["path"]).write_text(here(text, mounted))


def here(text: str, mounted: Mapping[str, str]) -> str:
    """Return a text with the paths that a container mounts as those of this machine."""
    for path, directory in mounted.items():
        text = text.replace(f"{path}/", f"{directory}/")
    return text


def value_of(variable: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Return the value of a container's variable: as it is, or the pod's name or address."""
    if "value" in variable:
        return str(variable["value"])
    field = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return HOST if field == "status.podIP" else str(pod["metadata"]["name"])


@contextmanager
def kubernetes() -> Iterator[Kubernetes]:
    """Serve the part of Kubernetes' API that Spark uses, for the block."""
    there = Kubernetes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            created = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            there.create(created)
            self._answer(201, created)

        def do_GET(self) -> None:
            if (found := there.found(self.path)) is None:
                self._answer(404, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404})
            else:
                self._answer(200, found)

        def do_DELETE(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(200, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

        do_PATCH = do_POST  # noqa: N815  server-side apply

        def _answer(self, code: int, document: Mapping[str, Any]) -> None:
            answer = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        there.address = f"http://{HOST}:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, name="Kubernetes' API")
        serving.start()
        try:
            yield there
        finally:
            server.shutdown()
            serving.join()
