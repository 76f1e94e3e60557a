output "settings" {
  description = "What the module knows of each service's environment variables: the chart's values of the same names."
  value = merge(
    {
      cdc_consumer = {
        GOOGLE_CLOUD_PROJECT = var.project
        SUBSCRIPTION         = google_pubsub_subscription.consumer.name
        DEAD_LETTER_TOPIC    = google_pubsub_topic.dead_letters.name
        BIGQUERY_DATASET     = google_bigquery_dataset.mirror.dataset_id
      }
      dead_letter = {
        GOOGLE_CLOUD_PROJECT     = var.project
        TOPIC                    = google_pubsub_topic.changes.name
        DEAD_LETTER_SUBSCRIPTION = google_pubsub_subscription.dead_letters.name
        BIGQUERY_DATASET         = google_bigquery_dataset.mirror.dataset_id
      }
    },
    var.spanner == null ? {} : {
      spanner_reader = {
        GOOGLE_CLOUD_PROJECT = var.project
        TOPIC                = google_pubsub_topic.changes.name
        DEAD_LETTER_TOPIC    = google_pubsub_topic.dead_letters.name
        SUBSCRIPTION         = google_pubsub_subscription.consumer.name
        SPANNER_INSTANCE     = var.spanner.instance
        SPANNER_DATABASE     = var.spanner.database
        PARTITION_DATABASE   = google_spanner_database.partitions[0].name
        SNAPSHOT_DATA_BOOST  = var.spanner.data_boost
      }
    },
    var.bigtable == null ? {} : {
      bigtable_reader = {
        GOOGLE_CLOUD_PROJECT = var.project
        TOPIC                = google_pubsub_topic.changes.name
        DEAD_LETTER_TOPIC    = google_pubsub_topic.dead_letters.name
        SUBSCRIPTION         = google_pubsub_subscription.consumer.name
        BIGTABLE_INSTANCE    = var.bigtable.instance
        BIGTABLE_TABLE       = var.bigtable.table
        APP_PROFILE          = google_bigtable_app_profile.reader[0].app_profile_id
        PARTITION_TABLE      = google_bigtable_table.partitions[0].name
      }
    },
  )
}

output "service_accounts" {
  description = "The service accounts by service, for Workload Identity."
  value       = { for service, account in google_service_account.services : service => account.email }
}

output "images" {
  description = "What the names of images begin with."
  value       = "${var.location}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}

output "api_token_secret" {
  description = "The secret that holds the token of the dead-letter API, without a version yet."
  value       = google_secret_manager_secret.api_token.secret_id
}
