# No expiry and no collation: tables would take both from their dataset.
resource "google_bigquery_dataset" "mirror" {
  project                    = var.project
  dataset_id                 = var.dataset
  location                   = var.location
  delete_contents_on_destroy = !var.deletion_protection

  depends_on = [google_project_service.these]
}

resource "google_bigquery_reservation" "apply" {
  count = var.reservation_slots > 0 ? 1 : 0

  project       = var.project
  location      = var.location
  name          = var.name
  edition       = "ENTERPRISE"
  slot_capacity = 0

  autoscale {
    max_slots = var.reservation_slots
  }

  depends_on = [google_project_service.these]
}

# BACKGROUND is the job type of what BigQuery applies by itself.
resource "google_bigquery_reservation_assignment" "apply" {
  count = var.reservation_slots > 0 ? 1 : 0

  project     = var.project
  location    = var.location
  assignee    = "projects/${var.project}"
  job_type    = "BACKGROUND"
  reservation = google_bigquery_reservation.apply[0].id
}
