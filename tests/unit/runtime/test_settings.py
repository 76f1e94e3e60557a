"""Settings: every mistake in one error."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.bigtable_reader.settings import Settings as BigtableReader
from services.cdc_consumer.settings import ReconcileSettings as Reconcile
from services.cdc_consumer.settings import Settings as Consumer
from services.cdc_consumer.settings import SetupSettings as Setup
from services.dead_letter.settings import CommandSettings as DeadLetterCommands
from services.dead_letter.settings import Settings as DeadLetter
from services.spanner_reader.settings import Settings as SpannerReader
from shared.contracts.durations import format_duration, parse_duration
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.google_names import dataset_id, project_id, subscription_id, topic_id
from shared.runtime.settings import (
    HIDDEN,
    LogLevel,
    check_together,
    file_there,
    hidden,
    misspelt_variables,
    read_settings,
    setting,
    settings_shown,
    together,
    variable_name,
)


def lower(text: str) -> None:
    if not text.islower():
        raise ValueError("not in lower case")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    project: str = setting("the project", env="GOOGLE_CLOUD_PROJECT")
    heartbeat_interval: timedelta = setting(
        "how often", default=timedelta(seconds=10), least=timedelta(seconds=1), most=timedelta(seconds=300)
    )
    buckets: int = setting("how many", default=16, least=1)
    batch_bytes: int = setting("size of a batch", unit="bytes", default=1)
    start_timestamp: Nanoseconds | None = setting("from when", default=None)
    directory: Path | None = setting("where", default=None)
    eager: bool = setting("whether", default=False)
    mode: Literal["fast", "slow"] = setting("how", default="fast")
    name: str = setting("its name", default="n", check=lower)
    token: str | None = setting("who asks", default=None, check=lower, shown=hidden)
    rules: Path | None = setting("a file", default=None, check=file_there)
    log_level: LogLevel = setting("the least severity", default="INFO")

    def __post_init__(self) -> None:
        check_together(self)

    @together
    def _pace(self) -> str | None:
        return "EAGER and MODE=slow contradict each other" if self.eager and self.mode == "slow" else None

    @together
    def _crowd(self) -> str | None:
        return "EAGER and BUCKETS > 16 contradict each other" if self.eager and self.buckets > 16 else None


def test_what_is_not_set_has_its_default() -> None:
    assert read_settings(Settings, {"GOOGLE_CLOUD_PROJECT": "p", "BUCKETS": ""}) == Settings(project="p")


def test_values_arrive_in_their_types() -> None:
    settings = read_settings(
        Settings,
        {
            "GOOGLE_CLOUD_PROJECT": "p",
            "HEARTBEAT_INTERVAL": "2.5s",
            "BUCKETS": "4",
            "START_TIMESTAMP": "1970-01-01T00:00:00.000000001Z",
            "DIRECTORY": "/data",
            "EAGER": "TRUE",
            "MODE": "fast",
        },
    )

    assert settings == Settings(
        project="p",
        heartbeat_interval=timedelta(seconds=2.5),
        buckets=4,
        start_timestamp=Nanoseconds(1),
        directory=Path("/data"),
        eager=True,
    )


def test_one_error_names_every_bad_variable() -> None:
    bad = {
        "HEARTBEAT_INTERVAL": ("999ms", "at least 1s"),
        "BUCKETS": ("many", "not a whole number"),
        "BATCH_BYTES": ("1MB", "not a whole number of bytes"),
        "START_TIMESTAMP": ("yesterday", "RFC 3339"),
        "EAGER": ("perhaps", "not true or false"),
        "MODE": ("quick", "not one of fast, slow"),
        "NAME": ("N", "not in lower case"),
        "TOKEN": ("SECRET", "not in lower case"),
        "RULES": ("/nowhere/rules.toml", "cannot be read: No such file"),
        "LOG_LEVEL": ("loud", "not one of DEBUG, INFO, WARNING, ERROR"),
    }

    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, {variable: value for variable, (value, _rule) in bad.items()})

    lines = {line.strip().partition("=")[0]: line for line in str(caught.value).splitlines()[1:]}
    assert lines.pop("GOOGLE_CLOUD_PROJECT is not set (the project)")
    assert lines.keys() == bad.keys()
    for variable, (_value, rule) in bad.items():
        assert rule in lines[variable]
    assert "SECRET" not in str(caught.value)


def test_what_is_missing_is_named_with_the_variable_that_was_probably_meant_for_it() -> None:
    with pytest.raises(MisconfiguredError, match="GOOGLE_CLOUD_PROJCET is set: is GOOGLE_CLOUD_PROJECT meant"):
        read_settings(Settings, {"GOOGLE_CLOUD_PROJCET": "p"})


SERVICES = (BigtableReader, Consumer, Setup, Reconcile, DeadLetterCommands, DeadLetter, SpannerReader)
# of other programs, in the environment of a shell, a container or Kubernetes
OF_OTHERS: Final = re.findall(
    r"\w+",
    """
    HOME HOST HOSTNAME HOSTS HOSTTYPE LANG LOGNAME MAIL PATH PORT PORTS PWD SHELL SHLVL TERM TMPDIR TOPICS_DIR
    TZ USER PYTHONPATH PYTHONUNBUFFERED VIRTUAL_ENV PIP_INDEX_URL JAVA_HOME JAVA_TOOL_OPTIONS SPARK_HOME
    SPARK_CONF_DIR SPARK_LOCAL_IP SPARK_MASTER_HOST SPARK_MASTER_PORT SPARK_EXECUTOR_MEMORY
    SPARK_DRIVER_BIND_ADDRESS SPARK_LOG_DIR PYSPARK_PYTHON PYSPARK_SUBMIT_ARGS CLOUDSDK_ROOT
    CLOUDSDK_CORE_PROJECT GCLOUD_PROJECT GCP_PROJECT GOOGLE_CLOUD_QUOTA_PROJECT GOOGLE_CLOUD_REGION
    GOOGLE_APPLICATION_CREDENTIALS GOOGLE_CLOUD_UNIVERSE_DOMAIN DATASTORE_EMULATOR_HOST
    FIRESTORE_EMULATOR_HOST FIREBASE_AUTH_EMULATOR_HOST STORAGE_EMULATOR_HOST DATABASE_URL PGHOST PGPORT
    PGDATABASE PGUSER POSTGRES_DB LOGLEVEL LOG_DIR LOGGING_LEVEL KUBERNETES_PORT KUBERNETES_SERVICE_HOST
    KUBERNETES_SERVICE_PORT MILLRACE_VERSION MILLRACE_USER EDITOR VISUAL GRPC_VERBOSITY OTEL_SERVICE_NAME
    http_proxy no_proxy host port
    """,
)


@pytest.mark.parametrize("service", SERVICES)
def test_no_variable_of_another_service_or_program_is_taken_for_a_misspelt_one(service: type) -> None:
    ours = {variable_name(field) for each in SERVICES for field in dataclasses.fields(each)}

    assert misspelt_variables(service, dict.fromkeys({*OF_OTHERS, *ours}, "x")) == {}
    others = ours - {variable_name(field) for field in dataclasses.fields(service)}
    assert misspelt_variables(service, dict.fromkeys({*OF_OTHERS, *others}, "x")) == {}


@given(service=st.sampled_from(SERVICES), data=st.data())
def test_one_wrong_letter_in_a_name_is_found_with_the_name_that_was_meant(service: type, data: st.DataObject) -> None:
    names = sorted(name for field in dataclasses.fields(service) if len(name := variable_name(field)) > 7)
    meant = data.draw(st.sampled_from(names))
    place = data.draw(st.integers(0, len(meant) - 1))
    letter = data.draw(st.sampled_from("ABCXYZ_"))
    kinds = (
        meant[:place] + meant[place + 1 :],
        meant[:place] + letter + meant[place:],
        meant[:place] + letter + meant[place + 1 :],
        meant[:place] + meant[place + 1 : place + 2] + meant[place] + meant[place + 2 :],
        meant.lower(),
    )
    wrong = data.draw(st.sampled_from(kinds))
    assume(wrong not in (*names, "LOGLEVEL"))

    assert misspelt_variables(service, {wrong: "x"}) == {wrong: meant}
    assert misspelt_variables(service, {wrong: "x", meant: "y"}) == {}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("CHEKPOINT_LOCTION", "CHECKPOINT_LOCATION"),
        ("DEADLETTERTOPIC", "DEAD_LETTER_TOPIC"),
        ("MICROBATCH_BYTE", "MICRO_BATCH_BYTES"),
        ("DEAD_LETTERS_TOPICS", "DEAD_LETTER_TOPIC"),
        ("BIGQEURY_DATSET", "BIGQUERY_DATASET"),
    ],
)
def test_two_mistakes_in_a_long_name_are_found(wrong: str, meant: str) -> None:
    assert misspelt_variables(Consumer, {wrong: "x"}) == {wrong: meant}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("BIG_TABLE_NAMEX", {"BIG_TABLE_NAMEX": "BIG_TABLE_NAME"}),
        ("XBIG_TABLES_NAMES", {"XBIG_TABLES_NAMES": "BIG_TABLES_NAMES"}),
        ("LOG_TOPC", {"LOG_TOPC": "LOG_TOPIC"}),
        ("LG_TOPC", {}),
    ],
    ids=["nearer to one", "nearer to the other", "one mistake", "two mistakes in a short name"],
)
def test_the_nearest_name_that_a_misspelt_one_may_mean_is_named(wrong: str, meant: Mapping[str, str]) -> None:
    @dataclass(frozen=True)
    class Near:
        big_table_name: str = setting("a", default="")
        big_tables_names: str = setting("b", default="")
        log_topic: str = setting("c", default="")

    assert misspelt_variables(Near, {wrong: "x"}) == meant


@pytest.mark.parametrize("wrong", ["My Project!", "my_project", "projects/p", "Project"])
def test_a_project_that_is_no_id_is_refused_by_its_form(wrong: str) -> None:
    with pytest.raises(MisconfiguredError, match=r"GOOGLE_CLOUD_PROJECT=.*: not a project id: lowercase letters"):
        read_settings(SpannerReader, {"GOOGLE_CLOUD_PROJECT": wrong})


@pytest.mark.parametrize("project", ["my-project-1", "example.com:my-project", "123456789012", "p"])
def test_every_form_of_a_project_is_taken(project: str) -> None:
    project_id(project)


def test_names_of_topics_and_subscriptions_are_refused_by_their_variable_and_the_rule() -> None:
    wrong = {
        "TOPIC": "my topic",
        "SUBSCRIPTION": "projects/p/topics/changes",
        "DEAD_LETTER_TOPIC": "goog-x",
        "DEAD_LETTER_SUBSCRIPTION": "projects/p/subscriptions/1x",
    }
    with pytest.raises(MisconfiguredError) as refused:
        read_settings(Setup, {"GOOGLE_CLOUD_PROJECT": "p", **wrong})
    lines = {line.strip().partition("=")[0]: line for line in str(refused.value).splitlines()[1:]}
    assert lines.keys() == wrong.keys()
    assert "neither the id of a subscription nor projects/PROJECT/subscriptions/ID" in lines["SUBSCRIPTION"]
    for variable in wrong.keys() - {"SUBSCRIPTION"}:
        assert "3 to 255 letters, digits and any of - . _ ~ + %" in lines[variable]
        assert "no name that starts with 'goog'" in lines[variable]
    topic_id("projects/example.com:p/topics/changes")
    subscription_id("changes-1")


@pytest.mark.parametrize("dataset", ["my-project:mirror", "my-project.mirror", "my-mirror", "m" * 1025])
def test_what_cannot_be_a_dataset_is_refused_and_its_project_sent_to_the_setting_for_it(dataset: str) -> None:
    for service in (Consumer, Reconcile, DeadLetterCommands):
        with pytest.raises(MisconfiguredError, match=r"BIGQUERY_DATASET=.*; the project goes into BIGQUERY_PROJECT"):
            read_settings(service, {"BIGQUERY_DATASET": dataset})
    dataset_id("_Mirror_2" + "m" * 1000)


@pytest.mark.parametrize("size", ["lots", "1", "1 g", "-1g", "0g", "1gb"])
def test_a_memory_that_java_would_not_take_is_refused(size: str) -> None:
    with pytest.raises(MisconfiguredError, match=r"SPARK_DRIVER_MEMORY=.*: not a size of memory: .* such as 512m"):
        read_settings(Consumer, {"SPARK_DRIVER_MEMORY": size})


def test_what_shows_only_when_the_fields_are_seen_together_is_named_too() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, {"GOOGLE_CLOUD_PROJECT": "p", "EAGER": "yes", "MODE": "slow", "BUCKETS": "17"})

    assert str(caught.value).count("contradict each other") == 2


def test_fields_that_contradict_each_other_are_named_beside_those_that_are_wrong_by_themselves() -> None:
    with pytest.raises(MisconfiguredError) as caught:
        read_settings(Settings, {"EAGER": "yes", "MODE": "slow", "BUCKETS": "many"})

    message = str(caught.value)
    assert "GOOGLE_CLOUD_PROJECT is not set" in message
    assert "EAGER and MODE=slow" in message
    assert "BUCKETS='many'" in message
    assert "BUCKETS > 16" not in message, "of what is no number nothing more is said"


def test_what_is_made_without_an_environment_is_checked_too() -> None:
    with pytest.raises(ValueError, match="MODE=slow"):
        Settings(project="p", eager=True, mode="slow")


def test_what_is_shown_is_written_as_it_is_set_and_holds_no_secret() -> None:
    shown = settings_shown(read_settings(Settings, {"GOOGLE_CLOUD_PROJECT": "p", "TOKEN": "secret", "EAGER": "yes"}))

    assert (shown["token"], shown["eager"], shown["directory"]) == (HIDDEN, True, None)
    assert (shown["heartbeat_interval"], shown["buckets"]) == ("10s", 16)
    assert "secret" not in str(shown)
    assert settings_shown(Settings(project="p"))["token"] is None, "none is set: that may be known"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("0.250ms", 0.00025),
        ("10s", 10),
        ("90s", 90),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604800),
        ("0d", 0),
    ],
)
def test_a_duration_is_shown_in_the_largest_unit_that_it_is_a_whole_number_of(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["10", "s", "-1s", "10 years", "1e3s"])
def test_a_duration_without_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a number and a unit"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=10_000)))
def test_a_duration_is_shown_as_it_would_be_set(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["36501d", "99999999999d", "9" * 400 + "d"])
def test_a_duration_of_more_than_a_hundred_years_is_refused(text: str) -> None:
    assert parse_duration("36500d") == timedelta(days=36_500)
    with pytest.raises(ValueError, match="longer than 36500d"):
        parse_duration(text)
