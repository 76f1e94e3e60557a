#!/bin/sh
# What a container of this image is: the consumer, Spark's driver, with a command of its own if one is given; or, as `driver`
# and as `executor`, what Spark on Kubernetes starts in its pods (by the contract of its own images' entrypoint).
set -eu

# In the pod that `spark-submit --deploy-mode cluster` makes, also for the Spark operator: --properties-file FILE --class
# CLASS FILE [ARGUMENT...]. It is the consumer, which starts Java with those properties. Spark's own entrypoint starts Java,
# and that Python; but a Java that gets SIGTERM ends at once, with 143, so nothing would be drained.
driver() {
    properties=
    while [ "${1-}" = --properties-file ] || [ "${1-}" = --class ]; do
        [ "$1" = --class ] || properties=$2
        shift 2
    done
    case "${1-}" in
        local:*/services/cdc_consumer/__main__.py) shift ;;
        *)
            echo "this image runs local:///app/services/cdc_consumer/__main__.py alone, not '${1-}'" >&2
            exit 2
            ;;
    esac
    # The consumer names these two on Java's command line, which comes before the file.
    SPARK_MASTER=${SPARK_MASTER:-$(property spark.master)}
    SPARK_DRIVER_MEMORY=${SPARK_DRIVER_MEMORY:-$(property spark.driver.memory)}
    # Executors find the driver at its own address: the name of its service leads nowhere until the pod is ready.
    PYSPARK_SUBMIT_ARGS="--deploy-mode client --properties-file $properties \
--conf spark.driver.host=$SPARK_DRIVER_BIND_ADDRESS ${PYSPARK_SUBMIT_ARGS:-pyspark-shell}"
    export SPARK_MASTER SPARK_DRIVER_MEMORY PYSPARK_SUBMIT_ARGS
    exec python -m services.cdc_consumer "$@"
}

property() {
    sed -n "s/^$1=//p" "$properties" | tr -d '\\'
}

# In the pods that a driver asks for. The rest is in variables: SPARK_EXECUTOR_*, SPARK_DRIVER_URL, SPARK_APPLICATION_ID,
# SPARK_RESOURCE_PROFILE_ID and SPARK_JAVA_OPT_n.
executor() {
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
}

case "${1-}" in
    driver | executor) "$@" ;;
    *) exec python -m services.cdc_consumer "$@" ;;
esac
