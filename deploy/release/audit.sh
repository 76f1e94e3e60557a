#!/usr/bin/env bash
# Ask osv.dev for known vulnerabilities of every locked package. An image has only packages of requirements/development.txt, in
# the same versions; which images have one: grep -l '^NAME==' requirements/*.txt
set -euo pipefail
cd "$(dirname "$0")/../.."
said=$(mktemp)
trap 'rm -f "$said"' EXIT
code=0
# The service `pypi`, pip-audit's default, counts a package that the index does not describe as one without vulnerabilities.
for file in requirements/development.txt requirements/deploy.txt requirements/spark-*.txt requirements/java-*.txt; do
    build/deploy/bin/pip-audit --strict --vulnerability-service osv --require-hashes --disable-pip --progress-spinner off \
        --requirement "$file" 2>"$said" && continue
    if grep -qE 'ConnectionError|ProxyError|Timeout' "$said"; then
        echo "FAILED: $file is not audited: cannot reach api.osv.dev. Run it on a machine that can, or set HTTPS_PROXY" >&2
        exit 2
    fi
    echo "FAILED: $file" >&2
    cat "$said" >&2
    code=1
done
exit $code
