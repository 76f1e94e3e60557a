"""The emulators answer, and what is missing on a machine is named."""

import os
from pathlib import Path

import pytest
from google.api_core.exceptions import GoogleAPICallError

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerInstance, Write
from deploy.local.platform.target import BigQueryDataset
from shared.contracts.errors import MisconfiguredError

pytestmark = pytest.mark.integration

TABLE = "CREATE TABLE words (id INT64 NOT NULL, word STRING(MAX)) PRIMARY KEY (id)"


def test_an_emulator_that_is_gone_is_an_error_within_its_deadline(new_processes: Processes) -> None:
    with emulators.spanner_emulator(new_processes) as address:
        words = SpannerInstance.create(address, "project", "instance").create_database([TABLE])

    with pytest.raises(GoogleAPICallError):
        words.commit([Write("insert", "words", {"id": 1})])


def test_the_stand_in_finds_again_what_it_kept_in_a_directory_and_nothing_without(
    new_processes: Processes, tmp_path: Path
) -> None:
    def words_after(directory: Path | None, *statements: str) -> list[dict[str, object]] | None:
        with emulators.bigquery_stand_in(new_processes, directory=directory) as (rest, _):
            dataset = BigQueryDataset(rest, "project", "kept")
            dataset.create()
            for statement in statements:
                dataset.query(statement)
            found = dataset.rows("words")
            dataset.close()
        return found

    kept, made = [{"word": "one"}], ("CREATE TABLE words (word STRING)", "INSERT INTO words (word) VALUES ('one')")
    assert words_after(tmp_path / "kept", *made) == kept
    assert words_after(tmp_path / "kept") == kept
    assert words_after(None) is None


def test_a_machine_without_the_sdk_gets_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=r"CLOUDSDK_ROOT.*gcloud components install"):
        emulators.find_sdk({"PATH": str(tmp_path)})


def test_of_an_sdk_without_its_emulators_those_it_lacks_are_named(tmp_path: Path) -> None:
    spanner = tmp_path / "bin/cloud_spanner_emulator/emulator_main"
    spanner.parent.mkdir(parents=True)
    spanner.touch()

    with pytest.raises(MisconfiguredError, match=r"lacks .* Pub/Sub emulator and the Bigtable emulator. .*pubsub"):
        emulators.find_sdk({"PATH": "", "CLOUDSDK_ROOT": str(tmp_path)})


def test_a_machine_without_java_gets_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=r"Java 17 or newer is needed .*; none was found on PATH"):
        emulators.find_java({"PATH": str(tmp_path)})


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)

    with pytest.raises(MisconfiguredError, match=r"Java 17 or newer is needed .*java is 11"):
        emulators.find_java({**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)})
