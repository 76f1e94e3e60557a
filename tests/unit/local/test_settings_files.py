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
    ran = subprocess.run(["bash", "-c", f"{reading}; env -0"], env={}, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)
    return {name: value for name, value in found.items() if name not in {"PWD", "SHLVL", "_", "OLDPWD"}}


def test_a_shell_reads_what_the_services_have(tmp_path: Path) -> None:
    pipeline = replace(PIPELINE, tables_file=str(tmp_path / "it's $HOME's tables.toml"))
    reader = pipeline.reader_environment() | {"PORT": "8080"}
    consumer = pipeline.consumer_environment(tmp_path / "checkpoint") | {"PORT": "8081"}
    write_settings_files(tmp_path, {"spanner_reader_d": reader, "cdc_consumer": consumer})

    assert read_by_a_shell(tmp_path / "spanner_reader_d.env") == reader
    assert read_by_a_shell(tmp_path / "cdc_consumer.env") == consumer
    both = read_by_a_shell(tmp_path / "spanner_reader_d.env", tmp_path / "cdc_consumer.env")
    assert both == reader | consumer
    different = {name for name in reader.keys() & consumer.keys() if reader[name] != consumer[name]}
    assert different == {"PORT"}, "they agree on all else that both have"
