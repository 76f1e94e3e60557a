#!/usr/bin/env bash
# Make build/deploy: the Python packages that check the Terraform module and the chart, the Spark operator's schema, and helm
# where it is not on PATH. Go builds helm from source: ten minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/tools.sh "make deploy-checks" terraform go
.venv/bin/python -m venv --clear build/deploy
build/deploy/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes \
    --requirement requirements/deploy.txt
if helm=$(command -v helm); then
    ln -sf "$helm" build/deploy/bin/helm
else
    GOBIN=$PWD/build/deploy/bin go install helm.sh/helm/v3/cmd/helm@v3.18.6
fi
# the schema of a SparkApplication lies in the operator's Go module
operator=$(cd build/deploy && GOFLAGS=-mod=mod go mod download -json github.com/kubeflow/spark-operator/v2@v2.4.0 |
    sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
install --mode 644 "$operator/config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml" build/deploy/sparkapplication.yaml
