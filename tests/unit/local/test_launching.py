"""Commands that a run starts: a stop of the run ends the one that runs."""

import os
import signal

from deploy.local.proof.launching import LocalLauncher
from shared.runtime.stop import Stop
from tests.worlds.pipeline_settings import PIPELINE


def test_a_stop_ends_the_command_that_runs() -> None:
    stop = Stop()
    stop.request()
    ran = LocalLauncher(os.environ, stop)(PIPELINE, "reconcile", "--all")
    assert ran.returncode == -signal.SIGTERM


def test_a_command_that_is_not_stopped_reports_how_it_ended() -> None:
    ran = LocalLauncher(os.environ, Stop())(PIPELINE, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("usage: millrace")
