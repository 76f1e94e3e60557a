"""The consumer: change batches of a Pub/Sub subscription, applied to BigQuery tables by a Spark streaming query.

`python -m services.cdc_consumer` runs it; with `setup` it makes its topics and subscriptions, with `doctor` it checks
whether all that it needs is there and right, with `status` it asks the one that runs how each table is, with
`delete-missing-rows` it deletes from a mirror what its source no longer has, with `reconcile` it compares mirrors with
their source, with `tables` it prints what source tables become under a tables file.
Exits 0 when asked to stop, 1 when the query failed (the restart is the retry), 2 when nothing will work until someone
acts; the log says what.

With TRIGGER=available-now it ends once a pull that waited, and five more, have found nothing: all that could be leased
is applied or dead-lettered. The exit code is 0; or 3 if messages are deferred to the next run because their table is in
trouble, also if an earlier run deferred them and they are still to come again. The log says when.

Where most of what comes is poison, the query stops with exit code 2 and dead-letters no more. If it is to become dead
letters all the same, POISON_LIMIT=N lets N messages (ten times as many changes) of all tasks together pass.
"""

import os
import sys
from collections.abc import Sequence

from services.cdc_consumer.adapters.spark.spark_version import check_spark
from shared.runtime.service import run_as


def main(arguments: Sequence[str]) -> int:
    """Run the service, or a command beside it; return the exit code."""
    return run_as("cdc_consumer", lambda: _run(arguments), os.environ, typed=bool(arguments))


def _run(arguments: Sequence[str]) -> int:
    if arguments:
        from services.cdc_consumer.wiring.commands import command  # noqa: PLC0415  a command needs no Spark

        return command(arguments, os.environ)
    from pyspark import __version__  # noqa: PLC0415  no command needs it

    check_spark(__version__)
    from services.cdc_consumer.wiring.service import java, service  # noqa: PLC0415  after the check: it imports names that an older PySpark lacks

    return service(java)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
