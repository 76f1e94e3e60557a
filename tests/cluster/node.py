"""A node of Kubernetes, and the controllers that make pods for it, beside an API server: in `isolated.sh`, as root."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.local.platform.emulators import HOST
from shared.contracts.errors import MisconfiguredError
from tests.deploy.kubernetes import Cluster
from tests.deploy.terraform_module import TOOLS

NAME: Final = "node"
GATEWAY: Final = "10.244.0.1"
"""The node's address, behind which pods find what listens on its loopback address."""
_SUBNET: Final = "10.244.0.0/24"
_BRIDGE: Final = "pods"
_CGROUP: Final = "/millrace-cluster"
_PLUGINS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_SOCKET: Final = "/run/containerd/containerd.sock"
_START: Final = timedelta(minutes=3)
_NETWORK: Final = f"""
ip link add {_BRIDGE} type bridge
ip address add {GATEWAY}/24 dev {_BRIDGE}
ip link set {_BRIDGE} up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv4/conf/{_BRIDGE}/route_localnet
iptables --table nat --append PREROUTING --destination {GATEWAY} --protocol tcp --jump DNAT --to-destination {HOST}
for controller in /sys/fs/cgroup/*/; do mkdir --parents "$controller{_CGROUP}"; done
"""
_PODS: Final = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": _BRIDGE,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": _SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
"""The network of the pods, for CNI."""


@contextmanager
def node(cluster: Cluster, images: Path, directory: Path) -> Iterator[None]:
    """Start it and yield once it takes pods; ``images`` has the images, and the tag that they all have."""
    if os.getppid() != 1:
        raise MisconfiguredError("not-isolated", "a node changes its machine: `make cluster` runs it in isolated.sh")
    subprocess.run(["bash", "-euc", _NETWORK], check=True)
    (directory / "network").mkdir()
    (directory / "network" / "pods.conflist").write_text(json.dumps(_PODS))
    (directory / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(directory)))
    (directory / "containerd.toml").write_text(_containerd(directory, (images / "tag").read_text()))
    options: Mapping[str, Mapping[str, object]] = {
        "kube-controller-manager": {
            "service-account-private-key-file": cluster.config.parent / "accounts.pem",
            "root-ca-file": cluster.authority,
            "flex-volume-plugin-dir": directory / "plugins",
            "leader-elect": "false",
        },
        "kube-scheduler": {"leader-elect": "false"},
        "kubelet": {
            "config": directory / "kubelet.yaml",
            "root-dir": directory / "kubelet",
            "cert-dir": directory / "kubelet",
            "hostname-override": NAME,
            "node-ip": GATEWAY,
        },
    }
    processes = cluster.processes
    started = [processes.start("containerd", ["containerd", f"--config={directory}/containerd.toml"])]
    try:
        ctr = ["ctr", f"--address={_SOCKET}", "--namespace=k8s.io"]
        processes.wait_until(lambda: _succeeds(*ctr, "version"), "containerd", _START)
        subprocess.run([*ctr, "images", "import", str(images / "images.tar")], check=True, stdout=subprocess.DEVNULL)
        for name, given in options.items():
            words = [f"--{option}={value}" for option, value in {"kubeconfig": cluster.config, **given}.items()]
            started.append(processes.start(name, [str(TOOLS / "bin" / name), *words]))
        processes.wait_until(lambda: _ready(cluster), "the node to be ready", _START)
        yield
    finally:
        for process in reversed(started):
            process.end()


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _ready(cluster: Cluster) -> bool:
    path = "--output=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    return cluster.run("kubectl", "get", "nodes", path).stdout == "True"


def _containerd(directory: Path, tag: str) -> str:
    return f"""
version = 2
root = "{directory}/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/millrace/pause:{tag}"
restrict_oom_score_adj = true  # for machines on which root may not make a process safer from the kernel's choice
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{next((path for path in _PLUGINS if path.is_dir()), _PLUGINS[0])}"
conf_dir = "{directory}/network"
"""


def _kubelet(directory: Path) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": _CGROUP,
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
        "podLogsDir": str(directory / "logs"),
        "volumePluginDir": str(directory / "plugins"),
    }
