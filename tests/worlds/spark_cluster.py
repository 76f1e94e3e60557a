"""A standalone Spark cluster on this machine: a master and workers, each in a Java of its own, one core each.

Its executors run on this machine, too, but a consumer gives them no place on its disk, as it could not elsewhere.
"""

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyspark

from deploy.local.platform.emulators import HOST, ROOT, free_port, listens
from deploy.local.platform.processes import Process, Processes

_STARTED_WITHIN: Final = timedelta(minutes=2)
_DEPLOYED: Final = "org.apache.spark.deploy"
_HERE: Final = ("--host", HOST, "--webui-port", "0")


class SparkCluster:
    """The cluster, whose processes end with their owner."""

    def __init__(self, processes: Processes, workers: int) -> None:
        self._processes = processes
        port = free_port()
        self.master = f"spark://{HOST}:{port}"
        self._start("master", f"{_DEPLOYED}.master.Master", "--port", str(port))
        processes.wait_until(lambda: listens(port), "Spark's master", _STARTED_WITHIN)
        self.workers = [self.start_worker(f"worker-{number}") for number in range(workers)]

    @property
    def settings(self) -> Mapping[str, str]:
        """Return a consumer's settings for it."""
        return {"SPARK_MASTER": self.master, "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}

    def start_worker(self, name: str) -> Process:
        """Start a worker of one core."""
        work = str(self._processes.directory / f"{name}-work")
        arguments = ("--cores", "1", "--memory", "1g", "--work-dir", work, self.master)
        return self._start(name, f"{_DEPLOYED}.worker.Worker", *arguments)

    def _start(self, name: str, main: str, *arguments: str) -> Process:
        java = ("java", "-Xmx256m", "-cp", str(Path(pyspark.__file__).parent / "jars" / "*"))
        environment = {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_SCALA_VERSION": "2.13",  # both as `spark-class` sets them, for executors
            "SPARK_LOCAL_IP": HOST,
            "PYTHONPATH": str(ROOT),
        }
        return self._processes.start(name, [*java, main, *_HERE, *arguments], environment)
