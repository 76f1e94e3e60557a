locals {
  subscription = yamldecode(file("${path.module}/subscriptions.yaml"))
}

resource "google_pubsub_topic" "changes" {
  project = var.project
  name    = var.name

  depends_on = [google_project_service.these]
}

resource "google_pubsub_topic" "dead_letters" {
  project = var.project
  name    = "${var.name}-dead-letters"

  depends_on = [google_project_service.these]
}

resource "google_pubsub_subscription" "consumer" {
  project = var.project
  name    = "${var.name}-bigquery"
  topic   = google_pubsub_topic.changes.id

  ack_deadline_seconds         = local.subscription.ack_deadline_seconds
  message_retention_duration   = local.subscription.message_retention_duration
  enable_message_ordering      = local.subscription.enable_message_ordering
  enable_exactly_once_delivery = local.subscription.enable_exactly_once_delivery

  expiration_policy {
    ttl = local.subscription.expiration_policy_ttl
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead_letters.id
    max_delivery_attempts = local.subscription.max_delivery_attempts
  }
}

resource "google_pubsub_subscription" "dead_letters" {
  project = var.project
  name    = google_pubsub_topic.dead_letters.name
  topic   = google_pubsub_topic.dead_letters.id

  ack_deadline_seconds         = local.subscription.ack_deadline_seconds
  message_retention_duration   = local.subscription.message_retention_duration
  enable_message_ordering      = local.subscription.enable_message_ordering
  enable_exactly_once_delivery = local.subscription.enable_exactly_once_delivery

  expiration_policy {
    ttl = local.subscription.expiration_policy_ttl
  }
}
