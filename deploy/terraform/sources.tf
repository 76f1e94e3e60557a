# Where the readers keep their progress, and the cluster that the Bigtable reader reads from.

locals {
  partition_families = toset(["partition", "piece", "reader", "shape"])
}

resource "google_spanner_database" "partitions" {
  count = var.spanner == null ? 0 : 1

  project             = var.project
  instance            = var.spanner.instance
  name                = "${var.name}-partitions"
  database_dialect    = var.spanner.dialect
  deletion_protection = var.deletion_protection

  depends_on = [google_project_service.these]
}

resource "google_bigtable_app_profile" "reader" {
  count = var.bigtable == null ? 0 : 1

  project        = var.project
  instance       = var.bigtable.instance
  app_profile_id = var.name

  single_cluster_routing {
    cluster_id                 = var.bigtable.cluster
    allow_transactional_writes = true
  }
  ignore_warnings = true # Bigtable deletes no profile without it

  depends_on = [google_project_service.these]
}

resource "google_bigtable_table" "partitions" {
  count = var.bigtable == null ? 0 : 1

  project             = var.project
  instance_name       = var.bigtable.instance
  name                = "${replace(var.name, "-", "_")}_partitions"
  deletion_protection = var.deletion_protection ? "PROTECTED" : "UNPROTECTED"

  dynamic "column_family" {
    for_each = local.partition_families
    content {
      family = column_family.value
    }
  }

  depends_on = [google_project_service.these]
}

resource "google_bigtable_gc_policy" "partitions" {
  for_each = var.bigtable == null ? toset([]) : local.partition_families

  project         = var.project
  instance_name   = var.bigtable.instance
  table           = google_bigtable_table.partitions[0].name
  column_family   = each.value
  deletion_policy = "ABANDON"

  max_version {
    number = 1
  }
}
