"""The Terraform module: formatted, without a dangling reference, and in the arguments of Google's provider.

Terraform cannot load that provider where its registry is not reached, so `terraform validate` is not run. The
arguments are compared with the provider's bindings for Python (6.50.0); Terraform itself evaluates the grants.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest

from services.bigtable_reader.adapters.stream.partition_cells import FAMILIES
from services.bigtable_reader.settings import Settings as BigtableReaderSettings
from services.cdc_consumer.settings import Settings as ConsumerSettings
from services.dead_letter.settings import Settings as DeadLetterSettings
from services.spanner_reader.settings import Settings as SpannerReaderSettings
from shared.runtime.settings import variable_name
from tests.deploy.terraform_module import MODULE, Resource, attribute_errors, expression, named, parsed, resources
from tests.documents.roles import lines

FILES: Final = sorted(MODULE.glob("*.tf"))
RESOURCES: Final = list(resources(FILES)) if FILES else []
BY_ADDRESS: Final = {one.address: one for one in RESOURCES}
SETTINGS: Final[Mapping[str, type[Any]]] = {
    "spanner_reader": SpannerReaderSettings,
    "bigtable_reader": BigtableReaderSettings,
    "cdc_consumer": ConsumerSettings,
    "dead_letter": DeadLetterSettings,
}
SPANNER: Final = {"instance": "main", "database": "shop"}
BIGTABLE: Final = {"instance": "main", "table": "weather", "cluster": "one"}


def terraform(*words: str, cwd: Path, text: str = "") -> str:
    """Run Terraform and return what it prints."""
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
    ran = subprocess.run(
        ["terraform", *words], cwd=cwd, input=text, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def evaluated(tmp_path: Path, variables: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return the grants that Terraform makes of roles.yaml."""
    for file in ("variables.tf", "grants.tf", "roles.yaml"):
        shutil.copy(MODULE / file, tmp_path)
    given = {"project": "p", "location": "europe-west1", **variables}
    (tmp_path / "terraform.tfvars.json").write_text(json.dumps(given))
    text = terraform("console", cwd=tmp_path, text="jsonencode(local.grants)\n")
    grants: Mapping[str, Mapping[str, str]] = json.loads(json.loads(text))
    return grants


def test_every_file_is_formatted() -> None:
    assert terraform("fmt", "-check", "-recursive", cwd=MODULE) == ""


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.address)
def test_a_resource_has_what_the_provider_takes(resource: Resource) -> None:
    assert attribute_errors(resource) == []


def test_an_argument_that_the_provider_does_not_take_is_found() -> None:
    right = BY_ADDRESS["google_pubsub_subscription.consumer"]
    (policy,) = right.body["dead_letter_policy"]
    wrong = {key: value for key, value in right.body.items() if key != "topic"}
    wrong |= {"retention": "7d", "dead_letter_policy": [{**policy, "attempts": 5}]}

    assert attribute_errors(replace(right, body=wrong)) == [
        "google_pubsub_subscription.consumer.dead_letter_policy: there is no attempts",
        "google_pubsub_subscription.consumer: there is no retention",
        "google_pubsub_subscription.consumer: topic is missing",
    ]


def test_every_reference_leads_to_something() -> None:
    contents = [parsed(file) for file in FILES]
    variables = {name for one in contents for name in named(one.get("variable", []))}
    known = {name for one in contents for block in one.get("locals", []) for name in block}
    text = "\n".join(json.dumps(one) for one in contents)

    assert set(re.findall(r"\bvar\.(\w+)", text)) == variables, "one is not declared, or not used"
    assert set(re.findall(r"\blocal\.(\w+)", text)) == known - {"__is_block__"}
    assert set(re.findall(r"(?:\bdata\.)?\bgoogle_\w+\.\w+", text)) <= set(BY_ADDRESS)


def test_the_example_gives_the_module_what_it_takes() -> None:
    example = parsed(MODULE / "example/main.tf")
    variables = {name for file in FILES for name in named(parsed(file).get("variable", []))}
    outputs = {name for file in FILES for name in named(parsed(file).get("output", []))}
    given = set(named(example["module"])["millrace"]) - {"source", "__is_block__"}

    assert {"project", "location", "spanner"} <= given <= variables
    assert set(re.findall(r"module\.millrace\.(\w+)", json.dumps(example))) <= outputs


@pytest.mark.parametrize("name", ["consumer", "dead_letters"])
def test_a_subscription_takes_its_settings_from_the_file_that_doctor_judges(name: str) -> None:
    body = BY_ADDRESS[f"google_pubsub_subscription.{name}"].body
    plain = ("ack_deadline_seconds", "message_retention_duration", "enable_message_ordering")

    assert [expression(body[key]) for key in plain] == [f"local.subscription.{key}" for key in plain]
    assert expression(body["expiration_policy"][0]["ttl"]) == "local.subscription.expiration_policy_ttl"
    assert body.keys() & {"filter", "push_config", "bigquery_config", "cloud_storage_config"} == set()


