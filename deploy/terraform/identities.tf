# A service account for each service, with its roles. Every grant adds a member and takes none away.

locals {
  members = merge(
    { for service, account in google_service_account.services : service => account.member },
    { pubsub_agent = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com" },
  )

  topics = {
    topic             = google_pubsub_topic.changes.id
    dead_letter_topic = google_pubsub_topic.dead_letters.id
  }

  subscriptions = {
    subscription             = google_pubsub_subscription.consumer.id
    dead_letter_subscription = google_pubsub_subscription.dead_letters.id
  }

  databases = var.spanner == null ? {} : {
    watched_database   = var.spanner.database
    partition_database = google_spanner_database.partitions[0].name
  }

  tables = var.bigtable == null ? {} : {
    watched_table   = var.bigtable.table
    partition_table = google_bigtable_table.partitions[0].name
  }
}

data "google_project" "this" {
  project_id = var.project

  depends_on = [google_project_service.these]
}

resource "google_project_service" "these" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "bigquery.googleapis.com",
    "bigquerystorage.googleapis.com",
    "bigtable.googleapis.com",
    "bigtableadmin.googleapis.com",
    "bigqueryreservation.googleapis.com",
    "iam.googleapis.com",
    "monitoring.googleapis.com",
    "pubsub.googleapis.com",
    "secretmanager.googleapis.com",
    "spanner.googleapis.com",
  ])

  project            = var.project
  service            = each.value
  disable_on_destroy = false
}

resource "google_service_account" "services" {
  for_each = local.services

  project      = var.project
  account_id   = "${var.name}-${replace(each.value, "_", "-")}"
  display_name = "Millrace ${each.value}"

  depends_on = [google_project_service.these]
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each = var.kubernetes_namespace == null ? toset([]) : local.services

  service_account_id = google_service_account.services[each.value].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${var.kubernetes_namespace}/${replace(each.value, "_", "-")}]"
}

resource "google_pubsub_topic_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if contains(["topic", "dead_letter_topic"], grant.resource) }

  project = var.project
  topic   = local.topics[each.value.resource]
  role    = each.value.role
  member  = local.members[each.value.identity]
}

resource "google_pubsub_subscription_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if contains(["subscription", "dead_letter_subscription"], grant.resource) }

  project      = var.project
  subscription = local.subscriptions[each.value.resource]
  role         = each.value.role
  member       = local.members[each.value.identity]
}

resource "google_spanner_database_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if contains(["watched_database", "partition_database"], grant.resource) }

  project  = var.project
  instance = var.spanner.instance
  database = local.databases[each.value.resource]
  role     = each.value.role
  member   = local.members[each.value.identity]
}

resource "google_bigtable_table_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if contains(["watched_table", "partition_table"], grant.resource) }

  project       = var.project
  instance_name = var.bigtable.instance
  table         = local.tables[each.value.resource]
  role          = each.value.role
  member        = local.members[each.value.identity]
}

resource "google_bigtable_instance_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if grant.resource == "bigtable_instance" }

  project  = var.project
  instance = var.bigtable.instance
  role     = each.value.role
  member   = local.members[each.value.identity]
}

resource "google_bigquery_dataset_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if grant.resource == "dataset" }

  project    = var.project
  dataset_id = google_bigquery_dataset.mirror.dataset_id
  role       = each.value.role
  member     = local.members[each.value.identity]
}

resource "google_project_iam_member" "grants" {
  for_each = { for key, grant in local.grants : key => grant if contains(["project", "bigquery_project"], grant.resource) }

  project = var.project
  role    = each.value.role
  member  = local.members[each.value.identity]
}
