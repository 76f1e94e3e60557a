"""The consumer as a managed Spark starts it: `spark-submit`, whose Java starts the consumer and goes with it.

`python -m tests.worlds.submitted` in place of `python -m services.cdc_consumer`, on two executors of one core each.
"""

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

from deploy.local.platform.emulators import HOST, ROOT

_PROGRAM: Final = ROOT / "services" / "cdc_consumer" / "__main__.py"


def main() -> None:
    """Become `spark-submit`."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST, "SPARK_MASTER": "submitted"}
    submit = Path(_find_spark_home(), "bin", "spark-submit")
    os.execv(submit, [str(submit), "--master", "local-cluster[2,1,1024]", str(_PROGRAM)])  # noqa: S606  no shell is needed


if __name__ == "__main__":
    main()
