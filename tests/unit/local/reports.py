"""The report of a run in which all is well but for what a test names."""

from collections.abc import Sequence

from deploy.local.demo.latency import Latencies
from deploy.local.proof.dead_letters import DeadLettersFound
from deploy.local.proof.missing_rows import MissingRowsProof
from deploy.local.proof.reconciling import Reconciled
from deploy.local.proof.report import Compared, Report, SideFound


def a_report(
    databases: Sequence[Compared] = (),
    reconciled: Sequence[Reconciled] = (),
    missing_rows: MissingRowsProof | None = None,
) -> Report:
    sides = [SideFound("Spanner", list(databases), {}, Latencies([], 0, 0))]
    dead_letters = DeadLettersFound({"undecodable": 1}, {"discarded": 1})
    return Report(sides, {}, dead_letters, list(reconciled), missing_rows)
