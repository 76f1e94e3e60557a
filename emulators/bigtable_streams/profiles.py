"""Application profiles, which the emulator has not: where a call is routed, and what it may do there.

Every instance has a profile `default`. Clusters are there as far as a profile or a test names them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from emulators.bigtable_streams.protocol import AppProfile
from emulators.bigtable_streams.refusals import invalid, not_found, precondition
from emulators.bigtable_streams.tables import instance_of

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of an instance; the tiebreaker settles between equal commit times, the larger one wins."""

    id: str
    tiebreaker: int


class Profiles:
    """The profiles and clusters of every instance; any instance exists, as it does for the emulator."""

    def __init__(self) -> None:
        self._profiles: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self._clusters: defaultdict[str, list[str]] = defaultdict(list)

    def clusters(self, instance: str) -> Sequence[str]:
        """Return the ids of an instance's clusters; the first is the one whose stream and store are served."""
        self._know(instance)
        return self._clusters[instance]

    def cluster(self, instance: str, cluster: str) -> Cluster:
        """Return a cluster, made if the instance has none of this id."""
        self._know(instance)
        ids = self._clusters[instance]
        if cluster not in ids:
            ids.append(cluster)
        return Cluster(cluster, ids.index(cluster))

    def get(self, instance: str, profile: str) -> Any:
        """Return an AppProfile message; RefusedError (NOT_FOUND) if there is none."""
        self._know(instance)
        found = self._profiles[instance].get(profile or DEFAULT)
        if found is None:
            raise not_found(f"App profile not found: {instance}/appProfiles/{profile}")
        return found

    def all(self, instance: str) -> Sequence[Any]:
        """Return the profiles of an instance."""
        self._know(instance)
        return list(self._profiles[instance].values())

    def put(self, instance: str, profile: str, message: Any) -> Any:
        """Keep a profile, new or changed; RefusedError if it routes to a cluster that is not there."""
        self._know(instance)
        match message.WhichOneof("routing_policy"):
            case "single_cluster_routing":
                cluster = message.single_cluster_routing.cluster_id
                if cluster not in self._clusters[instance]:
                    raise not_found(f"Cluster not found: {instance}/clusters/{cluster}")
            case None:
                raise invalid("An app profile needs a routing policy")
            case _:  # any cluster
                pass
        kept = AppProfile()
        kept.CopyFrom(message)
        kept.name = f"{instance}/appProfiles/{profile}"
        self._profiles[instance][profile] = kept
        return kept

    def delete(self, instance: str, profile: str) -> None:
        """Forget a profile; RefusedError if there is none."""
        self.get(instance, profile)
        del self._profiles[instance][profile]

    def check_single_cluster(self, table: str, profile: str) -> None:
        """Raise RefusedError where a profile may route to several clusters, or is not there."""
        if self.get(instance_of(table), profile).WhichOneof("routing_policy") != "single_cluster_routing":
            raise precondition(
                "Change streams need an app profile with single-cluster routing; "
                f"{profile or DEFAULT} may route to any cluster"
            )

    def check_transactional(self, table: str, profile: str) -> None:
        """Raise RefusedError where a profile does not allow calls that read and write one row at once."""
        found = self.get(instance_of(table), profile)
        if not found.single_cluster_routing.allow_transactional_writes:
            raise precondition(f"Single-row transactions are not allowed by this app profile: {profile or DEFAULT}")

    def writer(self, table: str, profile: str) -> Cluster:
        """Return the cluster that takes the writes of a profile; RefusedError if there is no such profile."""
        instance = instance_of(table)
        cluster = self.get(instance, profile).single_cluster_routing.cluster_id
        return self.cluster(instance, cluster or self._clusters[instance][0])

    def _know(self, instance: str) -> None:
        if not self._clusters[instance]:
            cluster = f"{instance.rsplit('/', 1)[-1]}-c1"
            self._clusters[instance].append(cluster)
            default = AppProfile(name=f"{instance}/appProfiles/{DEFAULT}", etag="1")
            default.single_cluster_routing.cluster_id = cluster
            default.single_cluster_routing.allow_transactional_writes = True
            self._profiles[instance][DEFAULT] = default
