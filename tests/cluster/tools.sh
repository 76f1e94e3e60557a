#!/usr/bin/env bash
# Put the programs of a node of Kubernetes beside what tests/deploy/tools.sh has made, of the same version.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/tools.sh "make cluster" containerd ctr ip iptables runc unshare
if [ ! -x /usr/lib/cni/bridge ] && [ ! -x /opt/cni/bin/bridge ]; then
    echo "make cluster needs CNI's plugins: apt-get install containernetworking-plugins" >&2
    exit 1
fi
bin=$PWD/build/deploy/bin
cd build/deploy/kubernetes
version=$(sed -n 's#^require k8s.io/kubernetes ##p' go.mod)
for program in kubelet kube-controller-manager kube-scheduler; do
    CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" \
        -o "$bin" "k8s.io/kubernetes/cmd/$program"
done
