"""Spark's daemon that forks Python workers, with all that a worker of ours imports already there.

A worker starts two seconds of CPU sooner, and shares that memory. gRPC is not in use here, so its fork handlers have
nothing to do; the threads that NumPy and Arrow start when they are imported are made for forks.
"""

import gc

from pyspark.daemon import manager

import services.cdc_consumer.adapters.stream.pubsub_reader
import services.cdc_consumer.adapters.stream.pubsub_source
import services.cdc_consumer.wiring.bigquery_cdc
import services.cdc_consumer.wiring.sink_task  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # its pages stay shared
    manager()
