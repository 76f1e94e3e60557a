#!/usr/bin/env bash
# Put helm, where it is not on PATH, and the Spark operator's schema into build/deploy. Go builds helm from source: ten minutes
# the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/tools.sh "make deploy-checks" terraform go
if helm=$(command -v helm); then
    ln -sf "$helm" build/deploy/bin/helm
else
    GOBIN=$PWD/build/deploy/bin go install helm.sh/helm/v3/cmd/helm@v3.18.6
fi
# the schema of a SparkApplication lies in the operator's Go module
operator=$(cd build/deploy && GOFLAGS=-mod=mod go mod download -json github.com/kubeflow/spark-operator/v2@v2.4.0 |
    sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
install --mode 644 "$operator/config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml" build/deploy/sparkapplication.yaml
