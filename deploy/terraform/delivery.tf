# What images and pods need: a registry, and the token of the dead-letter API. Its value is no business of Terraform's state.

resource "google_artifact_registry_repository" "images" {
  project       = var.project
  location      = var.location
  repository_id = var.name
  format        = "DOCKER"

  depends_on = [google_project_service.these]
}

resource "google_secret_manager_secret" "api_token" {
  project   = var.project
  secret_id = "${var.name}-api-token"

  replication {
    auto {}
  }

  depends_on = [google_project_service.these]
}

resource "google_secret_manager_secret_iam_member" "api_token" {
  project   = var.project
  secret_id = google_secret_manager_secret.api_token.secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = local.members.dead_letter
}