def test_only_the_consumers_subscription_forwards_dead_letters() -> None:
    (policy,) = BY_ADDRESS["google_pubsub_subscription.consumer"].body["dead_letter_policy"]

    assert expression(policy["dead_letter_topic"]) == "google_pubsub_topic.dead_letters.id"
    assert expression(policy["max_delivery_attempts"]) == "local.subscription.max_delivery_attempts"
    assert "dead_letter_policy" not in BY_ADDRESS["google_pubsub_subscription.dead_letters"].body


def test_the_dataset_gives_tables_neither_expiry_nor_collation() -> None:
    body = BY_ADDRESS["google_bigquery_dataset.mirror"].body

    assert [key for key in body if "expiration" in key or "collation" in key] == []


def test_the_app_profile_routes_to_one_cluster_and_allows_transactions() -> None:
    (routing,) = BY_ADDRESS["google_bigtable_app_profile.reader"].body["single_cluster_routing"]

    assert routing["allow_transactional_writes"] is True


def test_the_bigtable_partition_table_is_the_one_that_a_reader_would_make() -> None:
    locals_of = [block for file in FILES for block in parsed(file).get("locals", [])]
    (families,) = (block["partition_families"] for block in locals_of if "partition_families" in block)
    (rule,) = BY_ADDRESS["google_bigtable_gc_policy.partitions"].body["max_version"]

    assert sorted(re.findall(r'"(\w+)"', families)) == sorted(FAMILIES)
    assert rule["number"] == 1


def test_the_outputs_are_settings_of_the_services_that_get_them() -> None:
    text = (MODULE / "outputs.tf").read_text()
    for service, settings in SETTINGS.items():
        (block,) = re.findall(rf"^ +{service} = \{{$(.*?)^ +\}}$", text, re.MULTILINE | re.DOTALL)
        given = set(re.findall(r"^ +([A-Z_]+) +=", block, re.MULTILINE))

        assert given <= {variable_name(field) for field in fields(settings)}
        assert "GOOGLE_CLOUD_PROJECT" in given


@pytest.mark.parametrize(
    "variables",
    [{"spanner": SPANNER}, {"bigtable": BIGTABLE}, {"spanner": SPANNER, "bigtable": BIGTABLE}],
    ids=["spanner", "bigtable", "both"],
)
def test_the_services_that_there_are_get_each_role_of_the_page_and_no_other(
    tmp_path: Path, variables: Mapping[str, Any]
) -> None:
    there = {"cdc_consumer", "dead_letter", "pubsub_agent", *(f"{source}_reader" for source in variables)}

    found = {(one["identity"], one["role"], one["resource"]) for one in evaluated(tmp_path, variables).values()}

    assert found == {
        (identity, role, resource)
        for line in lines()
        for identity in line.get("identities", ())
        for role in line["roles"]
        for resource in line.get("resources", ())
        if identity in there
    }


def test_data_boost_takes_a_role_of_its_own(tmp_path: Path) -> None:
    found = evaluated(tmp_path, {"spanner": {**SPANNER, "data_boost": True}}).values()

    assert {one["role"] for one in found if one["resource"] == "watched_database"} == {
        "roles/spanner.databaseReaderWithDataBoost"
    }


@pytest.mark.parametrize("data_boost", [True, False])
def test_data_boost_is_a_setting_of_the_reader_too(tmp_path: Path, data_boost: bool) -> None:
    (setting,) = re.findall(r"SNAPSHOT_DATA_BOOST += (.+)", (MODULE / "outputs.tf").read_text())
    given = {"project": "p", "location": "europe-west1", "spanner": {**SPANNER, "data_boost": data_boost}}
    shutil.copy(MODULE / "variables.tf", tmp_path)
    (tmp_path / "terraform.tfvars.json").write_text(json.dumps(given))

    text = json.loads(terraform("console", cwd=tmp_path, text=f"jsonencode({setting})\n"))
    assert json.loads(text) is data_boost


def test_every_resource_of_a_grant_is_one_that_a_resource_of_the_module_grants_on() -> None:
    granting = [one for one in RESOURCES if one.name == "grants"]
    chosen: Sequence[str] = [
        name
        for one in granting
        for part in re.findall(r"contains\(\[(.*?)\], grant.resource|grant.resource == (\"\w+\")", one.body["for_each"])
        for name in re.findall(r'"(\w+)"', "".join(part))
    ]

    assert sorted(chosen) == sorted({resource for line in lines() for resource in line.get("resources", ())})


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("abc", True),
        ("millrace-eu", True),
        ("ab", False),
        ("a-", False),
        ("abc-", False),
        ("1bc", False),
        ("millrace-eu1", False),
    ],
)
def test_a_name_is_one_that_all_that_begins_with_it_may_have(name: str, taken: bool) -> None:
    text = (MODULE / "variables.tf").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'regex\("([^"]+)", var\.name\)', text)

    assert bool(re.search(pattern, name)) is taken
