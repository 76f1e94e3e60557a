"""What the Terraform module makes of Pub/Sub and grants is what the checks of `doctor` ask for."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from google.pubsub_v1.types import Subscription

from shared.contracts.durations import parse_duration
from shared.pubsub.topology import (
    ACK_DEADLINE,
    KEEP_MESSAGES_FOR,
    MAX_DELIVERY_ATTEMPTS,
    forwarding_rights,
    losses,
    mistakes_of,
)
from tests.documents.made import DOCS
from tests.documents.roles import ROLES, lines

ROOT: Final = DOCS.parent
SUBSCRIPTIONS: Final = ROOT / "deploy/terraform/subscriptions.yaml"
TOPIC: Final = "projects/p/topics/changes"
DEAD: Final = "projects/p/topics/dead"
NAME: Final = "projects/p/subscriptions/consumer"
PUBLISHES: Final = "roles/pubsub.publisher"
CONSUMES: Final = {"roles/pubsub.subscriber", "roles/pubsub.viewer"}
READERS: Final = ("spanner_reader", "bigtable_reader")


def made(**wrong: Any) -> Any:
    """Return the consumer's subscription as the module makes it, or with a mistake, as its plain protobuf message."""
    settings = yaml.safe_load(SUBSCRIPTIONS.read_text()) | wrong
    attempts, never = settings.pop("max_delivery_attempts"), settings.pop("expiration_policy_ttl")
    found = Subscription(
        name=NAME,
        topic=TOPIC,
        dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": attempts},
        expiration_policy={"ttl": timedelta(days=31)} if never else {},
        message_retention_duration=parse_duration(settings.pop("message_retention_duration")),
        **settings,
    )
    return Subscription.pb(found)


def granted(identity: str, resource: str) -> set[str]:
    """Return the roles that the module grants."""
    return {
        role
        for line in lines()
        if identity in line.get("identities", ()) and resource in line.get("resources", ())
        for role in line["roles"]
    }


def test_a_subscription_has_no_mistake_and_is_the_one_that_setup_makes() -> None:
    found = made()

    assert mistakes_of(found, NAME, DEAD, KEEP_MESSAGES_FOR, TOPIC) == []
    assert losses(found, KEEP_MESSAGES_FOR) == []
    assert found.ack_deadline_seconds == ACK_DEADLINE.total_seconds()
    assert found.dead_letter_policy.max_delivery_attempts == MAX_DELIVERY_ATTEMPTS


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_retention_duration": "3600s"},
        {"expiration_policy_ttl": "2678400s"},
        {"enable_message_ordering": True},
        {"enable_exactly_once_delivery": True},
        {"max_delivery_attempts": 5},
    ],
    ids=lambda wrong: str(*wrong),
)
def test_another_setting_of_the_file_would_be_a_mistake(wrong: dict[str, Any]) -> None:
    assert len(mistakes_of(made(**wrong), NAME, DEAD, KEEP_MESSAGES_FOR, TOPIC)) == 1


def test_pubsubs_agent_gets_what_forwarding_takes() -> None:
    resources = {NAME: "subscription", DEAD: "dead_letter_topic"}

    for right in forwarding_rights(NAME, DEAD):
        assert granted("pubsub_agent", resources[right.resource]) == {right.role}


def test_every_service_gets_what_its_doctor_looks_for_in_pubsub() -> None:
    for reader in READERS:
        for topic in ("topic", "dead_letter_topic"):
            assert PUBLISHES in granted(reader, topic)
        for kept in ("topic", "dead_letter_topic", "subscription", "dead_letter_subscription"):
            assert "roles/pubsub.viewer" in granted(reader, kept)
    assert granted("cdc_consumer", "subscription") == CONSUMES
    assert PUBLISHES in granted("cdc_consumer", "dead_letter_topic")
    assert granted("dead_letter", "dead_letter_subscription") == CONSUMES
    assert PUBLISHES in granted("dead_letter", "topic")


def test_every_role_that_a_message_of_a_service_names_is_in_the_page() -> None:
    code = [file for folder in ("services", "shared") for file in (ROOT / folder).rglob("*.py")]
    named = {role for file in code for role in re.findall(r"roles/\w+\.\w+", file.read_text(encoding="utf-8"))}

    assert len(named) > len(READERS)
    assert named - set(re.findall(r"roles/\w+\.\w+", (DOCS / "reference/roles.md").read_text())) == set()


def test_only_the_readers_own_database_is_written_by_the_spanner_reader() -> None:
    assert granted("spanner_reader", "watched_database") == {"roles/spanner.databaseReader"}
    assert granted("spanner_reader", "partition_database") == {"roles/spanner.databaseUser"}


def test_no_identity_gets_a_role_on_the_project_that_changes_anything() -> None:
    on_project = {
        role
        for line in lines()
        if {"project", "bigquery_project"} & set(line.get("resources", ()))
        for role in line["roles"]
    }

    assert on_project == {"roles/monitoring.viewer", "roles/bigquery.jobUser"}


def test_the_module_has_the_file_that_the_page_is_made_from() -> None:
    grants = (ROOT / "deploy/terraform/grants.tf").read_text()

    assert f"${{path.module}}/{ROLES.name}" in grants
    assert Path(ROLES).parent == ROOT / "deploy/terraform"
