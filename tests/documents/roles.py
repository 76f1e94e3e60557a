"""`docs/reference/roles.md`: who needs which role, from the file that the Terraform module grants them from."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = "reference/roles.md"
ROLES: Final = Path(__file__).resolve().parents[2] / "deploy/terraform/roles.yaml"

_HEAD: Final = """# Roles

<!-- Made from deploy/terraform/roles.yaml by `make docs`; a test fails where they differ. Change that. -->

Each service may run as an identity of its own. These roles suffice; `doctor`, run as that identity, names what is
missing. The [Terraform module](../how-to/deploy-on-google-cloud.md) grants them to the four services and to Pub/Sub's
service agent.

| Identity | Role | On |
|---|---|---|"""

_TAIL: Final = """
With the last two Pub/Sub forwards messages to the dead-letter topic: `setup` prints the two commands that grant them.
The consumer's `doctor` sees whether they are granted only as an identity that may read policies
(`roles/iam.securityReviewer`).

The services ask for no OAuth scope of their own. Google's clients ask for `cloud-platform`, which the Storage Write API
accepts, as it accepts `bigquery` and `bigquery.insertdata`. A virtual machine with narrower access scopes needs
`cloud-platform`, too: the consumer also makes tables and reads Pub/Sub.

## A database role

With `DATABASE_ROLE` the reader's identity needs `roles/spanner.fineGrainedAccessUser` and
`roles/spanner.databaseRoleUser` (for that role) on `SPANNER_DATABASE`, in place of `roles/spanner.databaseReader`. The
role needs:

```sql
CREATE ROLE mirror;
GRANT SELECT ON CHANGE STREAM everything TO ROLE mirror;
GRANT EXECUTE ON TABLE FUNCTION READ_everything TO ROLE mirror;
GRANT SELECT ON TABLE Orders, Customers TO ROLE mirror;
GRANT ROLE spanner_info_reader TO ROLE mirror;
```

In the PostgreSQL dialect these are:

```sql
CREATE ROLE mirror;
GRANT SELECT ON CHANGE STREAM everything TO mirror;
GRANT EXECUTE ON FUNCTION spanner.read_json_everything TO mirror;
GRANT SELECT ON TABLE orders, customers TO mirror;
GRANT spanner_info_reader TO mirror;
```

`SELECT` on the tables is for snapshots, for updates that are completed, and for `reconcile` and `delete-missing-rows`.
`spanner_info_reader` shows the reader the whole INFORMATION_SCHEMA. `PARTITION_DATABASE` has to be another database: a
role cannot create tables. The emulator does not check what a role may do.

`SNAPSHOT_DATA_BOOST` needs the permission `spanner.databases.useDataBoost` beside it: give it by a custom role, since
the predefined roles that have it also read the whole database.

## The partition table

Give the partition table a database of its own (`PARTITION_DATABASE`, in the same instance). Without one
`spanner_reader` needs `roles/spanner.databaseUser` on the watched database, so it may write every table there.
"""


def lines() -> Sequence[Mapping[str, Any]]:
    """Return the lines of the table, each with identities, roles, and the resources that the module grants them on."""
    found: Sequence[Mapping[str, Any]] = yaml.safe_load(ROLES.read_text(encoding="utf-8"))
    return found


def text() -> str:
    """Return the whole document."""
    return "\n".join([_HEAD, *_rows(), _TAIL])


def _rows() -> Iterator[str]:
    before = None
    for line in lines():
        who = line.get("who") or ", ".join(f"`{identity}`" for identity in line["identities"])
        roles = ", ".join(f"`{role}`" for role in line["roles"]) + line.get("about", "")
        yield f"| {who} | {roles} | {line['on']} |" if who != before else f"| | {roles} | {line['on']} |"
        before = who
