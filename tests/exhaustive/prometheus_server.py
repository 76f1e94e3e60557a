"""A Prometheus server that scrapes services and evaluates the alert rules, with all times in them scaled down.

The rules wait for minutes and look back for hours. Here each duration, and each threshold that counts seconds, is a
sixtieth: a minute is a second. What a rule compares, and which series it reads, is as it is shipped.
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml

from deploy.local.platform.emulators import HOST, ROOT, free_port
from deploy.local.platform.processes import Process, Processes, wait_until

SCALE: Final = 60
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(r"\b(\d+)([smhd])\b")
_THRESHOLD: Final = re.compile(r"> (300|600|900|3600|86400)\b")
_DASH: Final = re.compile(r"\W")


def scaled(rules: str) -> str:
    """Return rules in which a minute is a second."""
    durations = _DURATION.sub(lambda found: f"{int(found[1]) * _SECONDS[found[2]] * 1_000 // SCALE}ms", rules)
    return _THRESHOLD.sub(lambda found: f"> {int(found[1]) / SCALE:g}", durations)


class PrometheusServer:
    """The server, and which alerts it says are firing."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._directory = directory
        self._targets = directory / "targets.json"
        self._of_jobs: dict[str, str] = {}
        self.address = f"{HOST}:{free_port()}"
        for file in (ROOT / "deploy" / "alerts").glob("*.yaml"):
            (directory / f"rules-{file.name}").write_text(scaled(file.read_text()))
        self._write()
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(directory / "rules-*.yaml")],
            "scrape_configs": [{"job_name": "file", "file_sd_configs": [{"files": [str(self._targets)]}]}],
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self._process: Process = processes.start(
            "prometheus",
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yaml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.address}",
            ],
        )
        wait_until(lambda: self._get("/-/ready") is not None or None, "Prometheus to be ready", [self._process])

    def scrape(self, job: str, address: str) -> None:
        """Scrape a service from now on, in the place of one that had the same job."""
        self._of_jobs[job] = address
        self._write()

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        answer: Mapping[str, Any] = json.loads(self._get("/api/v1/alerts") or '{"data": {"alerts": []}}')
        return {one["labels"]["alertname"] for one in answer["data"]["alerts"] if one["state"] == "firing"}

    def value(self, query: str) -> float | None:
        """Return the first value of a query."""
        return next(iter(self.values(query)), None)

    def values(self, query: str) -> Sequence[float]:
        """Return all values of a query; none while the server does not answer. AssertionError where it has an error."""
        answer = json.loads(self._get(f"/api/v1/query?query={quote(query)}") or '{"data": {"result": []}}')
        assert "error" not in answer, f"{query}: {answer['error']}"
        return [float(one["value"][1]) for one in answer["data"]["result"]]

    def seconds_until(self, alert: str) -> float:
        """Wait until an alert fires; return how long that took."""
        began = time.monotonic()
        wait_until(lambda: alert in self.firing() or None, f"{alert} to fire", [self._process])
        return time.monotonic() - began

    def wait_until_silent(self, alert: str) -> None:
        """Wait until an alert fires no more."""
        wait_until(lambda: alert not in self.firing() or None, f"{alert} to end", [self._process])

    def _write(self) -> None:
        targets = [{"targets": [address], "labels": {"job": job}} for job, address in self._of_jobs.items()]
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps(targets))
        written.rename(self._targets)

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode() if path.startswith("/api/") else None
        except OSError:
            return None
