#!/usr/bin/env bash
# Put into build/deploy what checks the Terraform module and the chart, beside Python packages: helm and kubectl, where they are
# not on PATH; etcd and the API server of Kubernetes; the kinds of KEDA and of the Spark operator. Go has these as modules, all
# under the Apache License 2.0, and builds them from source: some fifteen minutes of one core the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/tools.sh "make deploy-checks" terraform go
bin=$PWD/build/deploy/bin
if helm=$(command -v helm); then
    ln -sf "$helm" "$bin/helm"
else
    GOBIN=$bin go install helm.sh/helm/v3/cmd/helm@v3.18.6
fi

kubernetes=1.37.2 keda=2.21.0
programs=(kube-apiserver)
if kubectl=$(command -v kubectl); then
    ln -sf "$kubectl" "$bin/kubectl"
else
    programs+=(kubectl)
fi
from() { go mod download -json "$1" | sed -n "s/^\t\"$2\": \"\(.*\)\",\{0,1\}$/\1/p"; }
# Kubernetes is built with the versions that it names itself; its parts that lie in its own folder have modules, too
mkdir -p build/deploy/kubernetes
sed -e "s#^module .*#module kubernetes\nrequire k8s.io/kubernetes v$kubernetes#" \
    -e "s#=> ./staging/src/\(.*\)#=> \1 v0.${kubernetes#*.}#" \
    "$(from "k8s.io/kubernetes@v$kubernetes" GoMod)" >build/deploy/kubernetes/go.mod
cd build/deploy/kubernetes
version="-X k8s.io/component-base/version.gitVersion=v$kubernetes"
CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w" -o "$bin/etcd" go.etcd.io/etcd/server/v3
CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w $version" -o "$bin" "${programs[@]/#/k8s.io/kubernetes/cmd/}"
cd ..
mkdir -p keda
cp --no-preserve=mode "$(from "github.com/kedacore/keda/v2@v$keda" Dir)"/config/crd/bases/keda.sh_*.yaml keda
operator=$(from github.com/kubeflow/spark-operator/v2@v2.4.0 Dir)
cp --no-preserve=mode "$operator/config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml" sparkapplication.yaml
