"""What docker-compose.yaml and its override promise, as far as text shows it; `make containers` runs them."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.demo.wide_tables import WIDE_TABLES
from deploy.local.platform import compose
from deploy.local.platform.creation import (
    APP_PROFILE,
    DATABASES,
    INSTANCE,
    PROJECT,
    Addresses,
    CreateSettings,
    tables_file,
    write_api_token,
)
from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import BigtablePipeline, Flow, Pipeline
from deploy.local.platform.stack import reader_name
from deploy.local.proof.containers import READERS
from services.bigtable_reader.settings import Settings as BigtableReaderSettings
from services.cdc_consumer.settings import Settings as ConsumerSettings
from services.dead_letter.settings import Settings as DeadLetterSettings
from services.dead_letter.web.callers import read_tokens
from services.dead_letter.web.token_file import TokenFile
from services.spanner_reader.settings import Settings as SpannerReaderSettings
from shared.runtime.settings import read_settings, variable_name

BOTH = (compose.FILE, compose.FILE_OF_SDK)
SETTINGS: Mapping[str, type[Any]] = {
    "spanner_reader_flights": SpannerReaderSettings,
    "spanner_reader_weather": SpannerReaderSettings,
    "bigtable_reader_hourly_weather": BigtableReaderSettings,
    "bigtable_reader_airport_traffic": BigtableReaderSettings,
    "cdc_consumer": ConsumerSettings,
    "dead_letter": DeadLetterSettings,
}
FLOW: Mapping[str, Any] = {
    "pubsub": "pubsub:8085",
    "bigquery_rest": "bigquery:9050",
    "bigquery_grpc": "bigquery:9060",
    "project": PROJECT,
    "tables_file": "/etc/millrace/tables.toml",
}


def text_of(file: str) -> str:
    """Return a compose file with the defaults of its variables."""
    return re.sub(r"\$\{\w+(?::[-?]([^}]*))?\}", r"\1", (ROOT / file).read_text())


def services(file: str = compose.FILE) -> dict[str, dict[str, Any]]:
    """Return the services of a compose file."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(text_of(file))["services"]
    return found


def environment(service: str) -> dict[str, str]:
    """Return what a service is told by the compose file."""
    return {name: str(value) for name, value in services()[service]["environment"].items()}


def fields(settings: type[Any]) -> Iterator[Any]:
    """Yield the fields of a settings class."""
    yield from settings.__dataclass_fields__.values()


@pytest.mark.parametrize("file", BOTH)
def test_a_compose_file_is_one(file: str) -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    command = [str(checker), "--builtin-schema", "vendor.compose-spec", file]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("file", BOTH)
def test_compose_1_29_takes_it_too(file: str) -> None:
    top = [key for key in yaml.safe_load((ROOT / file).read_text()) if not key.startswith("x-")]
    assert set(top) <= {"services", "volumes"}


def test_there_is_a_service_for_every_reader_of_the_demo_and_for_the_rest() -> None:
    pipelines = [*_pipelines()]
    assert set(READERS) == {reader_name(one) for one in pipelines}
    platform = {"toolbox", "create", "bigquery", "bigtable", *compose.EMULATORS}
    assert set(services()) == {*READERS, "cdc_consumer", "dead_letter", *platform}


def test_every_port_is_published_on_the_loopback_address_alone_and_can_be_chosen() -> None:
    chosen = re.findall(r"127\.0\.0\.1:\$\{(\w+):-\d+\}:\d+", (ROOT / compose.FILE).read_text())
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert len(published) == len(chosen)
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert sorted(chosen) == sorted(compose.PORTS)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_every_container_has_limits_of_memory_and_of_cores() -> None:
    assert [name for name, values in services().items() if "mem_limit" not in values] == []
    # plain numbers, which compose 1.29 needs; a machine has to have as many cores
    assert {name for name, values in services().items() if values.get("cpus") not in (1, 2)} == set()
    assert all(
        isinstance(one["cpus"], int) for one in yaml.safe_load((ROOT / compose.FILE).read_text())["services"].values()
    )


def test_the_token_of_the_api_is_made_on_this_machine_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "api_token"
    values = {**environment("create"), "API_TOKEN_FILE": str(file)}
    assert environment("dead_letter")["API_TOKEN_FILE"] == environment("create")["API_TOKEN_FILE"]
    write_api_token(read_settings(CreateSettings, values))
    made = file.read_text()
    assert len(made.strip()) > 40
    assert file.stat().st_mode & 0o777 == 0o600
    write_api_token(read_settings(CreateSettings, values))
    assert file.read_text() == made
    file.write_text("")  # as a crash may have left it
    write_api_token(read_settings(CreateSettings, values))
    assert len(file.read_text().strip()) > 40
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    write_api_token(read_settings(CreateSettings, {**values, "API_TOKEN": "a-token-of-the-users-own"}))
    assert TokenFile(file)()[0] == read_tokens("a-token-of-the-users-own", "")[0]


