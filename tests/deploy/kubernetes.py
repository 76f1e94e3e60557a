"""Kubernetes' API server and its etcd on the loopback address.

It decides what a cluster decides before a pod runs: schemas, defaults, admission and permissions.
"""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.local.platform.emulators import HOST, free_port
from deploy.local.platform.processes import Processes
from tests.deploy.terraform_module import TOOLS

START: Final = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What kubectl and helm reach as a user who may do everything."""

    address: str
    authority: Path
    config: Path
    processes: Processes

    def run(self, program: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl or helm; the input is for ``--filename=-``."""
        home = self.config.parent
        return subprocess.run(
            [str(TOOLS / "bin" / program), *words],
            env={**os.environ, "KUBECONFIG": str(self.config), "HOME": str(home), "XDG_CACHE_HOME": str(home)},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )

    def done(self, program: str, *words: str, given: str = "") -> str:
        """Run a command that succeeds and warns of nothing; return what it prints."""
        ran = self.run(program, *words, given=given)
        assert (ran.returncode, ran.stderr) == (0, ""), f"{program} {' '.join(words)}: {ran.stderr}"
        return ran.stdout

    def items(self, namespace: str, kinds: str) -> Sequence[Mapping[str, Any]]:
        """Return the objects of some kinds, such as ``pods,services``."""
        found = json.loads(self.done("kubectl", "get", kinds, f"--namespace={namespace}", "--output=json"))
        items: Sequence[Mapping[str, Any]] = found["items"]
        return items


@contextmanager
def api_server(processes: Processes, directory: Path) -> Iterator[Cluster]:
    """Start it on free ports and with a token of its own; yield it once it is ready."""
    token = secrets.token_hex(16)
    (directory / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = ec.generate_private_key(ec.SECP256R1())
    (directory / "accounts.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    store, peers, port = (free_port() for _ in range(3))
    address, authority, config = f"https://{HOST}:{port}", directory / "apiserver.crt", directory / "config"
    config.touch(mode=0o600)
    config.write_text(_config(address, authority, token))
    cluster = Cluster(address, authority, config, processes)
    started = []
    try:
        for name, options in {
            "etcd": {
                "data-dir": directory / "etcd",
                "listen-client-urls": f"http://{HOST}:{store}",
                "advertise-client-urls": f"http://{HOST}:{store}",
                "listen-peer-urls": f"http://{HOST}:{peers}",
                "unsafe-no-fsync": "true",
            },
            "kube-apiserver": {
                "etcd-servers": f"http://{HOST}:{store}",
                "bind-address": HOST,
                "advertise-address": HOST,
                "secure-port": port,
                "cert-dir": directory,
                "endpoint-reconciler-type": "none",
                "service-cluster-ip-range": "10.96.0.0/16",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-signing-key-file": directory / "accounts.pem",
                "service-account-key-file": directory / "accounts.pem",
                "token-auth-file": directory / "tokens.csv",
                "authorization-mode": "RBAC",
                "kubelet-preferred-address-types": "InternalIP",
            },
        }.items():
            command = [str(TOOLS / "bin" / name), *(f"--{option}={value}" for option, value in options.items())]
            started.append(processes.start(name, command))
        processes.wait_until(
            lambda: cluster.run("kubectl", "get", "--raw=/readyz").returncode == 0, "the API server", START
        )
        yield cluster
    finally:
        for process in reversed(started):
            process.end()


def _config(address: str, authority: Path, token: str) -> str:
    named = {"cluster": "test", "user": "admin"}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": address, "certificate-authority": str(authority)}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": named}],
            "current-context": "test",
        }
    )
