#!/bin/sh
# What a container of this image is: the consumer, Spark's driver, with a command of its own if one is given; or, as
# `executor`, what Spark on Kubernetes starts in the pods that its driver asks for (its entrypoint's contract: the
# variables SPARK_EXECUTOR_*, SPARK_DRIVER_URL, SPARK_APPLICATION_ID, SPARK_RESOURCE_PROFILE_ID and SPARK_JAVA_OPT_n).
set -eu
if [ "${1-}" != executor ]; then
    exec python -m services.cdc_consumer "$@"
fi
jars=$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
number=0
set --
while value=$(printenv "SPARK_JAVA_OPT_$number"); do
    set -- "$@" "$value"
    number=$((number + 1))
done
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:${SPARK_CLASSPATH:-}:$jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
