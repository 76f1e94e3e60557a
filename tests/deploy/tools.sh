#!/usr/bin/env bash
# Put helm into build/deploy. Where it is not on PATH, Go builds it from source: ten minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/tools.sh "make deploy-checks" terraform go
if helm=$(command -v helm); then
    ln -sf "$helm" build/deploy/bin/helm
else
    GOBIN=$PWD/build/deploy/bin go install helm.sh/helm/v3/cmd/helm@v3.18.6
fi
