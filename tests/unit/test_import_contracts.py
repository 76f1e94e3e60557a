"""The import table holds where it is broken on purpose: each import planted in a copy of the tree is named."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LINTER: Final = Path(sys.executable).with_name("lint-imports")

LEAKS: Final = {
    "contracts stand alone: the standard library and msgspec": [
        ("shared.contracts.row_id", "requests"),
        ("shared.contracts.errors", "shared.runtime.stop"),
    ],
    "runtime knows contracts, and no cloud": [
        ("shared.runtime.health", "google.cloud.monitoring_v3"),
        ("shared.runtime.stop", "shared.pubsub.names"),
    ],
    "shared.pubsub knows contracts, runtime, reading and Pub/Sub, and no service": [
        ("shared.pubsub.names", "google.cloud.bigquery"),
        ("shared.pubsub.packer", "services.spanner_reader.ports"),
    ],
    "shared.reading knows contracts and runtime, and no cloud": [
        ("shared.reading.snapshots", "shared.pubsub.names"),
        ("shared.reading.topic_watch", "services.spanner_reader.ports"),
    ],
    "core is pure: contracts, itself, columns, and nothing of a clock or an environment": [
        ("services.spanner_reader.core.stream.changes", "services.spanner_reader.ports"),
        ("services.spanner_reader.core.stream.records", "shared.runtime.clock"),
        ("services.spanner_reader.core.stream.partitions", "time"),
        ("services.cdc_consumer.core.schema.tables", "structlog"),
    ],
    "ports are made of core and contracts": [
        ("services.cdc_consumer.ports", "services.cdc_consumer.app.status.metrics"),
    ],
    "settings know how settings are read": [
        ("services.spanner_reader.settings", "services.spanner_reader.app.stream.owned_partition"),
    ],
    "app knows core, ports, contracts, runtime and reading: no adapter, no cloud": [
        ("services.cdc_consumer.app.status.metrics", "services.cdc_consumer.adapters.stream.pulling"),
        ("services.cdc_consumer.app.stream.reports", "shared.pubsub.dead_letters"),
        ("services.spanner_reader.app.stream.reader", "google.cloud.spanner_v1"),
        ("services.spanner_reader.app.stream.owned_partition", "services.spanner_reader.wiring.service"),
    ],
    "adapters know core, ports, shared and the cloud, not the app that calls them": [
        ("services.spanner_reader.adapters.spanner.chunks", "services.spanner_reader.app.stream.owned_partition"),
        ("services.cdc_consumer.adapters.stream.pulling", "services.cdc_consumer.wiring.sink_task"),
        ("services.cdc_consumer.adapters.spark.spark_session", "services.cdc_consumer.settings"),
    ],
    "commands know the app and how to talk to a terminal": [
        ("services.spanner_reader.commands.snapshot", "services.spanner_reader.adapters.snapshot.snapshot_table"),
    ],
    "the web knows the app and how to answer": [
        ("services.dead_letter.web.routes", "services.dead_letter.commands.app"),
    ],
    "wiring joins one service's parts": [
        ("services.spanner_reader.wiring.service", "services.cdc_consumer.settings"),
        ("services.cdc_consumer.wiring.bigquery_cdc", "deploy.local.platform.services"),
    ],
    "emulators can be used alone": [
        ("emulators.bigquery.sql", "services.cdc_consumer.core.types.types"),
        ("emulators.bigtable_streams.server", "shared.runtime.stop"),
    ],
    "the local platform starts services as processes and never imports them": [
        ("deploy.local.proof.run", "services.spanner_reader.core.stream.changes"),
    ],
    "what spanner_reader imports, its extra declares": [
        ("services.spanner_reader.adapters.spanner.errors", "google.cloud.bigquery"),
    ],
    "what cdc_consumer imports, its extra declares": [
        ("services.cdc_consumer.adapters.schema.tables", "google.cloud.spanner_v1"),
    ],
    "what the emulators import, their extra declares": [
        ("emulators.bigquery.server", "google.cloud.spanner_v1"),
    ],
    "what the local platform imports, its extra declares": [
        ("deploy.local.platform.source", "pyspark.sql"),
    ],
    "no test module is imported: what tests share is in tests/worlds, tests/fakes and tests/builders.py": [
        ("tests.unit.local.test_services", "tests.unit.dead_letter.test_replay"),
    ],
    "what the tests import is declared": [
        ("tests.builders", "pip"),
    ],
}
"""By contract: a module, and what it must not import."""
PLANTED: Final = [(contract, *leak) for contract, leaks in LEAKS.items() for leak in leaks]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what import-linter says of a copy of the tree with all the leaks in it."""
    copy = tmp_path_factory.mktemp("tree")
    for top in ("services", "shared", "emulators", "deploy", "tests"):
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for number, (_contract, module, name) in enumerate(PLANTED):
        parent, _, last = name.rpartition(".")
        leak = (
            f"def leak_{number}() -> None:\n    from {parent} import {last}\n",  # hidden in a function
            f"if TYPE_CHECKING:\n    from {parent} import {last} as leak_{number}\n",  # never run
            f"import {name} as leak_{number}\n",
        )[number % 3 if parent else 2]
        with (copy / f"{module.replace('.', '/')}.py").open("a") as file:
            file.write(f"\n{leak}")
    (copy / "shared" / "stray.py").write_text("import json\n")
    run = subprocess.run(
        [LINTER, "--no-cache"],
        cwd=copy,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize(("contract", "module", "name"), PLANTED)
def test_a_leak_breaks_its_contract_by_name(report: str, contract: str, module: str, name: str) -> None:
    parts = re.split(r"^(.+)\n-{3,}\n", report, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert re.search(rf"^- {re.escape(module)} -> {re.escape(name)} \(l\.\d+\)", sections[contract], re.MULTILINE)


def test_a_module_that_no_list_is_about_is_named(report: str) -> None:
    assert "every module has its list BROKEN" in report
    assert "shared.stray: no list" in report


def test_services_that_import_each_other_are_named(report: str) -> None:
    assert "services never import each other BROKEN" in report
    assert "services.spanner_reader is not allowed to import services.cdc_consumer" in report
