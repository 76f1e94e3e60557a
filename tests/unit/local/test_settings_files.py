"""The settings that `make up` leaves for a shell are those of the services, whatever is in them."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deploy.local.platform.background import write_settings_files
from tests.worlds.pipeline_settings import PIPELINE


def read_by_a_shell(*files: Path) -> Mapping[str, str]:
    """Return what a shell has in its environment that has read some files, but for what it brings itself."""
    reading = "; ".join(f". '{file}'" for file in files)
    said = subprocess.run(["bash", "-c", f"{reading}; env -0"], env={}, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in said.stdout.split("\0") if line)
    return {name: value for name, value in found.items() if name not in {"PWD", "SHLVL", "_", "OLDPWD"}}


def test_a_shell_reads_what_the_services_have(tmp_path: Path) -> None:
    reader = replace(PIPELINE, tables_file=str(tmp_path / "it's $HOME's tables.toml"))
    write_settings_files(tmp_path, reader, [reader])

    consumer = reader.consumer_environment(tmp_path / "cdc_consumer-checkpoint")
    assert read_by_a_shell(tmp_path / "spanner_reader_d.env") == reader.reader_environment()
    assert read_by_a_shell(tmp_path / "cdc_consumer.env") == consumer
    assert read_by_a_shell(tmp_path / "dead_letter.env")["TABLES_FILE"] == reader.tables_file
    both = read_by_a_shell(tmp_path / "spanner_reader_d.env", tmp_path / "cdc_consumer.env")
    assert both == consumer | reader.reader_environment(), "they agree on all that both have"
