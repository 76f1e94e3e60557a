#!/usr/bin/env bash
# Make build/spark/VERSION for each requirements/spark-VERSION.txt: an environment with that PySpark, 0.5 GB each, and with all
# else from .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for requirements in requirements/spark-*.txt; do
    version=${requirements#requirements/spark-}
    environment=build/spark/${version%.txt}
    .venv/bin/python -m venv --without-pip --clear "$environment"
    .venv/bin/python -m pip --python "$environment/bin/python" --disable-pip-version-check install --quiet --no-compile --no-deps \
        --require-hashes --requirement "$requirements"
    # last, so that pip does not take what is in .venv for installed
    echo "$packages" >"$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
done
