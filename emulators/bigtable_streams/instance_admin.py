"""The instance admin calls: application profiles, and as much of instances and clusters as an inspection reads.

Any instance exists, as it does for the emulator.
"""

from typing import Any

import grpc
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from emulators.bigtable_streams.profiles import DEFAULT, Profiles
from emulators.bigtable_streams.protocol import (
    AppProfile,
    Cluster,
    CreateAppProfileRequest,
    DeleteAppProfileRequest,
    GetAppProfileRequest,
    GetClusterRequest,
    GetInstanceRequest,
    Instance,
    ListAppProfilesRequest,
    ListAppProfilesResponse,
    ListClustersRequest,
    ListClustersResponse,
    UpdateAppProfileMetadata,
    UpdateAppProfileRequest,
)
from emulators.bigtable_streams.refusals import RefusedError, invalid, not_found, precondition


class InstanceAdmin:
    """Serves those calls."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles

    async def create_app_profile(self, data: bytes) -> bytes:
        """Serve CreateAppProfile."""
        request = CreateAppProfileRequest.FromString(data)
        if not request.app_profile_id:
            raise invalid("app_profile_id is missing")
        name = f"{request.parent}/appProfiles/{request.app_profile_id}"
        if any(each.name == name for each in self._profiles.all(request.parent)):
            raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"App profile already exists: {name}")
        return _bytes(self._profiles.put(request.parent, request.app_profile_id, request.app_profile))

    async def get_app_profile(self, data: bytes) -> bytes:
        """Serve GetAppProfile."""
        return _bytes(self._profiles.get(*_parts(GetAppProfileRequest.FromString(data).name)))

    async def list_app_profiles(self, data: bytes) -> bytes:
        """Serve ListAppProfiles."""
        instance = ListAppProfilesRequest.FromString(data).parent
        return _bytes(ListAppProfilesResponse(app_profiles=self._profiles.all(instance)))

    async def update_app_profile(self, data: bytes) -> bytes:
        """Serve UpdateAppProfile: done at once."""
        request = UpdateAppProfileRequest.FromString(data)
        instance, profile = _parts(request.app_profile.name)
        changed = AppProfile()
        changed.CopyFrom(self._profiles.get(instance, profile))
        for path in request.update_mask.paths:
            field = path.split(".")[0]
            if field not in AppProfile.DESCRIPTOR.fields_by_name:
                raise invalid(f"Unknown field in update_mask: {path}")
            if field == "description":
                changed.description = request.app_profile.description
            elif request.app_profile.HasField(field):
                getattr(changed, field).CopyFrom(getattr(request.app_profile, field))
        kept = self._profiles.put(instance, profile, changed)
        answer = operations_pb2.Operation(name=f"operations/{kept.name}/operations/1", done=True)
        answer.metadata.Pack(UpdateAppProfileMetadata())
        answer.response.Pack(kept)
        return bytes(answer.SerializeToString())

    async def delete_app_profile(self, data: bytes) -> bytes:
        """Serve DeleteAppProfile."""
        request = DeleteAppProfileRequest.FromString(data)
        instance, profile = _parts(request.name)
        if profile == DEFAULT and not request.ignore_warnings:
            raise precondition("Deleting the default app profile needs ignore_warnings")
        self._profiles.delete(instance, profile)
        return empty_pb2.Empty().SerializeToString()

    async def get_instance(self, data: bytes) -> bytes:
        """Serve GetInstance."""
        name = GetInstanceRequest.FromString(data).name
        return _bytes(Instance(name=name, display_name=name.rsplit("/", 1)[-1], state="READY", type_="PRODUCTION"))

    async def list_clusters(self, data: bytes) -> bytes:
        """Serve ListClusters."""
        instance = ListClustersRequest.FromString(data).parent
        answer = ListClustersResponse()
        answer.clusters.extend(_cluster(instance, each) for each in self._profiles.clusters(instance))
        return _bytes(answer)

    async def get_cluster(self, data: bytes) -> bytes:
        """Serve GetCluster."""
        instance, _, cluster = GetClusterRequest.FromString(data).name.partition("/clusters/")
        if cluster not in self._profiles.clusters(instance):
            raise not_found(f"Cluster not found: {instance}/clusters/{cluster}")
        return _bytes(_cluster(instance, cluster))


def _cluster(instance: str, cluster: str) -> Any:
    project = "/".join(instance.split("/")[:2])
    location = f"{project}/locations/local-{cluster}"
    return Cluster(name=f"{instance}/clusters/{cluster}", location=location, state="READY", serve_nodes=1)


def _parts(name: str) -> tuple[str, str]:
    instance, _, profile = name.partition("/appProfiles/")
    if not profile:
        raise invalid(f"not the name of an app profile: {name}")
    return instance, profile


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
