"""What set-up leaves to who runs it: two commands, as a shell takes them."""

import subprocess
from pathlib import Path

from shared.pubsub.topology import PubsubTopology, still_to_grant

GCLOUD = """#!/bin/sh
if [ "$1" = projects ]; then echo "7 of $3" | tr -d ' '; else echo "$@"; fi
"""


def test_what_set_up_prints_grants_pubsubs_own_agent_what_forwarding_takes(tmp_path: Path) -> None:
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(GCLOUD)
    gcloud.chmod(0o755)
    text = still_to_grant(
        PubsubTopology(
            topic="projects/p/topics/changes",
            subscription="projects/mine/subscriptions/consumer",
            dead_letter_topic="projects/theirs/topics/dead",
            dead_letter_subscription="projects/theirs/subscriptions/dead",
        )
    )
    commands = [line for line in text.splitlines() if line.startswith("gcloud ")]
    ran = subprocess.run(
        ["sh", "-euc", "\n".join(commands)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    agent = "--member=serviceAccount:service-7ofmine@gcp-sa-pubsub.iam.gserviceaccount.com"
    assert ran.stdout.splitlines() == [
        f"pubsub topics add-iam-policy-binding dead --project=theirs --role=roles/pubsub.publisher {agent}",
        f"pubsub subscriptions add-iam-policy-binding consumer --project=mine --role=roles/pubsub.subscriber {agent}",
    ]
