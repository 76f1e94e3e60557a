"""A region that is away: all that the services stand on stands still at once, with changes on their way."""

import time
from contextlib import ExitStack

import pytest

from deploy.local.platform.processes import Processes
from tests.e2e.load import Load
from tests.e2e.standing import ACK_DEADLINE
from tests.exhaustive.deployment import ALL, Deployment
from tests.worlds.churn import standing_still

OUTAGE = 3 * ACK_DEADLINE
"""Longer than the leases of partitions and of messages."""

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("killed", [False, True], ids=["services stay", "services are killed"])
def test_when_a_region_comes_back_nothing_is_lost_and_all_flows(
    deployment: Deployment, platform_processes: Processes, killed: bool
) -> None:
    deployment.start(*ALL)
    load = Load(deployment.rig, deployment.source)
    with load.running():
        deployment.wait_until_it_flows()
    with ExitStack() as region:
        for each in platform_processes.running:
            region.enter_context(standing_still(each))
        if killed:
            deployment.kill(*ALL)
        time.sleep(OUTAGE.total_seconds())  # a lease that is not renewed ends by nothing but time
        deployment.processes.check()
    if killed:
        deployment.start(*ALL)
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, load.poison)