@pytest.mark.parametrize("service", SETTINGS)
def test_a_service_is_given_nothing_that_it_does_not_know_and_all_that_it_needs(service: str, tmp_path: Path) -> None:
    values = environment(service)
    known = {variable_name(field) for field in fields(SETTINGS[service])}
    assert set(values) <= known
    assert values["TABLES_FILE"] == "/etc/millrace/tables.toml"
    written = tmp_path / "tables.toml"
    written.write_text(tables_file())
    there = {name: str(written) for name in ("TABLES_FILE", "API_TOKEN_FILE") if name in values}
    assert read_settings(SETTINGS[service], values | there).tables_file == written


def test_what_makes_the_tables_is_given_nothing_that_it_does_not_know_and_all_that_it_needs() -> None:
    values = environment("create")
    known = {variable_name(field) for each in (Addresses, CreateSettings) for field in fields(each)}
    assert set(values) <= known
    assert read_settings(Addresses, values).spanner == "spanner:9010"
    read_settings(CreateSettings, values)


def test_readers_are_given_what_make_run_gives_them() -> None:
    for pipeline in _pipelines():
        by_name = {key: _short(value) for key, value in pipeline.reader_environment().items()}
        values = environment(reader_name(pipeline))
        assert {key: _short(values[key]) for key in by_name} == by_name


def test_the_toolbox_has_every_setting_of_every_service_except_the_source() -> None:
    toolbox = environment("toolbox")
    source = {"SPANNER_DATABASE", "CHANGE_STREAM", "PARTITION_DATABASE", "BIGTABLE_TABLE"}
    all_of_them = {item for service in SETTINGS for item in environment(service).items() if item[0] not in source}
    assert set(toolbox.items()) - all_of_them == {("DATABASE", toolbox["DATABASE"])}
    assert all_of_them <= set(toolbox.items())
    assert f"DATABASE={toolbox['DATABASE']}\n" in (ROOT / "deploy/Dockerfile").read_text()


def test_an_image_that_is_not_built_here_is_of_one_version() -> None:
    pulled = {one["image"] for one in services().values() if "build" not in one}
    assert [one for one in pulled if not re.fullmatch(r"gcr\.io/[a-z./-]+:[0-9.]+(-emulators)?", one)] == []
    assert len(pulled) == 2


def test_an_image_is_the_target_of_its_name() -> None:
    built = [(each["image"], each["build"]) for file in BOTH for each in services(file).values() if "build" in each]
    assert {image for image, _ in built} >= {"millrace/toolbox:latest", "millrace/emulators_of_sdk:latest"}
    for image, build in built:
        assert (build["context"], build["dockerfile"]) == (".", "deploy/Dockerfile")
        assert image == f"millrace/{build['target']}:latest"


def test_consumer_and_dead_letter_service_are_given_what_make_run_gives_them() -> None:
    flow = Flow(**FLOW)
    of_consumer = flow.consumer_environment(Path("/var/lib/millrace/checkpoint"))
    of_dead_letter = flow.dead_letter_environment(Path("/var/lib/millrace/dead_letters.sqlite3"))
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert f"DATABASE={of_dead_letter.pop('DATABASE')}\n" in dockerfile
    for service, expected in (("cdc_consumer", of_consumer), ("dead_letter", of_dead_letter)):
        values = environment(service)
        assert {key: _short(values[key]) for key in expected} == {key: _short(value) for key, value in expected.items()}


@pytest.mark.parametrize("service", [*SETTINGS, "toolbox", "create", "bigquery", "bigtable"])
def test_what_is_ours_may_write_nowhere_and_gain_nothing(service: str) -> None:
    values = services()[service]
    assert values["read_only"] is True
    assert values["cap_drop"] == ["ALL"]
    assert values["security_opt"] == ["no-new-privileges:true"]
    assert values["tmpfs"]


@pytest.mark.parametrize("service", SETTINGS)
def test_services_start_when_everything_is_made_and_have_time_to_end(service: str) -> None:
    values = services()[service]
    assert values["depends_on"] == {"create": {"condition": "service_completed_successfully"}}
    assert int(values["stop_grace_period"].removesuffix("s")) > 10
    assert values["restart"] == "unless-stopped"


def test_everything_is_waited_for_until_it_is_healthy() -> None:
    all_of_it = services()
    for name, values in all_of_it.items():
        for other, how in values.get("depends_on", {}).items():
            tested = "healthcheck" in all_of_it[other]
            if other == "spanner":  # an image without a shell
                assert (how["condition"], name) == ("service_started", "create")
            else:
                assert how["condition"] == ("service_healthy" if tested else "service_completed_successfully")


def test_only_emulators_are_stood_in() -> None:
    assert set(services(compose.FILE_OF_SDK)) == set(compose.EMULATORS)


def _pipelines() -> Iterator[Pipeline | BigtablePipeline]:
    for database in DATABASES:
        yield Pipeline(
            **FLOW,
            spanner="spanner:9010",
            instance=INSTANCE,
            database=database.name,
            partition_database=f"{database.name}-millrace",
            change_stream=database.change_stream,
        )
    for table in WIDE_TABLES:
        values = {"bigtable": "bigtable:8086", "instance": INSTANCE, "app_profile": APP_PROFILE}
        yield BigtablePipeline(**FLOW, **values, table=table.name)


def _short(name: str) -> str:
    """Return a name without the project's path, in which it may be written, too."""
    return re.sub(r"^projects/[^/]+/(?:topics|subscriptions)/", "", name)
