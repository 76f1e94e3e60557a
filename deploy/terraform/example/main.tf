# A Spanner database, mirrored. `terraform init`, then `terraform apply -var project=... -var location=...
# -var spanner_instance=... -var spanner_database=...`.

terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

variable "project" {
  type = string
}

variable "location" {
  type    = string
  default = "europe-west1"
}

variable "spanner_instance" {
  type = string
}

variable "spanner_database" {
  type = string
}

variable "deletion_protection" {
  type    = bool
  default = true
}

provider "google" {
  project = var.project
  region  = var.location
}

module "millrace" {
  source = "../"

  project             = var.project
  location            = var.location
  deletion_protection = var.deletion_protection

  spanner = {
    instance = var.spanner_instance
    database = var.spanner_database
  }
}

output "settings" {
  value = yamlencode(module.millrace.settings)
}

output "service_accounts" {
  value = yamlencode(module.millrace.service_accounts)
}

output "images" {
  value = module.millrace.images
}

output "api_token_secret" {
  value = module.millrace.api_token_secret
}
