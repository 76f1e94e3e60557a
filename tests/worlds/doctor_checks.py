"""What each check of a `doctor` is about: what the Terraform module makes of it, or why the module makes nothing."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

MADE: Final[Mapping[str, Sequence[str]]] = {
    r"topic \S+": ("google_pubsub_topic.changes", "google_pubsub_topic.dead_letters"),
    r"subscription \S+(: [a-z -]+)?": (
        "google_pubsub_subscription.consumer",
        "google_pubsub_subscription.dead_letters",
    ),
    r"(rights|Pub/Sub's right) on topic \S+": ("google_pubsub_topic_iam_member.grants",),
    r"(rights|Pub/Sub's right) on subscription \S+": ("google_pubsub_subscription_iam_member.grants",),
    r"dataset \S+(: expiry)?": ("google_bigquery_dataset.mirror",),
    r"dataset \S+: (rights|making tables)": ("google_bigquery_dataset_iam_member.grants",),
    r"write API": ("google_project_service.these",),
    r"backlogs": ("google_project_iam_member.grants",),
    r"database \S+": ("google_spanner_database.partitions",),
    r"rights on (?!topic |subscription )\S+": ("google_spanner_database_iam_member.grants",),
    r"app profile( of the partition table)? \S+": (
        "google_bigtable_app_profile.reader",
        "google_bigtable_table.partitions",
    ),
}
"""Addresses in `deploy/terraform`, by what a check is called."""

NOT_MADE: Final[Mapping[str, str]] = {
    r"settings|tables file|tables|HTTP API": "the environment of a service, which the chart gives it",
    r"java|Spark": "is in the image",
    r"clock": "is the machine's",
    r"store(: \w+)?": "is made by the dead-letter service",
    r"partition table|progress(: .+)?": "is made by the first reader",
    r"stream \w+(: .+)?|change stream": "is made by the owner of the source, by the statement of the how-to",
    r"table \S+(: (families|retention|key))?|rows": "is a table of the source, or a mirror that the consumer makes",
    r"costs|advice": "says what something costs",
}
"""Why there is nothing to make, by what a check is called."""


def unexplained(checks: Iterable[str]) -> Sequence[str]:
    """Return the checks that neither list has, or that both have."""
    patterns = [*MADE, *NOT_MADE]
    return [check for check in checks if sum(bool(re.fullmatch(one, check)) for one in patterns) != 1]
