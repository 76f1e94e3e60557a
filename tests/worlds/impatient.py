"""The consumer that waits seconds for executors, where `python -m services.cdc_consumer` waits five minutes."""

import os
import sys
from datetime import timedelta
from functools import partial

from services.cdc_consumer.wiring import service
from shared.runtime.service import run_as

if __name__ == "__main__":
    service.wait_for_slots = partial(service.wait_for_slots, within=timedelta(seconds=20))
    sys.exit(run_as("cdc_consumer", lambda: service.service(service.java), os.environ))
