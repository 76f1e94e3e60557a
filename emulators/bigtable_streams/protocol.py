"""The published message classes of Bigtable's data and admin API, raw: without proto-plus around every access."""

from typing import Any, Final

from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types as data_types

DATA: Final = "/google.bigtable.v2.Bigtable/"
TABLES: Final = "/google.bigtable.admin.v2.BigtableTableAdmin/"
INSTANCES: Final = "/google.bigtable.admin.v2.BigtableInstanceAdmin/"

CheckAndMutateRowRequest: Final[Any] = data_types.CheckAndMutateRowRequest.pb()
CheckAndMutateRowResponse: Final[Any] = data_types.CheckAndMutateRowResponse.pb()
GenerateInitialChangeStreamPartitionsRequest: Final[Any] = data_types.GenerateInitialChangeStreamPartitionsRequest.pb()
GenerateInitialChangeStreamPartitionsResponse: Final[Any] = (
    data_types.GenerateInitialChangeStreamPartitionsResponse.pb()
)
MutateRowRequest: Final[Any] = data_types.MutateRowRequest.pb()
MutateRowsRequest: Final[Any] = data_types.MutateRowsRequest.pb()
MutateRowsResponse: Final[Any] = data_types.MutateRowsResponse.pb()
Mutation: Final[Any] = data_types.Mutation.pb()
ReadChangeStreamRequest: Final[Any] = data_types.ReadChangeStreamRequest.pb()
ReadChangeStreamResponse: Final[Any] = data_types.ReadChangeStreamResponse.pb()
ReadModifyWriteRowRequest: Final[Any] = data_types.ReadModifyWriteRowRequest.pb()
ReadModifyWriteRowResponse: Final[Any] = data_types.ReadModifyWriteRowResponse.pb()
ReadRowsRequest: Final[Any] = data_types.ReadRowsRequest.pb()
ReadRowsResponse: Final[Any] = data_types.ReadRowsResponse.pb()

AppProfile: Final[Any] = admin_types.AppProfile.pb()
Cluster: Final[Any] = admin_types.Cluster.pb()
ColumnFamily: Final[Any] = admin_types.ColumnFamily.pb()
CreateAppProfileRequest: Final[Any] = admin_types.CreateAppProfileRequest.pb()
CreateTableRequest: Final[Any] = admin_types.CreateTableRequest.pb()
DeleteAppProfileRequest: Final[Any] = admin_types.DeleteAppProfileRequest.pb()
DeleteTableRequest: Final[Any] = admin_types.DeleteTableRequest.pb()
DropRowRangeRequest: Final[Any] = admin_types.DropRowRangeRequest.pb()
GcRule: Final[Any] = admin_types.GcRule.pb()
GetAppProfileRequest: Final[Any] = admin_types.GetAppProfileRequest.pb()
GetClusterRequest: Final[Any] = admin_types.GetClusterRequest.pb()
GetInstanceRequest: Final[Any] = admin_types.GetInstanceRequest.pb()
GetTableRequest: Final[Any] = admin_types.GetTableRequest.pb()
Instance: Final[Any] = admin_types.Instance.pb()
ListAppProfilesRequest: Final[Any] = admin_types.ListAppProfilesRequest.pb()
ListAppProfilesResponse: Final[Any] = admin_types.ListAppProfilesResponse.pb()
ListClustersRequest: Final[Any] = admin_types.ListClustersRequest.pb()
ListClustersResponse: Final[Any] = admin_types.ListClustersResponse.pb()
ListInstancesRequest: Final[Any] = admin_types.ListInstancesRequest.pb()
ListInstancesResponse: Final[Any] = admin_types.ListInstancesResponse.pb()
ListTablesResponse: Final[Any] = admin_types.ListTablesResponse.pb()
ModifyColumnFamiliesRequest: Final[Any] = admin_types.ModifyColumnFamiliesRequest.pb()
Table: Final[Any] = admin_types.Table.pb()
UpdateAppProfileMetadata: Final[Any] = admin_types.UpdateAppProfileMetadata.pb()
UpdateAppProfileRequest: Final[Any] = admin_types.UpdateAppProfileRequest.pb()
UpdateTableMetadata: Final[Any] = admin_types.UpdateTableMetadata.pb()
UpdateTableRequest: Final[Any] = admin_types.UpdateTableRequest.pb()
