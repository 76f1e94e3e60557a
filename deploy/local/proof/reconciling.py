"""The comparison that operators have, `millrace reconcile`, run at the end of a run.

It stands beside the comparison of this package (`comparison.py`), which shares no code with what it judges.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.local.platform.services import AnyPipeline
from deploy.local.proof.launching import Launcher

_SETTLE: Final = "5s"
"""How long a difference has to stand: nothing is written any more, and everything is applied."""
_MOST_NAMED: Final = 10


@dataclass(slots=True)
class Reconciled:
    """The command's answer for the tables of one source."""

    source: str
    tables: Sequence[str] = ()
    rows: int = 0
    differing: Sequence[str] = field(default_factory=list)
    """A line for each table that is not equal."""

    def __str__(self) -> str:
        if self.differing:
            return "; ".join(self.differing)
        return f"{len(self.tables)} table{'' if len(self.tables) == 1 else 's'} equal, {self.rows:,} rows"


def read_answer(source: str, code: int, output: str, complaint: str) -> Reconciled:
    """Return the command's answer; a table that it could not compare is not equal."""
    try:
        document: Mapping[str, Any] = json.loads(output)
        compared: Sequence[Mapping[str, Any]] = document["tables"]
        differing = [_differing(one) for one in compared if one["verdict"] != "equal"]
        differing += [f"{one['table']} was not compared: {one['why']}" for one in document["not_compared"]]
    except (json.JSONDecodeError, KeyError, TypeError):
        return Reconciled(source, differing=[f"ended with exit code {code}: {(complaint or output).strip()[-500:]}"])
    if code and not differing:
        differing = [f"ended with exit code {code}"]
    rows = sum(int(one["source_rows"]) for one in compared)
    return Reconciled(source, [str(one["table"]) for one in compared], rows, differing)


def reconcile_all(launch: Launcher, pipelines: Sequence[AnyPipeline]) -> Sequence[Reconciled]:
    """Compare all that each source has, all sources at once."""

    def reconcile(pipeline: AnyPipeline) -> Reconciled:
        ran = launch(pipeline, "reconcile", "--all", "--json", "--settle", _SETTLE)
        return read_answer(pipeline.name_of_source, ran.returncode, ran.stdout, ran.stderr)

    if not pipelines:
        return []
    with ThreadPoolExecutor(len(pipelines), thread_name_prefix="reconcile") as pool:
        return list(pool.map(reconcile, pipelines))


def _differing(compared: Mapping[str, Any]) -> str:
    keys = [f"{json.dumps(one['key'])} {one['kind']}" for one in compared["differences"]]
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return f"{compared['table']} is {compared['verdict']}: {', '.join(keys[:_MOST_NAMED])}{more}"
